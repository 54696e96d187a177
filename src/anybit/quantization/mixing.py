# SPDX-License-Identifier: Apache-2.0
"""Widths for each layer within a budget: what can be chosen, and what it costs.

The noise of weights of b bits is modelled as their squared rounding error times the layer's own
factor, the geometric mean of what was measured at a few widths: what one width does to some samples
is luck. Errors of odd widths lie between those of their neighbours. What layers read is measured at
8 bits; 16 bits take 2^-16 of that. Weights whose rounding to 8 bits the outputs do not notice, as
in front of a curve that is flat there, say nothing of other data: they get no fewer bits.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.quantization.knapsack import Option, Picks, front
from anybit.quantization.latency import Latency
from anybit.quantization.placement import Layer, Source
from anybit.quantization.plan import Plan
from anybit.quantization.schemes import Scheme
from anybit.quantization.sensitivity import Probe, Probed, answers
from anybit.quantization.weights import stored_bytes
from anybit.words.grammar import Integers
from anybit.workers import Workers

FLOAT_BITS = 32
BASE = 8
"""The width at which tensors that layers multiply are measured."""
WIDTHS = (2, 3, 4, 5, 6, 7, 8, 16)
_ACTIVATIONS = (8, 16)
_EVEN = (8, 6, 4, 2)
_MEASURED = (8, 6, 4)
# By how much the noise grows from one to the next.
_NEXT = 16
# A network whose outputs have so much noise is not near the float one, where powers add.
TOO_MUCH = 0.1
# Far more than any product of two widths.
_OUTWEIGHED = 2**20
# Groups of more tensors than this have one width for all of them.
_MOST_TENSORS = 4


@dataclass(frozen=True)
class Noises:
    """Noise over signal of the worst output, as powers, that one tensor alone is the reason for.

    Attributes:
        weights: Of the weights of each layer, by width.
        activations: Of each tensor that layers multiply, by width.
    """

    weights: Mapping[Layer, Mapping[int, float]]
    activations: Mapping[Source, Mapping[int, float]]

    def total(self, wanted: Plan) -> float:
        """That of all of them, as powers add."""
        return sum(
            self.weights[layer][scheme.bits] for layer, scheme in wanted.weights.items()
        ) + sum(self.activations[source][each.bits] for source, each in wanted.activations.items())

    def of(self, layer: Layer, wanted: Plan) -> float:
        """That of a layer: of its weights, and of what it reads."""
        read = [source for source in wanted.activations if layer in dict(source.readers)]
        found = sum(self.activations[each][wanted.activations[each].bits] for each in read)
        if layer in wanted.weights:
            found += self.weights[layer][wanted.weights[layer].bits]
        return found


def at_width(scheme: Scheme, bits: int) -> Scheme:
    """The same with other integers."""
    assert isinstance(scheme.kind, Integers), "asked before"
    kind = Integers(bits, scheme.kind.signed)
    others = scheme.words.split()[1:]
    narrow = scheme.narrow and bits > 1
    return replace(scheme, kind=kind, words=" ".join([str(kind), *others]), narrow=narrow)


def varied(wanted: Plan) -> tuple[dict[Layer, Scheme], dict[Source, Scheme]]:
    """The schemes whose widths a budget may change: integers that nobody asked for by name.

    Raises:
        ModelError: There are none.
    """
    weights = {
        layer: each
        for layer, each in wanted.weights.items()
        if layer not in wanted.named and isinstance(each.kind, Integers)
    }
    activations = {
        source: each
        for source, each in wanted.activations.items()
        if isinstance(each.kind, Integers)
        and not any(layer in wanted.named for layer, _ in source.readers)
    }
    if not weights:
        raise ModelError(
            "a budget chooses the widths of integers, and no weights are; say --weights int8"
        )
    return weights, activations


def changed(wanted: Plan, picks: Picks) -> Plan:
    """The plan with these widths."""
    weights, activations = dict(wanted.weights), dict(wanted.activations)
    for what, bits in picks:
        if isinstance(what, Source):
            activations[what] = at_width(activations[what], bits)
        else:
            weights[what] = at_width(weights[what], bits)
    return replace(wanted, weights=weights, activations=activations)


def measured(
    workers: Workers,
    model: ir.Model,
    probed: Probed,
    wanted: Plan,
    enough: float | None,
    progress: Callable[[float], None],
) -> Noises:
    """The noise of each layer and tensor at the widths that it may have.

    Widths at which weights alone are expected to make as much as is `enough` are not measured; if
    that is None, none but the plan's.
    """
    free, free_activations = ({}, {}) if enough is None else varied(wanted)
    questions = [
        partial(_of_widths, layer=layer, scheme=scheme, enough=enough if layer in free else None)
        for layer, scheme in wanted.weights.items()
    ]
    of_sources, of_layers = answers(workers, model, probed, questions, progress)
    activations = {}
    for source, noise in of_sources.items():
        base = wanted.activations[source].bits
        widths = {*_ACTIVATIONS, base} if source in free_activations else {base}
        activations[source] = {bits: noise * 4.0 ** (base - bits) for bits in widths}
    return Noises(dict(zip(wanted.weights, of_layers, strict=True)), activations)


def _of_widths(
    probe: Probe, layer: Layer, scheme: Scheme, enough: float | None
) -> dict[int, float]:
    """The noise of the weights of a layer by their width; of its own alone if `enough` is None."""
    if enough is None:
        return {scheme.bits: probe.of_weights(layer, scheme)[0]}
    errors: dict[int, float] = {}
    factors: list[float] = []
    for bits in _MEASURED:
        noise, errors[bits] = probe.of_weights(layer, at_width(scheme, bits))
        if not noise and bits == BASE:
            return {each: 0.0 if each >= BASE else math.inf for each in WIDTHS}
        if noise and errors[bits] and (noise < TOO_MUCH or not factors):
            factors.append(math.log(noise / errors[bits]))
        if noise * _NEXT >= enough:
            break
    for bits in _EVEN:
        if bits not in errors:
            errors[bits] = probe.error(layer, at_width(scheme, bits))
    for bits in WIDTHS:
        if bits > BASE:
            errors[bits] = errors[BASE] * 4.0 ** (BASE - bits)
        elif bits not in errors:
            errors[bits] = math.sqrt(errors[bits - 1] * errors[bits + 1])
    factor = math.exp(sum(factors) / len(factors)) if factors else 0.0
    return {bits: error * factor for bits, error in errors.items()}


@dataclass(frozen=True)
class Costs:
    """What widths cost.

    Attributes:
        macs: Multiplications of each layer.
        by_bytes: Whether bytes of weights count, or else operations on bits: multiplications times
            the widths of both factors.
        narrow_first: Whether operations on more than 8 bits, which no kernel for integers does, are
            avoided before anything else is.
        latency: Where seconds count instead, those of all layers.
    """

    macs: Mapping[Layer, int]
    by_bytes: bool
    narrow_first: bool
    latency: Latency | None = None

    def bops(self, wanted: Plan) -> float:
        """Operations on bits of a whole plan."""
        return sum(
            self.macs[layer] * math.prod(self._widths(layer, wanted.weights.get(layer), others))
            for layer, others in read_widths(wanted).items()
        )

    def option(self, base: Plan, picks: Picks, noises: Noises) -> Option:
        """What a whole plan with these widths costs, and the noise that is expected of it."""
        plan = changed(base, picks)
        widths = read_widths(plan)
        cost = sum(self.of(layer, plan.weights.get(layer), widths[layer]) for layer in widths)
        return Option(cost, noises.total(plan), picks)

    def of(self, layer: Layer, weights: Scheme | None, others: Sequence[int]) -> float:
        """That of a layer whose other factors have so many bits."""
        if self.by_bytes:
            return sum(stored_bytes(array, each, weights) for each, array in layer.constants)
        widths = self._widths(layer, weights, others)
        if self.latency is not None:
            return self.latency.of(layer, max(widths) if max(widths) > BASE else widths[0])
        outweighed = self.narrow_first and max(widths) > BASE
        return self.macs[layer] * (_OUTWEIGHED if outweighed else math.prod(widths))

    def _widths(self, layer: Layer, weights: Scheme | None, others: Sequence[int]) -> list[int]:
        own = [weights.bits if weights else FLOAT_BITS] if layer.weights else []
        return [*own, *others, FLOAT_BITS, FLOAT_BITS][:2]


def read_widths(wanted: Plan) -> dict[Layer, list[int]]:
    """The widths of what each layer reads and quantizes."""
    found: dict[Layer, list[int]] = {layer: [] for layer in wanted.layers}
    for source, scheme in wanted.activations.items():
        for layer, _ in source.readers:
            found[layer].append(scheme.bits)
    return found


def parts(wanted: Plan, noises: Noises, costs: Costs) -> list[list[Option]]:
    """What can be chosen, group by group: layers that read one tensor go together."""
    free, free_activations = varied(wanted)
    if costs.by_bytes:
        free_activations = {}
    found = []
    for layers, sources in _groups(wanted):
        options: list[Option] = []
        for widths in _together(sources, wanted, free_activations):
            own = sum(noises.activations[each][widths[each]] for each in sources)
            picks = tuple((each, widths[each]) for each in sources if each in free_activations)
            of_layers = []
            for layer in layers:
                others = [widths[each] for each in sources if layer in dict(each.readers)]
                options_of = _of_layer(layer, wanted, others, noises, costs, layer in free)
                of_layers.append(list(options_of))
            options += [Option(0.0, own, picks) + each for each in front(of_layers)]
        found.append(options)
    return found


def _of_layer(
    layer: Layer,
    wanted: Plan,
    others: Sequence[int],
    noises: Noises,
    costs: Costs,
    is_free: bool,
) -> Iterator[Option]:
    scheme = wanted.weights.get(layer)
    if scheme is None or not is_free:
        noise = 0.0 if scheme is None else noises.weights[layer][scheme.bits]
        yield Option(costs.of(layer, scheme, others), noise)
        return
    for bits, noise in noises.weights[layer].items():
        if noise < math.inf:
            yield Option(costs.of(layer, at_width(scheme, bits), others), noise, ((layer, bits),))


def _together(
    sources: Sequence[Source], wanted: Plan, free: Mapping[Source, Scheme]
) -> Iterator[dict[Source, int]]:
    """The widths that tensors of one group can have."""
    fixed = {each: wanted.activations[each].bits for each in sources}
    moved = [each for each in sources if each in free]
    if len(moved) > _MOST_TENSORS:
        for bits in _ACTIVATIONS:
            yield fixed | dict.fromkeys(moved, bits)
        return
    for widths in product(_ACTIVATIONS, repeat=len(moved)):
        yield fixed | dict(zip(moved, widths, strict=True))


def _groups(wanted: Plan) -> list[tuple[list[Layer], list[Source]]]:
    """Layers that share tensors, directly or through others, with these, in order."""
    group = {layer: index for index, layer in enumerate(wanted.layers)}
    for source in wanted.activations:
        readers = {group[layer] for layer, _ in source.readers}
        first = min(readers)
        group = {layer: first if at in readers else at for layer, at in group.items()}
    found: dict[int, tuple[list[Layer], list[Source]]] = {}
    for layer in wanted.layers:
        found.setdefault(group[layer], ([], []))[0].append(layer)
    for source in wanted.activations:
        found[group[source.readers[0][0]]][1].append(source)
    return list(found.values())
