# SPDX-License-Identifier: Apache-2.0
"""Local functions with the bodies of this package's operators."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from anybit.onnx.expansion.calls import Expansions
from anybit.onnx.expansion.namespace import trace_value
from anybit.onnx.expansion.traced import TracedValue
from anybit.onnx.expansion.writer import Body
from anybit.onnx.graph.constants import Array, Content, is_constant, make_content_key
from anybit.onnx.graph.names import NameGenerator, get_label
from anybit.onnx.operators.registry import (
    find_operator,
    find_operators,
    get_attribute_type,
    get_keywords,
)
from anybit.onnx.report import ConversionReport, ConversionStep
from anybit.ops import Attribute, Operator

Keywords: TypeAlias = Mapping[str, bool | int | str]

_COMPUTED_IN_FLOAT32 = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

# The first versions of the standard operators with everything that the bodies use.
_OPSET = 15  # CastLike
_OPSET_WITH_MODES = 19  # Equal for strings


class AddFunctions(InPlacePass):
    """Addition of a local function for each operator of this package that the model uses.

    A runtime with the operator library uses its kernel; any other runs the function. The functions
    consist of the operations of the references (see `Lower`), for the attributes that occur in the
    model: if nodes differ in them, the function selects a branch.

    Runtimes support one function per name. It covers nodes with float32, float16 or bfloat16 inputs
    and the most common number of inputs. Others are left for `Lower`, with the reason in the
    report. The model is normalized, and types are known.

    Raises:
        ModelError: An operator refuses its constant parameters, which a function would not.
    """

    def call(self, model: ir.Model) -> ConversionReport:
        steps: list[ConversionStep] = []
        left: dict[str, str] = {}
        expansions = Expansions()
        for nodes in _group_by_name(model).values():
            served = _select_nodes(nodes, left)
            if served:
                operator = find_operator(served[0])
                assert operator is not None, "chosen so"
                imports = model.graph.opset_imports
                function = _make_function(operator, served, imports[""])
                model.functions[function.identifier()] = function
                # Missing if the file has two versions of an operator; one of them stays.
                domain = operator.onnx_domain
                imports[domain] = max(imports.get(domain, 1), operator.version)
                for node in served:
                    _check_constants(node, operator, expansions)
                    steps.append(
                        ConversionStep(get_label(node), operator.onnx_name, "local function")
                    )
        return ConversionReport(model, bool(model.functions), tuple(steps), left)


def _select_nodes(nodes: list[ir.Node], left: dict[str, str]) -> list[ir.Node]:
    """Return the nodes that one function covers; `left` collects reasons for the others."""
    counts = [len(node.inputs) for node in nodes]
    usual = max(counts, key=counts.count)
    served = []
    for node in nodes:
        operator = find_operator(node)
        x = node.inputs[0]
        reason = ""
        if operator is not None and operator.is_dequantizer:
            reason = "it reads integers, which a local function would cast to float32"
        elif operator is not None and operator.result_dtype is not None:
            reason = "the type of its result follows from an attribute"
        elif operator is not None and operator.block_axis is not None:
            reason = "the axis of its blocks needs the rank of x, which a local function lacks"
        elif x is None or x.dtype not in _COMPUTED_IN_FLOAT32:
            reason = "it does not compute in float32, as a local function does"
        elif len(node.inputs) != usual or None in node.inputs:
            reason = "others of its name have another number of inputs"
        if reason:
            left[str(node.outputs[0].name)] = reason
        else:
            served.append(node)
    return served


def _check_constants(node: ir.Node, operator: Operator, expansions: Expansions) -> None:
    """Check the constants of an operator if the other types are known."""
    if all(value is None or is_constant(value) or value.dtype is not None for value in node.inputs):
        expansions.expand(node, operator)


def find_function_opset(model: ir.Model) -> int:
    """Return the lowest opset that the functions of a normalized model need; 1 without any."""
    modes = defaultdict(set)
    needed = 1
    for node, operator in find_operators(model):
        needed = _OPSET
        for name, value in get_keywords(node, operator).items():
            if isinstance(value, str):
                modes[operator.onnx_name, name].add(value)
    return _OPSET_WITH_MODES if any(len(mode) > 1 for mode in modes.values()) else needed


def _group_by_name(model: ir.Model) -> dict[str, list[ir.Node]]:
    named = defaultdict(list)
    for node, operator in find_operators(model):
        named[operator.onnx_name].append(node)
    return named


def _make_function(operator: Operator, nodes: list[ir.Node], opset: int) -> ir.Function:
    unique = NameGenerator(declared.name for declared in operator.inputs)
    inputs = [ir.Value(name=value.name) for value in operator.inputs[: len(nodes[0].inputs)]]
    body = _make_body(unique)
    arguments = [_as_float32(body, value) for value in inputs]
    variants = _list_variants(operator, nodes)
    result = _write_choice(body, operator, arguments, variants, unique)
    result = body.append("CastLike", [result, inputs[0]], None)
    graph = ir.Graph(
        inputs,
        [result],
        nodes=body.nodes,
        opset_imports={"": opset},
        name=operator.onnx_name,
    )
    attributes = [
        ir.Attr(attribute.onnx_name, get_attribute_type(attribute), None)
        for attribute in operator.attributes
    ]
    return ir.Function(operator.onnx_domain, operator.onnx_name, graph=graph, attributes=attributes)


def _list_variants(operator: Operator, nodes: Iterable[ir.Node]) -> list[Keywords]:
    """Return the distinct attributes of the nodes, the most common ones first."""
    variants: list[Keywords] = [get_keywords(node, operator) for node in nodes]
    distinct = [one for at, one in enumerate(variants) if one not in variants[:at]]
    return sorted(distinct, key=variants.count, reverse=True)


def _write_choice(
    body: Body,
    operator: Operator,
    arguments: list[TracedValue],
    variants: list[Keywords],
    unique: NameGenerator,
) -> ir.Value:
    """Return the result of the first variant with the node's attributes, or else of the last."""
    variant, *others = variants
    if not others:
        return body.write(operator.reference(*arguments, **variant))
    condition = None
    for attribute in operator.attributes:
        if any(other[attribute.name] != variant[attribute.name] for other in others):
            same = _write_comparison(body, attribute, variant[attribute.name])
            condition = same if condition is None else body.append("And", [condition, same], None)
    branches = {}
    for name, rest in (("then_branch", [variant]), ("else_branch", others)):
        branch = body.make_branch()
        result = _write_choice(branch, operator, arguments, rest, unique)
        result.type = ir.TensorType(ir.DataType.FLOAT)
        graph = ir.Graph([], [result], nodes=branch.nodes, name=unique(name))
        branches[name] = ir.AttrGraph(name, graph)
    assert condition is not None, "variants differ in an attribute"
    return body.append("If", [condition], ir.DataType.FLOAT, branches)


