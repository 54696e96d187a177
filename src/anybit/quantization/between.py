# SPDX-License-Identifier: Apache-2.0
"""What lies between layers: which of its tensors are to be codes, so that all of it is integer.

What adds, puts together or averages needs codes for what it reads; so does a function that rises
and falls behind a sum, where thresholds would be too many. Functions that only rise or fall need
none: they go with the quantizer behind them. What moves elements keeps their codes, so that the
quantizer of what it gives stands before it, and several tensors that come together have one grid.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

import onnx_ir as ir

from anybit.lowbit.elementwise import varying_inputs
from anybit.lowbit.functions import is_monotone
from anybit.lowbit.groups import Groups
from anybit.lowbit.moving import RESHAPING, is_move
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.facts import Effect, effect_of, is_identity
from anybit.onnx.graph.names import label_of
from anybit.quantization.branches import reachable
from anybit.quantization.placement import Layer, Placement, Source, sources_of

_SINGLE = (Effect.ELEMENTWISE, Effect.RECTIFY)
_REPEATED = "the tensors that it puts together are put together with others elsewhere"
_FOREIGN = "integers do not compute it"


def with_between(placement: Placement, model: ir.Model) -> Placement:
    """A placement with all that has to read codes between the first and the last layer."""
    inside = _inside(model, {layer.node for layer in placement.layers if layer.weights})
    found = _Walk(model, inside, {layer.node for layer in placement.layers})
    positions = {node: place for place, node in enumerate(reachable(model.graph))}
    layers = sorted([*placement.layers, *found.layers], key=lambda each: positions[each.node])
    left = {label_of(node): reason for node, reason in found.left.items()}
    return Placement(tuple(layers), placement.left | left, frozenset(inside.difference(found.left)))


def _inside(model: ir.Model, layers: Collection[ir.Node]) -> set[ir.Node]:
    """The nodes that floats flow through from a layer to a layer, both included."""
    behind: set[ir.Node] = set()
    for node in model.graph:
        before = {value.producer() for value in node.inputs if value is not None}
        flows = any(value.dtype == ir.DataType.FLOAT for value in node.outputs)
        if flows and (node in layers or not behind.isdisjoint(before)):
            behind.add(node)
    ahead: set[ir.Node] = set()
    for node in reversed(model.graph):
        readers = {reader for value in node.outputs for reader, _ in value.uses()}
        if node in layers or not ahead.isdisjoint(readers):
            ahead.add(node)
    return behind & ahead


class _Walk:
    """Goes through what lies between.

    Attributes:
        layers: What reads codes.
        left: What stays float between integers, and why.
    """

    def __init__(self, model: ir.Model, inside: set[ir.Node], layers: set[ir.Node]) -> None:
        self.left: dict[ir.Node, str] = {}
        self._opset = model.graph.opset_imports.get("", 1)
        # The values from which each is computed element by element, from the first to itself.
        self._paths: dict[ir.Value, tuple[ir.Value, ...]] = {}
        self._readers: dict[ir.Node, Layer] = {}
        self._bent: dict[ir.Value, Layer] = {}
        for node in model.graph:
            if node in inside and node not in layers:
                reason = self._visit(node)
                if reason:
                    self.left[node] = reason
        bent = {layer.node: layer for layer in self._bent.values()}
        self.layers = list({**bent, **self._readers}.values())

    def _visit(self, node: ir.Node) -> str:
        """Find out what a node needs; why it stays, or ""."""
        values = varying_inputs(node)
        if not node.domain and node.op_type in RESHAPING:
            values = values[:1]  # the sizes that a graph computes are integers
        if any(value.dtype != ir.DataType.FLOAT for value in values):
            return "it computes in other types than float32"
        if self._is_single(node):
            return self._single(node, values)
        effect = effect_of(node, self._opset)
        if effect is Effect.AVERAGE or (not node.domain and node.op_type == "ReduceSum"):
            return self._reduces(node)
        if not node.domain and node.op_type == "Concat":
            return self._reads(node, values)
        return "" if keeps_codes(node) else _FOREIGN

    def _is_single(self, node: ir.Node) -> bool:
        single = effect_of(node, self._opset) in _SINGLE or is_identity(node, self._opset)
        normal = not node.domain and node.op_type == "BatchNormalization"
        return len(node.outputs) == 1 and (single or normal)

    def _single(self, node: ir.Node, values: list[ir.Value]) -> str:
        y, paths = node.outputs[0], [self._path(value) for value in values]
        if len(values) == 1:
            self._paths[y] = (*paths[0], y)
            if not is_monotone([node], values[0]):
                self._bend(y, values[0], node)
            return ""
        if len(values) > 2:
            return "it has more than two inputs"
        common = [one for one, other in zip(*paths, strict=False) if one is other]
        if not common:
            return self._reads(node, values)
        # Functions of one tensor that come together are one function of that.
        for value in (*paths[0][len(common) :], *paths[1][len(common) :]):
            self._bent.pop(value, None)
        self._paths[y] = (*common, y)
        reader = next(each for each, _ in common[-1].uses() if each in self._between(common[-1], y))
        self._bend(y, common[-1], reader)
        return ""

    def _between(self, x: ir.Value, y: ir.Value) -> set[ir.Node]:
        """The nodes that compute one value from another."""
        found, ahead = set(), [y]
        while ahead:
            value = ahead.pop()
            node = value.producer()
            if value is not x and node is not None and node not in found:
                found.add(node)
                ahead += varying_inputs(node)
        return found

    def _path(self, value: ir.Value) -> tuple[ir.Value, ...]:
        return self._paths.get(value, (value,))

    def _bend(self, y: ir.Value, x: ir.Value, node: ir.Node) -> None:
        """Let x be codes for a function of it, unless it is a function of a pair of codes."""
        if self._path(x)[0].producer() not in self._readers or self._is_mean(x):
            at = next(place for place, value in enumerate(node.inputs) if value is x)
            self._bent[y] = Layer(node, (at,), ())

    def _is_mean(self, x: ir.Value) -> bool:
        node = self._path(x)[0].producer()
        return node is not None and effect_of(node) is Effect.AVERAGE

    def _reduces(self, node: ir.Node) -> str:
        """Quantize the first input; axes, as an attribute or as a second input, are no operand."""
        x = node.inputs[0] if node.inputs else None
        if x is None or is_constant(x):
            return "its input is constant"
        self._readers[node] = Layer(node, (0,), ())
        return ""

    def _reads(self, node: ir.Node, values: list[ir.Value]) -> str:
        if any(value is not None and value not in values for value in node.inputs[:2]):
            return "one of its inputs is constant"
        places = tuple(place for place, value in enumerate(node.inputs) if value in values)
        self._readers[node] = Layer(node, places, ())
        return ""


def keeps_codes(node: ir.Node) -> bool:
    """Whether what comes out of a node has the codes of what goes in, whatever the codes are."""
    if not is_move(node) or (node.op_type == "MaxPool" and len(node.outputs) > 1):
        return False
    match node.op_type:
        case "Resize" | "Upsample":
            return bool(attribute_of(node, "mode", "nearest") == "nearest")
        case "Pad":
            filled = node.inputs[2] if len(node.inputs) > 2 else None
            zero = filled is None or (is_constant(filled) and not array_of(filled).any())
            return attribute_of(node, "mode", "constant") == "constant" and zero
    return True


def grouped(
    placement: Placement, wanted: Collection[Layer]
) -> tuple[tuple[Source, ...], dict[str, str]]:
    """The tensors that layers read as codes, one grid each, with what moves behind the quantizers.

    And what stays float because its tensors would need several grids, and why.
    """
    if not placement.inside:
        return sources_of(wanted), {}
    joins = {layer.node for layer in wanted if layer.node.op_type == "Concat"}
    divided: dict[str, str] = {}
    while True:
        anchors = _Anchors(placement.inside, joins)
        groups = _groups(wanted, anchors)
        torn = [each for each in groups if not anchors.covers(each)]
        if not torn:
            break
        for group in torn:
            for node in anchors.joins_of(group):
                joins.discard(node)
                divided[label_of(node)] = _REPEATED
    kept = {layer.node for layer in placement.layers} - {layer.node for layer in wanted}
    return tuple(_placed(each, placement.inside - kept) for each in groups), divided


class _Anchors:
    """From where elements only move to a value: there quantizers stand."""

    def __init__(self, inside: Collection[ir.Node], joins: Collection[ir.Node]) -> None:
        self._inside, self._joins = inside, joins
        self._known: dict[ir.Value, tuple[ir.Value, ...]] = {}

    def __call__(self, value: ir.Value) -> tuple[ir.Value, ...]:
        """The tensors that are quantized for a value to be codes."""
        ahead = [value]
        while ahead:
            each = ahead[-1]
            missing = [x for x in self._before(each) if x not in self._known]
            if missing:
                ahead += missing
                continue
            found = [at for x in self._before(each) for at in self._known[x]]
            self._known[ahead.pop()] = tuple(dict.fromkeys(found)) or (each,)
        return self._known[value]

    def _before(self, value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        if node is None or node not in self._inside or not keeps_codes(node):
            return []
        if node.op_type == "Concat":
            return varying_inputs(node) if node in self._joins else []
        return [x for x in node.inputs[:1] if x is not None]

    def together(self, layer: Layer) -> tuple[ir.Value, ...]:
        """What a layer puts together."""
        return self(layer.node.outputs[0]) if layer.node in self._joins else ()

    def covers(self, source: Source) -> list[ir.Value]:
        """The values that hold all elements of a group."""
        wanted = {value for value, _ in source.anchors}
        joined = [node.outputs[0] for node in self.joins_of(source)]
        values = [*wanted, *joined] if len(wanted) == 1 else joined
        return [value for value in values if set(self(value)) == wanted]

    def joins_of(self, source: Source) -> list[ir.Node]:
        """What puts tensors of a group together."""
        wanted = {value for value, _ in source.anchors}
        return [node for node in self._joins if not wanted.isdisjoint(self(node.outputs[0]))]


def _groups(wanted: Iterable[Layer], anchors: "_Anchors") -> list[Source]:
    """Sources whose anchors have one grid; who reads which of these is still open."""
    groups: Groups[ir.Value] = Groups()
    members: dict[ir.Value, list[tuple[Layer, int]]] = {}
    values = {}
    for layer in wanted:
        for index in layer.activations:
            value = layer.node.inputs[index]
            assert value is not None, "asked before"
            values[layer, index] = value
            for each in (*anchors(value), *anchors.together(layer)):
                groups.join(anchors(value)[0], each)
    for read, value in values.items():
        members.setdefault(groups.root(anchors(value)[0]), []).append(read)
    found = []
    for readers in members.values():
        all_of_them = dict.fromkeys(at for read in readers for at in anchors(values[read]))
        source = Source(
            next(iter(all_of_them)), readers, tuple((value, ()) for value in all_of_them)
        )
        covers = anchors.covers(source)
        found.append(replace(source, value=covers[0]) if covers else source)
    return found


def _placed(source: Source, inside: Collection[ir.Node]) -> Source:
    """A source with the readers of each of its anchors; a plain one where that says no more.

    What is computed from two tensors is none: scaled by channels, it would need a table for each.
    """
    read = {(layer.node, index) for layer, index in source.readers}
    anchors = tuple(
        (
            value,
            tuple(
                (node, index)
                for node, index in value.uses()
                if (node, index) in read or node in inside
            ),
        )
        for value, _ in source.anchors
    )
    plain = [value for value, _ in anchors] == [source.value] and set(anchors[0][1]) == read
    return replace(source, anchors=() if plain and not _is_of_two(source.value) else anchors)


def _is_of_two(value: ir.Value) -> bool:
    """Whether a value is computed from two others, by something that has one input or two."""
    while (node := value.producer()) is not None and effect_of(node) in _SINGLE:
        values = varying_inputs(node)
        if len(values) != 1:
            return True
        (value,) = values
    return False
