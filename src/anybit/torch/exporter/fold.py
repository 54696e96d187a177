# SPDX-License-Identifier: Apache-2.0
"""Constant folding in a captured module, by the kernels that the module uses.

The exp, pow or sum of another runtime may differ in the last bit, which would change scales.
"""

import operator
from typing import Any

import torch
from torch.export import graph_signature
from torch.utils import _pytree

from anybit.onnx.graph.names import NameGenerator
from anybit.ops import OPERATORS
from anybit.torch.exporter.options import get_overload

# Larger constants, in bytes, are stored only if they are not larger than their operands.
_MAX_BYTES = 2**26

_INPUTS = {
    get_overload(operator): [declared.name for declared in operator.inputs]
    for operator in OPERATORS
}


def fold_constants(program: torch.export.ExportedProgram) -> None:
    """Replace nodes that depend on parameters and buffers only by their values, in place.

    Quantizers of constants stay, and so do nodes that use their results, except parameters of other
    quantizers: the scale of a scale is folded.
    """
    graph = program.graph
    values = _evaluate_constants(graph, _collect_stored(program))
    quantized = _find_quantized(graph, values)
    waiting = [node for node in graph.nodes if node not in values]
    reached = set(waiting)
    folded: dict[torch.fx.Node, torch.fx.Node] = {}
    unique = _make_names(program)
    while waiting:
        node = waiting.pop()
        for value in list(node.all_input_nodes):
            if value not in values or value.op == "placeholder":
                continue
            if value in quantized and not _is_parameter(node, value):
                if value not in reached:
                    reached.add(value)
                    waiting.append(value)
                continue
            if value not in folded:
                folded[value] = _store(program, unique("folded"), value, values[value])
            node.replace_input_with(value, folded[value])
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def is_call(node: torch.fx.Node) -> bool:
    """Return whether the node calls one of our operators."""
    return node.op == "call_function" and node.target in _INPUTS


def _collect_stored(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Return parameters, buffers and constants by the name of their node."""
    tensors = {**program.constants, **program.state_dict}
    return {
        spec.arg.name: tensors[spec.target]
        for spec in program.graph_signature.input_specs
        if spec.target in tensors
    }


def _evaluate_constants(graph: torch.fx.Graph, stored: dict[str, Any]) -> dict[torch.fx.Node, Any]:
    """Return the values of all nodes that depend on stored tensors only."""
    values: dict[torch.fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in stored:
            values[node] = stored[node.name]
        elif _is_pure(node) and all(operand in values for operand in node.all_input_nodes):
            value = _evaluate(node, values)
            if _is_small(value, [values[operand] for operand in node.all_input_nodes]):
                values[node] = value
    return values


def _is_pure(node: torch.fx.Node) -> bool:
    """Return whether the node is a deterministic function without side effects."""
    if node.op != "call_function":
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not (random or node.target._schema.is_mutable)


def _evaluate(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    with torch.no_grad():
        value = node.target(*args, **kwargs)
    # Views of parameters require a gradient, which constants must not.
    return _pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, value)


def _is_small(value: Any, sources: list[Any]) -> bool:
    def nbytes(values: Any) -> int:
        leaves = _pytree.tree_leaves(values)
        return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))

    return nbytes(value) <= max(_MAX_BYTES, nbytes(sources))


def _find_quantized(graph: torch.fx.Graph, values: dict[torch.fx.Node, Any]) -> set[torch.fx.Node]:
    """Return the constant nodes that are quantizers or depend on one."""
    quantized: set[torch.fx.Node] = set()
    for node in graph.nodes:
        depends = any(operand in quantized for operand in node.all_input_nodes)
        if node in values and (is_call(node) or depends):
            quantized.add(node)
    return quantized


def _is_parameter(node: torch.fx.Node, value: torch.fx.Node) -> bool:
    """Return whether the node is one of our operators with the value as a parameter."""
    if not is_call(node):
        return False
    x = node.args[0] if node.args else node.kwargs[_INPUTS[node.target][0]]
    return x is not value


def _make_names(program: torch.export.ExportedProgram) -> NameGenerator:
    """Return a generator of names for new constants, distinct from those of the module.

    PyTorch's exporter names the node of a constant `c_NAME`, which must be unused, too.
    """
    nodes = (node.name for node in program.graph.nodes)
    taken = [*program.constants, *program.state_dict, *nodes]
    return NameGenerator([*taken, *(name.removeprefix("c_") for name in taken)])


def _store(
    program: torch.export.ExportedProgram, name: str, node: torch.fx.Node, value: Any
) -> torch.fx.Node:
    """Add a constant to the program, and return the placeholder that replaces the node."""
    signature, graph = program.graph_signature, program.graph
    specs = signature.input_specs
    kinds = [spec.kind is graph_signature.InputKind.USER_INPUT for spec in specs]
    place = kinds.index(True) if True in kinds else len(kinds)
    placeholders = [placeholder for placeholder in graph.nodes if placeholder.op == "placeholder"]
    after = placeholders[place] if place < len(placeholders) else _find_end(placeholders, graph)
    with graph.inserting_before(after):
        stored = graph.placeholder(f"c_{name}")
    stored.meta["val"] = node.meta["val"]
    argument = graph_signature.TensorArgument(stored.name)
    kind = graph_signature.InputKind.CONSTANT_TENSOR
    specs.insert(place, graph_signature.InputSpec(kind, argument, name, None))
    program.constants[name] = value
    return stored


def _find_end(placeholders: list[torch.fx.Node], graph: torch.fx.Graph) -> torch.fx.Node:
    return placeholders[-1].next if placeholders else next(iter(graph.nodes))
