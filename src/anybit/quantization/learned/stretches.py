# SPDX-License-Identifier: Apache-2.0
"""Stretches of a network: what lies between two tensors that all goes through."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from anybit.onnx.graph.constants import is_constant
from anybit.quantization.learned.operators import operator_for
from anybit.quantization.placement import Layer

# So many layers are learned together, those of one residual block or two.
_MOST_LAYERS = 6


@dataclass(frozen=True)
class Stretch:
    """Nodes with one output.

    Attributes:
        nodes: They, in order.
        output: The tensor.
        layers: Those whose weights are learned.
    """

    nodes: tuple[ir.Node, ...]
    output: ir.Value
    layers: tuple[Layer, ...]

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """What it reads and does not make, constants left out."""
        made = {value for node in self.nodes for value in node.outputs}
        read = (value for node in self.nodes for value in node.inputs)
        return tuple(
            dict.fromkeys(
                each
                for each in read
                if each is not None and each not in made and not is_constant(each)
            )
        )


def stretches_of(
    model: ir.Model, disturbed: Collection[ir.Node], layers: Sequence[Layer]
) -> Iterator[Stretch]:
    """The stretches of a network in which layers lie, in order.

    Where there are too many layers between two such tensors, or a node that cannot be
    differentiated here, each layer is a stretch.

    Args:
        model: The network.
        disturbed: The nodes that are quantized. Only what they change is looked at: what follows
            from masks, shapes and indices is the same in floats.
        layers: Those whose weights are to be learned.
    """
    opset = model.graph.opset_imports.get("", 1)
    by_node = {layer.node: layer for layer in layers}

    def is_known(nodes: Iterable[ir.Node]) -> bool:
        return all(operator_for(node, opset) is not None for node in nodes)

    for nodes, output in _joined(_segments(model, disturbed), by_node, is_known):
        inside = tuple(by_node[node] for node in nodes if node in by_node)
        if inside and output is not None and len(inside) <= _MOST_LAYERS and is_known(nodes):
            yield Stretch(tuple(nodes), output, inside)
        else:
            yield from (each for each in singles(inside) if is_known(each.nodes))


def singles(layers: Iterable[Layer]) -> Iterator[Stretch]:
    """Layers, each by itself."""
    for layer in layers:
        yield Stretch((layer.node,), layer.node.outputs[0], (layer,))


_Segment = tuple[list[ir.Node], ir.Value | None]


def _segments(model: ir.Model, disturbed: Collection[ir.Node]) -> Iterator[_Segment]:
    """What lies between tensors that all goes through, with the second of them; None for the last
    one where the network has several outputs."""
    ends: dict[ir.Value, int] = {}
    nodes = list(model.graph)
    for at, node in enumerate(nodes):
        ends |= {value: at for value in node.inputs if value is not None}
    ends |= dict.fromkeys(model.graph.outputs, len(nodes))
    changed: set[ir.Value] = set()
    crossing: set[ir.Value] = set()
    found: list[ir.Node] = []
    for at, node in enumerate(nodes):
        outputs = [each for each in node.outputs if each.dtype == ir.DataType.FLOAT]
        if outputs and (node in disturbed or not changed.isdisjoint(node.inputs)):
            changed.update(outputs)
            crossing.update(outputs)
            found.append(node)
        crossing = {value for value in crossing if ends.get(value, -1) > at}
        if found and len(crossing) == 1:
            yield found, next(iter(crossing))
            found = []
    if found:
        yield found, None


def _joined(
    segments: Iterator[_Segment],
    layers: Collection[ir.Node],
    is_known: Callable[[Iterable[ir.Node]], bool],
) -> Iterator[_Segment]:
    """Neighbours together, as long as all is known and there are not too many layers."""
    nodes: list[ir.Node] = []
    output: ir.Value | None = None
    count, apart = 0, False
    for found, end in segments:
        here = sum(node in layers for node in found)
        alone = end is None or not is_known(found)
        full = count > 0 and here > 0 and count + here > _MOST_LAYERS
        if nodes and (alone or apart or full):
            yield nodes, output
            nodes, count = [], 0
        nodes, output, count, apart = [*nodes, *found], end, count + here, alone
    if nodes:
        yield nodes, output
