# SPDX-License-Identifier: Apache-2.0
"""Which layer gets which quantizers: words for all of them, and for some by name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.name_patterns import match_names
from anybit.onnx.graph.names import all_names_of
from anybit.onnx.graph.walk import nodes_in
from anybit.ptq.algorithms.shared_weights import constants_of, linked
from anybit.ptq.graph.quantizer_sites import tie_grids
from anybit.ptq.graph.targets import ActivationTensor, TargetNode, Targets
from anybit.quant_types.block_formats import BlockFormat
from anybit.quant_types.spec import QuantSpec, parse_quant_spec
from anybit.text import listed, shown

FLOAT = "float"
"""The word for what gets no quantizer."""


Pair: TypeAlias = tuple[QuantSpec | None, QuantSpec | None]


@dataclass(frozen=True)
class Plan:
    """Schemes for all that is to be quantized.

    Attributes:
        layers: The layers of which something is, in order.
        weights: The scheme of the weights of layers; those that are not named stay.
        activations: The scheme of the tensors that layers read.
        named: Layers that were asked for by name.
        left: Layers that keep their floats, and why.
        remarks: What became of wishes that contradict one another.
    """

    layers: tuple[TargetNode, ...]
    weights: Mapping[TargetNode, QuantSpec]
    activations: Mapping[ActivationTensor, QuantSpec]
    named: frozenset[TargetNode]
    left: Mapping[str, str]
    remarks: tuple[str, ...]


def plan(
    model: ir.Model,
    placement: Targets,
    everywhere: tuple[str, str],
    by_layer: Mapping[str, str],
    keep: Sequence[str],
    power_of_two: bool = False,
) -> Plan:
    """What becomes of each layer.

    Args:
        model: The model.
        placement: Its layers.
        everywhere: Words for weights and for activations.
        by_layer: By name or pattern words for weights, or for both with a slash between. Later
            ones win.
        keep: Names or patterns of nodes that keep their floats, whatever else is said.
        power_of_two: Whether all scales are powers of two.

    Raises:
        ModelError: Words that are not known, or a pattern that matches nothing.
    """
    layers = placement.layers
    found = dict.fromkeys(layers, _pair(*everywhere, ""))
    named: set[TargetNode] = set()
    for pattern, words in by_layer.items():
        these = [layers[index] for index in sorted(_matching(pattern, layers, "layers"))]
        _name(found, these, pattern, words)
        named.update(these)
    for index in _kept(model, layers, keep):
        found[layers[index]] = (None, None)
    if power_of_two:
        found = {layer: (_rounded(pair[0]), _rounded(pair[1])) for layer, pair in found.items()}
    weights = {layer: pair[0] for layer, pair in found.items() if layer.weights and pair[0]}
    wishes = {layer: pair[1] for layer, pair in found.items() if pair[1]}
    weights, remarks = _in_common(weights)
    sources, divided = tie_grids(placement, wishes)
    activations, others = _agreed(sources, wishes)
    quantized = tuple(layer for layer in layers if layer in weights or layer in wishes)
    left = placement.skipped | divided
    for layer in layers:
        if layer not in quantized:
            kept = found[layer] == (None, None)
            left[layer.name] = "it was to be kept" if kept else "it multiplies activations alone"
    remarks = [*placement.remarks, *remarks, *others]
    return Plan(quantized, weights, activations, frozenset(named), left, tuple(remarks))


def _pair(weights: str, activations: str, where: str) -> Pair:
    try:
        return (
            None if weights == FLOAT else parse_quant_spec(weights, "weights"),
            None if activations == FLOAT else parse_quant_spec(activations, "activations"),
        )
    except ModelError as error:
        raise ModelError(f"{where}{error}") from None


def _rounded(of: QuantSpec | None) -> QuantSpec | None:
    """The same with scales that are powers of two."""
    if of is None:
        return None
    if not isinstance(of.format, BlockFormat):
        return replace(of, power_of_two=True)
    if of.format.second_scale:
        raise ModelError(f"scales: those of {of.format} are not powers of two; say mxfp4")
    return of


def _name(
    found: dict[TargetNode, Pair], layers: Sequence[TargetNode], pattern: str, words: str
) -> None:
    """Give these layers what was said for their pattern."""
    if not isinstance(words, str):
        raise ModelError(f'layers: {pattern!r}: say words like "int4/uint8", not {words!r}')
    of_weights, both, of_activations = words.partition("/")
    pair = _pair(of_weights, of_activations if both else FLOAT, f"layers: {pattern!r}: ")
    if not both and pair[0] and not any(layer.weights for layer in layers):
        raise ModelError(
            f'layers: {pattern!r} has no weights; say "{FLOAT}/{words}" for its activations'
        )
    for layer in layers:
        found[layer] = pair if both or pair[0] is None else (pair[0], found[layer][1])


def _kept(model: ir.Model, layers: Sequence[TargetNode], keep: Sequence[str]) -> set[int]:
    """The layers that a pattern matches. It may match other nodes, which keep floats anyhow."""
    own = {layer.node for layer in layers}
    others = [all_names_of(node) for node in nodes_in(model.graph) if node not in own]
    found: set[int] = set()
    for pattern in keep:
        found |= _matching(pattern, layers, "keep", others)
    return {index for index in found if index < len(layers)}


def _matching(
    pattern: str, layers: Sequence[TargetNode], where: str, others: Sequence[Sequence[str]] = ()
) -> set[int]:
    try:
        names = [*(all_names_of(layer.node) for layer in layers), *others]
        return match_names(pattern, names, where)
    except ValueError as error:
        raise ModelError(str(error)) from None


def _in_common(
    weights: Mapping[TargetNode, QuantSpec],
) -> tuple[dict[TargetNode, QuantSpec], list[str]]:
    """One scheme per constant that layers multiply: the widest that one of them asks for."""
    found, remarks = dict(weights), []
    for layers in linked(weights, constants_of):
        spec, remark = _widest(
            str(constants_of(layers[0])[0].name), {layer: weights[layer] for layer in layers}
        )
        found.update(dict.fromkeys(layers, spec))
        remarks += remark
    return found, remarks


def _agreed(
    sources: Iterable[ActivationTensor], wishes: Mapping[TargetNode, QuantSpec]
) -> tuple[dict[ActivationTensor, QuantSpec], list[str]]:
    """One scheme per tensor: the widest that a reader asks for."""
    found, remarks = {}, []
    for source in sources:
        asked = {layer: wishes[layer] for layer, _ in source.readers}
        found[source], remark = _widest(str(source.value.name), asked)
        remarks += remark
    return found, remarks


def _widest(name: str, asked: Mapping[TargetNode, QuantSpec]) -> tuple[QuantSpec, list[str]]:
    """The widest of several schemes, the first of equal ones, and what there is to say of it."""
    found = max(asked.values(), key=lambda each: each.bits)
    if len({each.text for each in asked.values()}) == 1:
        return found, []
    several = listed(f"{shown(layer.name)} asks for {of.text}" for layer, of in asked.items())
    return found, [f"{shown(name)} gets {found.text}, the widest for what reads it: {several}"]
