# SPDX-License-Identifier: Apache-2.0
"""Normalization of the spellings of files to the form that all other code expects."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveInitializersFromInputsPass

from anybit.errors import ModelError
from anybit.onnx.graph.names import describe, name_nodes
from anybit.onnx.graph.walk import iter_graphs, iter_nodes, iter_values
from anybit.onnx.operators.multi_threshold import SPELLINGS
from anybit.onnx.operators.opsets import lower_opset
from anybit.onnx.operators.registry import (
    CANONICAL_DOMAINS,
    find_operator,
    find_versions,
    get_keywords,
    make_attribute,
)
from anybit.onnx.quantizers.contributed import standardize
from anybit.ops import Attribute, Operator

# The first IR versions with local functions, and with these types.
_LOWEST_IR_VERSION = 8
_TYPE_IR_VERSIONS = {
    "FLOAT8E4M3FN": 9,
    "FLOAT8E4M3FNUZ": 9,
    "FLOAT8E5M2": 9,
    "FLOAT8E5M2FNUZ": 9,
    "INT4": 10,
    "UINT4": 10,
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    "INT2": 13,
    "UINT2": 13,
    "FLOAT6E2M3": 14,
    "FLOAT6E3M2": 14,
}


class Normalize(InPlacePass):
    """One name, one domain, explicit attributes, and a header that runtimes accept.

    * Operators get their own domain and name (`onnx.brevitas`, `finn.custom_op.general` and
      legacy names are known), missing attributes their defaults, rounding modes upper case.
    * QuantizeLinear and DequantizeLinear of ONNX Runtime's domain become those of ONNX, if the
      opset of the model has their types.
    * Outputs whose type is not that of x get a type: runtimes cannot always infer it.
    * Local functions with an operator's name are dropped: they stand for the operator, and some
      exporters write a body that only copies its input.
    * Used domains are imported: with the version that the file declares, or else that of the
      operators. A file with two versions of one operator gets no import, because none is correct.
    * An opset after 25 is replaced by the oldest from 25 on with the same operators: runtimes lack
      newer ones.
    * Duplicate names of nodes, which ONNX Runtime refuses, are numbered.
    * Initializers are not inputs any more, because inputs are not constants.
    * The IR version is the lowest one with the used types, for old runtimes.

    The pass is idempotent. Weights are not read.

    Raises:
        ModelError: A number of inputs that no version of the operator has or that contradicts the
            declared version, an unknown rounding mode, an attribute of another type, a declared
            type of a result that contradicts an attribute.
    """

    def call(self, model: ir.Model) -> PassResult:
        modified = _drop_functions(model) | lower_opset(model)
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            declared = dict(graph.opset_imports)
            for node in iter_nodes(graph):
                operator = find_operator(node)
                if operator is not None:
                    _check_outputs(node)
                    _check_version(node, operator, declared)
                    modified |= _rename(node, operator)
                    modified |= _spell_out(node, operator)
                    modified |= _set_result_type(node, operator)
                elif node.domain:
                    modified |= standardize(node, declared.get("", 0))
            modified |= _import_domains(graph, declared)
        modified |= RemoveInitializersFromInputsPass()(model).modified
        modified |= _set_ir_version(model)
        modified |= name_nodes(model, unnamed=False)
        return PassResult(model, modified)


def _drop_functions(model: ir.Model) -> bool:
    ours = [key for key in model.functions if find_versions(key[0], key[1]) or key[:2] in SPELLINGS]
    for key in ours:
        del model.functions[key]
    return bool(ours)


def _check_outputs(node: ir.Node) -> None:
    if len(node.outputs) != 1:
        raise ModelError(
            f"{describe(node)} must have 1 output, got {len(node.outputs)}; export the model again"
        )


def _check_version(node: ir.Node, operator: Operator, imports: dict[str, int]) -> None:
    declared = imports.get(node.domain, 0)
    if declared < 1:  # an absent version reads as 0
        return
    if _find_version(node.domain, node.op_type, declared) != operator.version:
        raise ModelError(
            f"{describe(node)} has {operator.required_inputs} inputs, which is version "
            f"{operator.version}, but the model imports {node.domain!r} version {declared}; "
            "correct the import or export the model again"
        )


def _rename(node: ir.Node, operator: Operator) -> bool:
    intended = (operator.onnx_domain, operator.onnx_name, "")
    if (node.domain, node.op_type, node.overload) == intended:
        return False
    node.domain, node.op_type, node.overload = intended
    return True


def _spell_out(node: ir.Node, operator: Operator) -> bool:
    modified = False
    for attribute in operator.attributes:
        spellings = (attribute.onnx_name, *attribute.aliases)
        attributes = [node.attributes.pop(name) for name in spellings if name in node.attributes]
        value = _check_value(node, attributes[0], attribute) if attributes else attribute.default
        written = make_attribute(attribute, value)
        modified |= list(map(_make_key, attributes)) != [_make_key(written)]
        node.attributes.add(written)
    return modified


def _make_key(attribute: ir.Attr) -> tuple[object, ...]:
    """Return a key for comparisons of an attribute, because those of onnx_ir are slow."""
    return attribute.name, attribute.type, attribute.value, attribute.doc_string


def _set_result_type(node: ir.Node, operator: Operator) -> bool:
    if operator.result_dtype is None:
        return False
    try:
        dtype = ir.DataType.from_numpy(
            np.dtype(operator.result_dtype(get_keywords(node, operator)))
        )
    except ValueError as error:
        raise ModelError(f"{describe(node)}: {error}") from None
    result = node.outputs[0]
    if result.dtype not in (None, dtype):
        raise ModelError(
            f"{describe(node)}: it makes {result.name!r} {dtype.name}, "
            f"but the model declares {result.dtype.name}; correct one of the two"
        )
    modified = result.dtype is None
    result.dtype = dtype
    return modified


def _check_value(node: ir.Node, attribute: ir.Attr, declared: Attribute) -> bool | int | str:
    """Return the value of an attribute, checked against the type of its default."""
    if attribute.is_ref():
        raise ModelError(
            f"{describe(node)}: {attribute.name} is a parameter of a local function; "
            "inline the function first"
        )
    try:
        return declared.decode(attribute.value, attribute.name)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{describe(node)}: {error}") from None


def _import_domains(graph: ir.Graph, declared: dict[str, int]) -> bool:
    before = dict(graph.opset_imports)
    for legacy in CANONICAL_DOMAINS.keys() - {node.domain for node in iter_nodes(graph)}:
        graph.opset_imports.pop(legacy, None)
    used: dict[str, set[Operator]] = {}
    for node in iter_nodes(graph):
        operator = find_operator(node)
        if operator is not None:
            used.setdefault(operator.onnx_domain, set()).add(operator)
    for domain, operators in used.items():
        names = (domain, *(old for old, new in CANONICAL_DOMAINS.items() if new == domain))
        version = max(*(declared.get(name, 1) for name in names), *(o.version for o in operators))
        if all(_find_version(domain, o.onnx_name, version) == o.version for o in operators):
            graph.opset_imports[domain] = version
        else:
            graph.opset_imports.pop(domain, None)
    return graph.opset_imports != before


def _find_version(domain: str, name: str, declared: int) -> int:
    """Return the version of an operator for the declared version of a domain."""
    versions = (operator.version for operator in find_versions(domain, name))
    return max((version for version in versions if version <= declared), default=0)


def _set_ir_version(model: ir.Model) -> bool:
    names = {
        value.dtype.name
        for graph in iter_graphs(model)
        for value in iter_values(graph)
        if value.dtype is not None
    }
    needed = max([_LOWEST_IR_VERSION, *(_TYPE_IR_VERSIONS.get(name, 0) for name in names)])
    modified = model.ir_version != needed
    model.ir_version = needed
    return modified
