# SPDX-License-Identifier: Apache-2.0
"""Compute what is constant in a captured module, by the very kernels that the module uses.

Another runtime's exp, pow or sum can differ in the last bit; scales must not.
"""

import operator
from typing import Any

import torch
from torch.export import graph_signature
from torch.utils import _pytree

from anybit.onnx.graph.names import Names
from anybit.ops import OPERATORS
from anybit.torch.exporter.options import overload_of

# Constants of more bytes are stored only if something as large was stored before.
_ROOM = 2**26

_INPUTS = {overload_of(each): [declared.name for declared in each.inputs] for each in OPERATORS}


def fold_constants(program: torch.export.ExportedProgram) -> None:
    """Replace what depends on parameters and buffers only by its value, in place.

    A quantizer of a constant stays, and so does what is computed from its result, but for the
    parameters of other quantizers: the scale of a scale is folded.
    """
    graph = program.graph
    known = _known(graph, _stored(program))
    quantized = _quantized(graph, known)
    waiting = [node for node in graph.nodes if node not in known]
    reached = set(waiting)
    folded: dict[torch.fx.Node, torch.fx.Node] = {}
    unique = _names(program)
    while waiting:
        node = waiting.pop()
        for value in list(node.all_input_nodes):
            if value not in known or value.op == "placeholder":
                continue
            if value in quantized and not _is_parameter(node, value):
                if value not in reached:
                    reached.add(value)
                    waiting.append(value)
                continue
            if value not in folded:
                folded[value] = _store(program, unique("folded"), value, known[value])
            node.replace_input_with(value, folded[value])
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def is_call(node: torch.fx.Node) -> bool:
    """Whether the node calls one of our operators."""
    return node.op == "call_function" and node.target in _INPUTS


def _stored(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Parameters, buffers and constants by the name of their node."""
    tensors = {**program.constants, **program.state_dict}
    return {
        spec.arg.name: tensors[spec.target]
        for spec in program.graph_signature.input_specs
        if spec.target in tensors
    }


def _known(graph: torch.fx.Graph, stored: dict[str, Any]) -> dict[torch.fx.Node, Any]:
    """The values of all nodes that depend on stored tensors only."""
    known: dict[torch.fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in stored:
            known[node] = stored[node.name]
        elif _is_pure(node) and all(each in known for each in node.all_input_nodes):
            value = _evaluated(node, known)
            if _is_small(value, [known[each] for each in node.all_input_nodes]):
                known[node] = value
    return known


def _is_pure(node: torch.fx.Node) -> bool:
    """Whether the node computes one thing, and the same thing each time."""
    if node.op != "call_function":
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not (random or node.target._schema.is_mutable)


def _evaluated(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
    with torch.no_grad():
        value = node.target(*args, **kwargs)
    # Views of parameters, such as parts of one, still ask for a gradient, and constants must not.
    return _pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, value)


def _is_small(value: Any, sources: list[Any]) -> bool:
    def nbytes(values: Any) -> int:
        leaves = _pytree.tree_leaves(values)
        return sum(each.nbytes for each in leaves if isinstance(each, torch.Tensor))

    return nbytes(value) <= max(_ROOM, nbytes(sources))


def _quantized(graph: torch.fx.Graph, known: dict[torch.fx.Node, Any]) -> set[torch.fx.Node]:
    """The known nodes that are quantizers, or are computed from what a quantizer gives."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node in known and (is_call(node) or any(e in found for e in node.all_input_nodes)):
            found.add(node)
    return found


def _is_parameter(node: torch.fx.Node, value: torch.fx.Node) -> bool:
    """Whether one of our operators takes the value as a parameter, and not as x."""
    if not is_call(node):
        return False
    x = node.args[0] if node.args else node.kwargs[_INPUTS[node.target][0]]
    return x is not value


def _names(program: torch.export.ExportedProgram) -> Names:
    """Names for new constants. Those of a module's own tensors would stand for other values.

    PyTorch's exporter calls the node of a constant `c_` and its name: that must be free, too.
    """
    nodes = (node.name for node in program.graph.nodes)
    taken = [*program.constants, *program.state_dict, *nodes]
    return Names([*taken, *(name.removeprefix("c_") for name in taken)])


def _store(
    program: torch.export.ExportedProgram, name: str, node: torch.fx.Node, value: Any
) -> torch.fx.Node:
    """A new constant of the program that stands for the node."""
    signature, graph = program.graph_signature, program.graph
    specs = signature.input_specs
    kinds = [spec.kind is graph_signature.InputKind.USER_INPUT for spec in specs]
    place = kinds.index(True) if True in kinds else len(kinds)
    placeholders = [each for each in graph.nodes if each.op == "placeholder"]
    after = placeholders[place] if place < len(placeholders) else _behind(placeholders, graph)
    with graph.inserting_before(after):
        stored = graph.placeholder(f"c_{name}")
    stored.meta["val"] = node.meta["val"]
    argument = graph_signature.TensorArgument(stored.name)
    kind = graph_signature.InputKind.CONSTANT_TENSOR
    specs.insert(place, graph_signature.InputSpec(kind, argument, name, None))
    program.constants[name] = value
    return stored


def _behind(placeholders: list[torch.fx.Node], graph: torch.fx.Graph) -> torch.fx.Node:
    return placeholders[-1].next if placeholders else next(iter(graph.nodes))