def _write_comparison(body: Body, attribute: Attribute, value: bool | int | str) -> ir.Value:
    """Return a value that is true if the node's attribute equals `value`."""
    kind = "value_string" if isinstance(value, str) else "value_int"
    stated = ir.Attr(kind, get_attribute_type(attribute), attribute.encode(value))
    referred = ir.RefAttr(kind, attribute.onnx_name, get_attribute_type(attribute))
    dtype = ir.DataType.STRING if isinstance(value, str) else ir.DataType.INT64
    operands = [
        body.append("Constant", [], dtype, {kind: operand}) for operand in (referred, stated)
    ]
    return body.append("Equal", operands, ir.DataType.BOOL)


def _make_body(unique: NameGenerator) -> Body:
    """Create the body of a function. Its constants are nodes: functions have no initializers."""
    constants: dict[Content, ir.Value] = {}

    def constant(_: str, array: Array) -> ir.Value:
        key = make_content_key(array)
        if key not in constants:
            tensor = ir.AttrTensor("value", ir.Tensor(array))
            dtype = ir.DataType.from_numpy(array.dtype)
            constants[key] = body.append("Constant", [], dtype, {"value": tensor})
        return constants[key]

    body = Body(constant, unique, "body")
    return body


def _as_float32(body: Body, value: ir.Value) -> TracedValue:
    to = {"to": ir.AttrInt64("to", int(ir.DataType.FLOAT))}
    cast = body.append("Cast", [value], ir.DataType.FLOAT, to)
    return trace_value(cast, np.float32)
