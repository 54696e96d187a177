# SPDX-License-Identifier: Apache-2.0
"""Sites of quantizers in integer-only networks: before the data movement that leads to a reader."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import onnx_ir as ir

from anybit.compiler.analyze.disjoint_sets import DisjointSets
from anybit.compiler.operators import get_varying_inputs
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.ptq.graph.integer_only import is_moved_input, keeps_codes
from anybit.ptq.graph.targets import (
    ActivationTensor,
    TargetNode,
    Targets,
    collect_activations,
)
from anybit.text import escape_name

_ONE_OR_TWO_INPUTS = OpTrait.ELEMENTWISE | OpTrait.RECTIFIER


def tie_grids(
    targets: Targets, quantized: Collection[TargetNode]
) -> tuple[tuple[ActivationTensor, ...], tuple[str, ...]]:
    """Return the activations of layers, with a common grid for tensors that are concatenated.

    Args:
        targets: Targets of the model.
        quantized: Layers whose activations are quantized.

    Returns:
        The activations with the sites of their quantizers; and remarks on Concat nodes whose
        inputs have several grids, since other nodes concatenate them with other tensors.
    """
    if not targets.integer_nodes:
        return collect_activations(quantized), ()
    concats = {layer.node for layer in quantized if layer.node.op_type == "Concat"}
    order = {layer.node: place for place, layer in enumerate(targets.layers)}
    remarks: list[str] = []
    while True:
        sites = _QuantizerSites(targets.integer_nodes, concats)
        tensors = _group_by_grid(quantized, sites)
        divided = [tensor for tensor in tensors if not sites.find_wholes(tensor)]
        if not divided:
            break
        for tensor in divided:
            last = max(sites.find_concats(tensor), key=order.__getitem__)
            concats.discard(last)
            remarks.append(
                f"{escape_name(get_label(last))} rounds twice: its inputs keep grids of their own, "
                "because another node concatenates one of them with other tensors"
            )
    floats = {layer.node for layer in targets.layers} - {layer.node for layer in quantized}
    nodes = targets.integer_nodes - floats
    return tuple(_assign_uses(tensor, nodes) for tensor in tensors), tuple(remarks)


def keep_input_scales(tensors: Iterable[ActivationTensor]) -> tuple[ActivationTensor, ...]:
    """Return the activations; the elements of inputs of the model are not scaled per channel."""
    return tuple(
        replace(tensor, smooth=False) if is_moved_input(tensor.value) else tensor
        for tensor in tensors
    )


class _QuantizerSites:
    """Tensors from which only data movement leads to a value: quantizers stand there."""

    def __init__(self, nodes: Collection[ir.Node], concats: Collection[ir.Node]) -> None:
        self._nodes, self._concats = nodes, concats
        self._sites: dict[ir.Value, tuple[ir.Value, ...]] = {}

    def __call__(self, value: ir.Value) -> tuple[ir.Value, ...]:
        """Return the tensors that are quantized so that a value consists of codes."""
        waiting = [value]
        while waiting:
            last = waiting[-1]
            inputs = self._get_moved_inputs(last)
            missing = [x for x in inputs if x not in self._sites]
            if missing:
                waiting += missing
                continue
            sites = [site for x in inputs for site in self._sites[x]]
            self._sites[waiting.pop()] = tuple(dict.fromkeys(sites)) or (last,)
        return self._sites[value]

    def _get_moved_inputs(self, value: ir.Value) -> list[ir.Value]:
        """Return the inputs whose elements the producer of a value moves."""
        node = value.producer()
        if node is None or node not in self._nodes or not keeps_codes(node):
            return []
        if node.op_type == "Concat":
            return get_varying_inputs(node) if node in self._concats else []
        return [x for x in node.inputs[:1] if x is not None]

    def get_concatenated(self, layer: TargetNode) -> tuple[ir.Value, ...]:
        """Return the sites of a Concat; none for other layers."""
        return self(layer.node.outputs[0]) if layer.node in self._concats else ()

    def find_wholes(self, tensor: ActivationTensor) -> list[ir.Value]:
        """Return the values that contain all elements of the sites of a tensor."""
        sites = {value for value, _ in tensor.sites}
        outputs = [node.outputs[0] for node in self.find_concats(tensor)]
        values = [*sites, *outputs] if len(sites) == 1 else outputs
        return [value for value in values if set(self(value)) == sites]

    def find_concats(self, tensor: ActivationTensor) -> list[ir.Node]:
        """Return the Concat nodes that have a site of a tensor."""
        sites = {value for value, _ in tensor.sites}
        return [node for node in self._concats if not sites.isdisjoint(self(node.outputs[0]))]


def _group_by_grid(layers: Iterable[TargetNode], sites: _QuantizerSites) -> list[ActivationTensor]:
    """Return the activations of layers, one for each grid; the uses of sites are left empty."""
    groups: DisjointSets[ir.Value] = DisjointSets()
    values: dict[tuple[TargetNode, int], ir.Value] = {}
    for layer in layers:
        for index, value in layer.activation_values:
            values[layer, index] = value
            for site in (*sites(value), *sites.get_concatenated(layer)):
                groups.join(sites(value)[0], site)
    members: dict[ir.Value, list[tuple[TargetNode, int]]] = {}
    for reader, value in values.items():
        members.setdefault(groups.find(sites(value)[0]), []).append(reader)
    tensors = []
    for readers in members.values():
        grouped = dict.fromkeys(site for reader in readers for site in sites(values[reader]))
        tensor = ActivationTensor(
            next(iter(grouped)), readers, tuple((site, ()) for site in grouped)
        )
        wholes = sites.find_wholes(tensor)
        tensors.append(replace(tensor, value=wholes[0]) if wholes else tensor)
    return tensors


def _assign_uses(tensor: ActivationTensor, nodes: Collection[ir.Node]) -> ActivationTensor:
    """Return a tensor with the uses of its sites, or without sites where it is its only one.

    A tensor that is computed from two others keeps its site: SmoothQuant would need a table for
    each channel.
    """
    readers = {(layer.node, index) for layer, index in tensor.readers}
    sites = tuple(
        (
            value,
            tuple(
                (node, index)
                for node, index in value.uses()
                if (node, index) in readers or node in nodes
            ),
        )
        for value, _ in tensor.sites
    )
    is_only_site = [value for value, _ in sites] == [tensor.value] and set(sites[0][1]) == readers
    is_plain = is_only_site and not _is_function_of_two(tensor.value)
    return replace(tensor, sites=() if is_plain else sites)


def _is_function_of_two(value: ir.Value) -> bool:
    """Return whether a value is an elementwise function of two computed tensors."""
    while (node := value.producer()) is not None and has_trait(node, _ONE_OR_TWO_INPUTS):
        values = get_varying_inputs(node)
        if len(values) != 1:
            return True
        (value,) = values
    return False
