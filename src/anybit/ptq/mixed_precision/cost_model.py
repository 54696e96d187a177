# SPDX-License-Identifier: Apache-2.0
"""Widths for each layer within a budget: what can be chosen, and what it costs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import onnx_ir as ir

from anybit.ptq.algorithms.shared_weights import bytes_of, constants_of, linked
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.mixed_precision.noise_model import (
    BASE,
    FLOAT_BITS,
    NoiseTable,
    at_width,
    changed,
    varied,
)
from anybit.ptq.mixed_precision.pareto import Assignment, Widths, front
from anybit.ptq.plan import QuantPlan
from anybit.quant_types.spec import QuantSpec

# Far more than any product of two widths.
_OUTWEIGHED = 2**20


@dataclass(frozen=True)
class Costs:
    """What widths cost.

    Attributes:
        macs: Multiplications of each layer.
        by_bytes: Whether bytes of weights count, or else operations on bits: multiplications times
            the widths of both factors.
        narrow_first: Whether operations on more than 8 bits, which no kernel for integers does, are
            avoided before anything else is.
    """

    macs: Mapping[TargetNode, int]
    by_bytes: bool
    narrow_first: bool

    def bops(self, wanted: QuantPlan) -> float:
        """Operations on bits of a whole plan."""
        return sum(
            self.macs[layer] * math.prod(self._widths(layer, wanted.weights.get(layer), others))
            for layer, others in read_widths(wanted).items()
        )

    def option(self, base: QuantPlan, picks: Widths, noises: NoiseTable) -> Assignment:
        """What a whole plan with these widths costs, and the noise that is expected of it."""
        plan = changed(base, picks)
        cost: float = bytes_of(plan.weights) if self.by_bytes else 0
        for layer, others in () if self.by_bytes else read_widths(plan).items():
            cost += self._of(layer, plan.weights.get(layer), others)
        return Assignment(cost, noises.total(plan), picks)

    def of(
        self,
        layers: Sequence[TargetNode],
        weights: QuantSpec | None,
        others: Mapping[TargetNode, Sequence[int]],
    ) -> float:
        """That of layers that share weights, and whose other factors have so many bits."""
        if self.by_bytes:
            return bytes_of(dict.fromkeys(layers, weights)) if weights else 0
        return sum(self._of(layer, weights, others[layer]) for layer in layers)

    def _of(self, layer: TargetNode, weights: QuantSpec | None, others: Sequence[int]) -> float:
        widths = self._widths(layer, weights, others)
        outweighed = self.narrow_first and max(widths) > BASE
        return self.macs[layer] * (_OUTWEIGHED if outweighed else math.prod(widths))

    def _widths(
        self, layer: TargetNode, weights: QuantSpec | None, others: Sequence[int]
    ) -> list[int]:
        own = [weights.bits if weights else FLOAT_BITS] if layer.weights else []
        return [*own, *others, FLOAT_BITS, FLOAT_BITS][:2]


def read_widths(wanted: QuantPlan) -> dict[TargetNode, list[int]]:
    """The widths of what each layer reads and quantizes."""
    found: dict[TargetNode, list[int]] = {layer: [] for layer in wanted.layers}
    for source, scheme in wanted.activations.items():
        for layer, _ in source.readers:
            found[layer].append(scheme.bits)
    return found


def parts(
    wanted: QuantPlan, noises: NoiseTable, costs: Costs, own_widths: int, least: int = BASE
) -> list[list[Assignment]]:
    """Return the options of each group: layers that read one tensor or share weights.

    Args:
        wanted: The plan at its base widths.
        noises: The noise of each width.
        costs: The cost of each width.
        own_widths: The most tensors of a group that may differ in width.
        least: The fewest bits of tensors.
    """
    free, free_activations = varied(wanted)
    if costs.by_bytes:
        free_activations = {}
    found = []
    for layers, sources in _groups(wanted):
        options: list[Assignment] = []
        possible = {
            each: [*_possible(noises.activations[each], least)]
            for each in sources
            if each in free_activations
        }
        for widths in _together(sources, wanted, possible, own_widths):
            own = sum(noises.activations[each][widths[each]] for each in sources)
            picks = tuple((each, widths[each]) for each in sources if each in free_activations)
            others = {
                layer: [widths[each] for each in sources if layer in dict(each.readers)]
                for layer in layers
            }
            of_layers = [
                list(_of_layers(each, wanted, others, noises, costs, each[0] in free))
                for each in linked(layers, partial(_weights, wanted))
            ]
            options += [Assignment(0.0, own, picks) + each for each in front(of_layers)]
        found.append(options)
    return found


def _of_layers(
    layers: Sequence[TargetNode],
    wanted: QuantPlan,
    others: Mapping[TargetNode, Sequence[int]],
    noises: NoiseTable,
    costs: Costs,
    are_free: bool,
) -> Iterator[Assignment]:
    """What layers can have that share weights, or of one."""
    scheme = wanted.weights.get(layers[0])
    if scheme is None or not are_free:
        fixed = [noises.weights[each][scheme.bits] for each in layers] if scheme else []
        yield Assignment(costs.of(layers, scheme, others), sum(fixed))
        return
    for bits in noises.weights[layers[0]]:
        noise = sum(noises.weights[each][bits] for each in layers)
        if noise < math.inf:
            picks = tuple((each, bits) for each in layers)
            yield Assignment(costs.of(layers, at_width(scheme, bits), others), noise, picks)


def _possible(noises: Mapping[int, float], least: int) -> Iterator[int]:
    """The widths that a tensor can have."""
    for bits, noise in noises.items():
        if bits >= BASE or (bits >= least and noise < math.inf):
            yield bits


def _together(
    sources: Sequence[ActivationTensor],
    wanted: QuantPlan,
    possible: Mapping[ActivationTensor, Sequence[int]],
    own_widths: int,
) -> Iterator[dict[ActivationTensor, int]]:
    """The widths that tensors of one group can have."""
    fixed = {each: wanted.activations[each].bits for each in sources}
    if len(possible) > own_widths:
        for bits in sorted(set.intersection(*map(set, possible.values()))):
            yield fixed | dict.fromkeys(possible, bits)
        return
    for widths in product(*possible.values()):
        yield fixed | dict(zip(possible, widths, strict=True))


def _groups(wanted: QuantPlan) -> list[tuple[list[TargetNode], list[ActivationTensor]]]:
    """Layers that share tensors or weights, directly or through others, with these, in order."""
    read: dict[TargetNode, list[ActivationTensor]] = {layer: [] for layer in wanted.layers}
    for source in wanted.activations:
        for layer, _ in source.readers:
            read[layer].append(source)

    def shared(layer: TargetNode) -> list[object]:
        return [*read[layer], *_weights(wanted, layer)]

    return [
        (layers, list(dict.fromkeys(each for layer in layers for each in read[layer])))
        for layers in linked(wanted.layers, shared)
    ]


def _weights(wanted: QuantPlan, layer: TargetNode) -> list[ir.Value]:
    """The constants of a layer that are quantized."""
    return constants_of(layer) if layer in wanted.weights else []
