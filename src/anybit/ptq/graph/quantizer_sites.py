# SPDX-License-Identifier: Apache-2.0
"""The tensors that are quantized in place of what nodes read, where elements only move between."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import onnx_ir as ir

from anybit.compiler.analyze.disjoint_sets import DisjointSets
from anybit.compiler.operators import varying_inputs
from anybit.onnx.graph.names import label_of
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.ptq.graph.integer_only import keeps_codes
from anybit.ptq.graph.targets import ActivationTensor, TargetNode, Targets, collect_activations

_SINGLE = OpTrait.ELEMENTWISE | OpTrait.RECTIFIER
_REPEATED = "the tensors that it puts together are put together with others elsewhere"


def tie_grids(
    placement: Targets, wanted: Collection[TargetNode]
) -> tuple[tuple[ActivationTensor, ...], dict[str, str]]:
    """The tensors that layers read as codes, one grid each, with what moves behind the quantizers.

    And what stays float because its tensors would need several grids, and why.
    """
    if not placement.integer_nodes:
        return collect_activations(wanted), {}
    joins = {layer.node for layer in wanted if layer.node.op_type == "Concat"}
    divided: dict[str, str] = {}
    while True:
        anchors = _QuantizerSites(placement.integer_nodes, joins)
        groups = _groups(wanted, anchors)
        torn = [each for each in groups if not anchors.covers(each)]
        if not torn:
            break
        for group in torn:
            for node in anchors.joins_of(group):
                joins.discard(node)
                divided[label_of(node)] = _REPEATED
    kept = {layer.node for layer in placement.layers} - {layer.node for layer in wanted}
    return tuple(_placed(each, placement.integer_nodes - kept) for each in groups), divided


class _QuantizerSites:
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

    def together(self, layer: TargetNode) -> tuple[ir.Value, ...]:
        """What a layer puts together."""
        return self(layer.node.outputs[0]) if layer.node in self._joins else ()

    def covers(self, source: ActivationTensor) -> list[ir.Value]:
        """The values that hold all elements of a group."""
        wanted = {value for value, _ in source.sites}
        joined = [node.outputs[0] for node in self.joins_of(source)]
        values = [*wanted, *joined] if len(wanted) == 1 else joined
        return [value for value in values if set(self(value)) == wanted]

    def joins_of(self, source: ActivationTensor) -> list[ir.Node]:
        """What puts tensors of a group together."""
        wanted = {value for value, _ in source.sites}
        return [node for node in self._joins if not wanted.isdisjoint(self(node.outputs[0]))]


def _groups(wanted: Iterable[TargetNode], anchors: _QuantizerSites) -> list[ActivationTensor]:
    """Sources whose anchors have one grid; who reads which of these is still open."""
    groups: DisjointSets[ir.Value] = DisjointSets()
    members: dict[ir.Value, list[tuple[TargetNode, int]]] = {}
    values = {}
    for layer in wanted:
        for index in layer.activations:
            value = layer.node.inputs[index]
            assert value is not None, "asked before"
            values[layer, index] = value
            for each in (*anchors(value), *anchors.together(layer)):
                groups.join(anchors(value)[0], each)
    for read, value in values.items():
        members.setdefault(groups.find(anchors(value)[0]), []).append(read)
    found = []
    for readers in members.values():
        all_of_them = dict.fromkeys(at for read in readers for at in anchors(values[read]))
        source = ActivationTensor(
            next(iter(all_of_them)), readers, tuple((value, ()) for value in all_of_them)
        )
        covers = anchors.covers(source)
        found.append(replace(source, value=covers[0]) if covers else source)
    return found


def _placed(source: ActivationTensor, inside: Collection[ir.Node]) -> ActivationTensor:
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
        for value, _ in source.sites
    )
    plain = [value for value, _ in anchors] == [source.value] and set(anchors[0][1]) == read
    return replace(source, sites=() if plain and not _is_of_two(source.value) else anchors)


def _is_of_two(value: ir.Value) -> bool:
    """Whether a value is computed from two others, by something that has one input or two."""
    while (node := value.producer()) is not None and has_trait(node, _SINGLE):
        values = varying_inputs(node)
        if len(values) != 1:
            return True
        (value,) = values
    return False
