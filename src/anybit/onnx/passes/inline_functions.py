# SPDX-License-Identifier: Apache-2.0
"""Inlining of local functions."""

from collections.abc import Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.errors import ModelError
from anybit.onnx.graph.names import NameGenerator, describe, make_name_generator
from anybit.onnx.graph.require import require_graph
from anybit.onnx.graph.walk import iter_values
from anybit.onnx.operators.multi_threshold import SPELLINGS
from anybit.onnx.operators.registry import find_versions
from anybit.onnx.passes.lift_opset import LiftOpset

Functions: TypeAlias = dict[ir.OperatorIdentifier, ir.Function]


class InlineFunctions(InPlacePass):
    """Inlining of all local functions, except those with an operator's name.

    After inlining, the constants of the bodies can be folded and their operators converted.
    Functions with the name of an operator are stand-ins: `Normalize` drops them. If functions and
    model use different opsets, all are lifted to the newest.

    Raises:
        ModelError: A function cannot be inlined, or not be lifted to another opset.
    """

    def call(self, model: ir.Model) -> PassResult:
        functions = {
            key: function
            for key, function in model.functions.items()
            if not find_versions(*key[:2]) and key[:2] not in SPELLINGS
        }
        if not functions:
            return PassResult(model, False)
        _lift_to(model, functions)
        _inline_calls(model, functions)
        _import_domains(model, functions)
        for key in functions:
            del model.functions[key]
        return PassResult(model, True)


def _inline_calls(model: ir.Model, functions: Functions) -> None:
    """Inline from the outside in, so that attributes have values when a body is copied.

    Recursive calls are refused when a file is read.
    """
    main, unique = model.graph, make_name_generator(model)
    waiting = list(main.all_nodes())
    while waiting:
        node = waiting.pop()
        function = functions.get(node.op_identifier())
        if function is not None:
            waiting += _inline_call(node, function, unique, main.opset_imports.get("", 0))


def _inline_call(
    call: ir.Node, function: ir.Function, unique: NameGenerator, opset: int
) -> list[ir.Node]:
    """Replace a call by the body; return all nodes of the body."""
    target = require_graph(call)
    body = _copy_body(call, function, opset)
    for graph in (body, *body.subgraphs()):
        for value in iter_values(graph):
            value.name = unique(value.name or "value")
        for node in graph:
            node.name = unique(node.name) if node.name else node.name
            node.metadata_props.update({**call.metadata_props, **node.metadata_props})
    arguments = dict(zip(body.inputs, _get_arguments(call, body), strict=True))
    results = [arguments.get(value, value) for value in body.outputs]
    body.outputs.clear()
    for declared, passed in arguments.items():
        for reader, index in list(declared.uses()):
            reader.replace_input_with(index, passed)
    everything, nodes = list(body.all_nodes()), list(body)
    body.remove(nodes)
    target.insert_before(call, nodes)
    _hand_over(call, results, {value for node in nodes for value in node.outputs})
    target.remove(call, safe=True)
    return everything


def _copy_body(call: ir.Node, function: ir.Function, opset: int) -> ir.Graph:
    """Return a copy of a function's graph with attribute values, in the model's opset."""
    body = function.graph.clone()
    if len(call.inputs) > len(body.inputs) or len(call.outputs) > len(body.outputs):
        raise ModelError(
            f"{describe(call)}: the local function takes {len(body.inputs)} inputs and gives "
            f"{len(body.outputs)} outputs; export the model again"
        )
    for node in body.all_nodes():
        _resolve_attributes(node, call, function)
    for declared, value in zip(body.inputs, _get_arguments(call, body), strict=True):
        if value is not None:
            declared.type, declared.shape = value.type, value.shape
    return _lift_graph(body, opset)


def _hand_over(call: ir.Node, results: Sequence[ir.Value | None], made: set[ir.Value]) -> None:
    """Let readers of the call read the results, under the original names."""
    for old, result in zip(call.outputs, results, strict=False):
        if result is None:
            raise ModelError(
                f"{describe(call)} lacks the input that its local function hands on; export the "
                "model again"
            )
        if result not in made:  # an input that is returned, or a result that has a name already
            node = ir.node("Identity", [result])
            require_graph(call).insert_before(call, node)
            result = node.outputs[0]
        made.discard(result)
        _stand_in(result, old)


def _get_arguments(call: ir.Node, body: ir.Graph) -> list[ir.Value | None]:
    return [*call.inputs, *[None] * (len(body.inputs) - len(call.inputs))]


def _stand_in(result: ir.Value, old: ir.Value) -> None:
    """Give a result the name, the type, the shape and the readers of another value."""
    name = old.name
    result.type = old.type if old.type is not None else result.type
    result.shape = old.shape if old.shape is not None else result.shape
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    old.name = None
    result.name = name


def _resolve_attributes(node: ir.Node, call: ir.Node, function: ir.Function) -> None:
    """Replace a function's parameters by values; parameters without a value are dropped."""
    for name, attribute in list(node.attributes.items()):
        if not attribute.is_ref():
            continue
        parameter = attribute.ref_attr_name or ""
        actual = call.attributes.get(parameter) or function.attributes.get(parameter)
        del node.attributes[name]
        if actual is not None and actual.value is not None:
            node.attributes.add(ir.Attr(name, actual.type, actual.value))


def _lift_to(model: ir.Model, functions: Functions) -> None:
    """Lift the model to the newest opset of its functions."""
    versions = [function.graph.opset_imports.get("", 0) for function in functions.values()]
    if "" not in model.graph.opset_imports and max(versions):
        model.graph.opset_imports[""] = max(versions)
    model.graph = _lift_graph(model.graph, max(versions))


def _lift_graph(graph: ir.Graph, opset: int) -> ir.Graph:
    present = graph.opset_imports.get("", 0)
    if not 0 < present < opset:
        return graph
    standard = {node.op_type for node in graph.all_nodes() if node.domain == ""}
    if all(_is_same(kind, present, opset) for kind in standard):
        graph.opset_imports[""] = opset
        return graph
    alone = ir.Model(graph, ir_version=8)
    LiftOpset(opset)(alone)
    return alone.graph


def _is_same(kind: str, first: int, second: int) -> bool:
    """Return whether an operator did not change between two versions."""
    if not (onnx.defs.has(kind, first) and onnx.defs.has(kind, second)):
        return False
    schemas = [onnx.defs.get_schema(kind, version) for version in (first, second)]
    return bool(schemas[0].since_version == schemas[1].since_version)


def _import_domains(model: ir.Model, functions: Functions) -> None:
    """Import the domains of the bodies.

    A domain of this package in two versions is not imported, as in any file that has both: the
    versions follow from the number of inputs.
    """
    imports, used = model.graph.opset_imports, {node.domain for node in model.graph.all_nodes()}
    for function in functions.values():
        for domain, version in function.graph.opset_imports.items():
            if domain not in used - {""} or imports.setdefault(domain, version) == version:
                continue
            if not any(find_versions(domain, node.op_type) for node in model.graph.all_nodes()):
                raise ModelError(
                    f"the model imports {domain!r} version {imports[domain]}, its local function "
                    f"{function.name!r} version {version}; export it with one of them"
                )
            imports[domain] = 0
    for domain in [domain for domain, version in imports.items() if version == 0]:
        del imports[domain]
