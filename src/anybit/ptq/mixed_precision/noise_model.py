# SPDX-License-Identifier: Apache-2.0
"""Widths of layers, and what they do to the outputs.

The noise of weights of b bits is modelled as their squared rounding error times the layer's own
factor, the geometric mean of what was measured at a few widths: what one width does to some samples
is luck. Errors of odd widths lie between those of their neighbours. What layers read is measured at
8 bits; 16 bits take 2^-16 of that, and 7 and 6 bits 2^2 and 2^4, unless it was measured at 4 bits,
too, where ranges are cut off: all between is on a line in decibels then. What has no effect on the
outputs in 8 bits, as in front of a curve that is flat there, says nothing of other data: it gets no
fewer bits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.parallel import Executor
from anybit.ptq.algorithms.shared_weights import constants_of, linked
from anybit.ptq.config import SensitivityConfig
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.mixed_precision.pareto import Widths
from anybit.ptq.mixed_precision.sensitivity import ProbeSpec, SensitivityProbe, answers
from anybit.ptq.plan import QuantPlan
from anybit.quant_types.spec import QuantSpec
from anybit.quant_types.spec_parser import IntegerFormat

FLOAT_BITS = 32
BASE = 8
"""The width at which tensors that layers multiply are measured."""
WIDTHS = (2, 3, 4, 5, 6, 7, 8, 16)
ACTIVATIONS = (8, 16)
NARROW = 4
"""The fewest bits that they get, where operations on bits are few."""
_EVEN = (8, 6, 4, 2)


@dataclass(frozen=True)
class NoiseTable:
    """Noise over signal of the worst output, as powers, that one tensor alone is the reason for.

    Attributes:
        weights: Of the weights of each layer, by width; of those that several layers share, an
            equal part.
        activations: Of each tensor that layers multiply, by width.
    """

    weights: Mapping[TargetNode, Mapping[int, float]]
    activations: Mapping[ActivationTensor, Mapping[int, float]]

    def total(self, wanted: QuantPlan) -> float:
        """That of all of them, as powers add."""
        return sum(
            self.weights[layer][scheme.bits] for layer, scheme in wanted.weights.items()
        ) + sum(self.activations[source][each.bits] for source, each in wanted.activations.items())

    def of(self, layer: TargetNode, wanted: QuantPlan) -> float:
        """That of a layer: of its weights, and of what it reads."""
        read = [source for source in wanted.activations if layer in dict(source.readers)]
        found = sum(self.activations[each][wanted.activations[each].bits] for each in read)
        if layer in wanted.weights:
            found += self.weights[layer][wanted.weights[layer].bits]
        return found


def at_width(scheme: QuantSpec, bits: int) -> QuantSpec:
    """The same with other integers."""
    assert isinstance(scheme.format, IntegerFormat), "asked before"
    kind = IntegerFormat(bits, scheme.format.signed)
    others = scheme.text.split()[1:]
    narrow = scheme.narrow and bits > 1
    return replace(scheme, format=kind, text=" ".join([str(kind), *others]), narrow=narrow)


def varied(
    wanted: QuantPlan,
) -> tuple[dict[TargetNode, QuantSpec], dict[ActivationTensor, QuantSpec]]:
    """The schemes whose widths a budget may change: integers that nobody asked for by name.

    Raises:
        ModelError: There are none.
    """
    weights = {
        layer: wanted.weights[layer]
        for layers in linked(wanted.weights, constants_of)
        for layer in layers
        if wanted.named.isdisjoint(layers)
        and isinstance(wanted.weights[layer].format, IntegerFormat)
    }
    activations = {
        source: each
        for source, each in wanted.activations.items()
        if isinstance(each.format, IntegerFormat)
        and not any(layer in wanted.named for layer, _ in source.readers)
    }
    if not weights:
        raise ModelError(
            "a budget chooses the widths of integers, and no weights are; say --weights int8"
        )
    return weights, activations


def changed(wanted: QuantPlan, picks: Widths) -> QuantPlan:
    """The plan with these widths."""
    weights, activations = dict(wanted.weights), dict(wanted.activations)
    for what, bits in picks:
        if isinstance(what, ActivationTensor):
            activations[what] = at_width(activations[what], bits)
        else:
            weights[what] = at_width(weights[what], bits)
    return replace(wanted, weights=weights, activations=activations)


def measured(
    executor: Executor,
    model: ir.Model,
    probed: ProbeSpec,
    wanted: QuantPlan,
    enough: float | None,
    progress: Callable[[float], None],
    least: int = BASE,
) -> NoiseTable:
    """The noise of each layer and tensor at the widths that it may have.

    Widths at which weights alone are expected to make as much as is `enough` are not measured; if
    that is None, none but the plan's. Tensors that layers multiply have `least` bits at least.
    """
    free, free_activations = ({}, {}) if enough is None else varied(wanted)
    groups = linked(wanted.weights, constants_of)
    questions = [
        partial(
            _of_widths,
            layers=layers,
            scheme=wanted.weights[layers[0]],
            enough=enough if layers[0] in free else None,
            config=probed.config.sensitivity,
        )
        for layers in groups
    ]
    of_sources, of_groups = answers(executor, model, probed, questions, progress)
    activations = {}
    for source, (noise, *narrow) in of_sources.items():
        base = wanted.activations[source].bits
        if source not in free_activations:
            activations[source] = {base: noise}
            continue
        wide = {bits: noise * 4.0 ** (base - bits) for bits in sorted({*ACTIVATIONS, base})}
        activations[source] = in_fewer_bits(noise, narrow, least) | wide
    weights: dict[TargetNode, dict[int, float]] = {}
    for layers, noises in zip(groups, of_groups, strict=True):
        part = {bits: noise / len(layers) for bits, noise in noises.items()}
        weights.update(dict.fromkeys(layers, part))
    return NoiseTable(weights, activations)


def in_fewer_bits(noise: float, narrow: Sequence[float], least: int) -> dict[int, float]:
    """The noise of a tensor in fewer bits than 8, by that of 8, and of the least if known."""
    at_least = max(noise, *narrow) if narrow else noise * 4.0 ** (BASE - least)
    noise = noise or at_least * 4.0 ** (least - BASE)
    if not noise:
        return dict.fromkeys(range(least, BASE), math.inf)
    return {
        bits: noise * (at_least / noise) ** ((BASE - bits) / (BASE - least))
        for bits in range(least, BASE)
    }


def _of_widths(
    probe: SensitivityProbe,
    layers: Sequence[TargetNode],
    scheme: QuantSpec,
    enough: float | None,
    config: SensitivityConfig,
) -> dict[int, float]:
    """The noise of weights by their width; of their own alone if `enough` is None."""
    if enough is None:
        return {scheme.bits: probe.of_weights(layers, scheme)[0]}
    errors: dict[int, float] = {}
    factors: list[float] = []
    for bits in config.weight_widths:
        noise, errors[bits] = probe.of_weights(layers, at_width(scheme, bits))
        if not noise and bits == BASE:
            return {each: 0.0 if each >= BASE else math.inf for each in WIDTHS}
        if noise and errors[bits] and (noise < config.too_much or not factors):
            factors.append(math.log(noise / errors[bits]))
        if noise * config.next_width >= enough:
            break
    for bits in _EVEN:
        if bits not in errors:
            errors[bits] = probe.error(layers, at_width(scheme, bits))
    for bits in WIDTHS:
        if bits > BASE:
            errors[bits] = errors[BASE] * 4.0 ** (BASE - bits)
        elif bits not in errors:
            errors[bits] = math.sqrt(errors[bits - 1] * errors[bits + 1])
    factor = math.exp(sum(factors) / len(factors)) if factors else 0.0
    return {bits: error * factor for bits, error in errors.items()}
