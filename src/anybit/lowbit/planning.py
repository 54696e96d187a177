# SPDX-License-Identifier: Apache-2.0
"""From expressions to instructions: what is computed for who needs codes, or floats."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.lowbit import program as p
from anybit.lowbit.arithmetic import arithmetic_of, guessed
from anybit.lowbit.functions import Function, are_increasing
from anybit.lowbit.layers import CompiledLayer, compiled
from anybit.lowbit.pair_arithmetic import pair_arithmetic
from anybit.lowbit.parts import (
    Coded,
    Codes,
    CodesRoot,
    Expression,
    Inlet,
    Outlet,
    OutletRoot,
    PairRoot,
    Planned,
    PortRoot,
    SumRoot,
)
from anybit.lowbit.places import Place
from anybit.lowbit.rounded import replay_of, rounded_of, with_all_risks
from anybit.lowbit.tails import Tabled, tabled
from anybit.lowbit.thresholds import highest_index, quantize_fields
from anybit.lowbit.uncovered import Uncovered
from anybit.lowbit.weights import packed
from anybit.onnx.graph.constants import Array
from anybit.quant_types.layer_info import Guarantee

_MOST_ENTRIES = 2**24
_MANY_LEVELS = 16
"""Thresholds of more levels take more bytes than the weights of a small window do."""

_NEAR_ENTRIES = 2**16
"""A larger table is not in the nearer caches: arithmetic is faster."""


class Refused(Exception):
    """A node that has to stay float although a walk has not left it: the next one will."""

    def __init__(self, node: ir.Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason


@dataclass
class Memory:
    """What one walk finds out for the next.

    `shared` has functions of sums that are computed once for several readers: as codes where that
    is None, or else as the float results of a layer.
    """

    refused: dict[ir.Node, str] = field(default_factory=dict)
    tails: dict[Any, Tabled | Uncovered] = field(default_factory=dict)
    shared: dict[ir.Value, CompiledLayer | None] = field(default_factory=dict)


class Planner:
    """Plans instructions; `taken` gives those since it was called last."""

    def __init__(self, model: ir.Model, guarantee: Guarantee, memory: Memory) -> None:
        self.memory = memory
        self._model = model
        self._guarantee = guarantee
        self._planned: list[Planned] = []

    def taken(self) -> list[Planned]:
        planned, self._planned = self._planned, []
        return planned

    def from_port(self, expression: Expression, codes: Codes, place: Place) -> Coded:
        """Codes of a float value: one Quantize, in whatever place its readers want."""
        root = expression.root
        assert isinstance(root, PortRoot), "asked before"
        function = expression.function(self._model)
        uniform = expression.uniform
        if place != expression.place and not uniform:
            raise Uncovered("its channels lie along another axis than those of its constants")
        target = Coded(expression.value, place, codes, root.stage)
        inlet = Inlet(root.value, root.sizes, place)
        self._quantize(inlet, function, target, 1 if uniform else place.channels)
        return target

    def _quantize(
        self, source: Inlet | Outlet, function: Function, target: Coded, channels: int
    ) -> None:
        """Plan a Quantize of a function of floats."""
        codes = target.codes
        if not function.parts:  # a value that is said to be on a grid
            function = Function().then(codes.nearest, monotone=True, uniform=True)
        # Codes that are there for other readers, a zero at the border say, may never be reached.
        levels = highest_index(function, codes.index, channels) + 1
        first = target
        if levels < codes.levels:
            first = replace(target, codes=replace(codes, levels=levels), tensor=object())
        fields = quantize_fields(function, codes.index, levels, channels)
        self._planned.append(Planned(p.Quantize, (source,), first, fields))
        if first is not target:
            self.add(p.Lookup, (first,), target, entries=np.arange(levels, dtype=np.uint8))

    def from_codes(self, expression: Expression, codes: Codes) -> Coded:
        """Codes of a function of what the region has: a sum, one tensor of codes, or two."""
        root = expression.root
        assert not isinstance(root, PortRoot), "asked before"
        target = Coded(expression.value, expression.root_place, codes, root.stage)
        self._compute(expression, target)
        pending = expression.pending
        if pending is None:
            return target
        if pending.kind is p.MaxPool and not (
            codes.scale > 0 and are_increasing(expression.nodes, expression.starts[0])
        ):
            raise Uncovered("what follows its pooling does not rise everywhere")
        if pending.kind is p.Reshape and not expression.same:
            raise Uncovered("what follows its Reshape differs between channels")
        moved = Coded(expression.value, expression.place, codes, root.stage)
        self.add(pending.kind, (target,), moved, **pending.fields)
        return moved

    def _compute(self, expression: Expression, target: Coded) -> None:
        root, codes = expression.root, target.codes
        if isinstance(root, SumRoot):
            self._product(expression, root, target)
            return
        function = expression.function(self._model)
        if isinstance(root, OutletRoot):
            channels = 1 if expression.uniform else target.place.channels
            self._quantize(root.outlet, function, target, channels)
            return
        if isinstance(root, CodesRoot):
            source = root.coded
            values = _columns(source.codes.decode(source.codes.all), expression)
            entries = _entries(codes.index(function(values)))
            self._planned.append(Planned(p.Lookup, (source,), target, {"entries": entries}))
            return
        assert isinstance(root, PairRoot), "the last kind"
        pairs = _pairs(root, expression)
        index = codes.index(function(*pairs))
        reads = (root.first, root.second)
        found = pair_arithmetic(self._model, expression, pairs, codes, index)
        if found is not None:
            self.add(found.kind, reads, target, **found.fields)
        else:
            self.add(p.Combine, reads, target, entries=_entries(index))

    def _product(self, expression: Expression, root: SumRoot, target: Coded) -> None:
        found = self._tail(expression, root, target.codes)
        safe = Guarantee.EXACT if root.layer.guarantee is Guarantee.EXACT else Guarantee.CERTIFIED
        guarantee = Guarantee.BOUNDED if found.risks or found.more_risks else safe
        self._check(root, guarantee)
        layer = compiled(
            root.layer,
            guarantee=guarantee,
            tail=type(found.tail).__name__,
            levels=target.codes.levels,
            steps=found.steps,
            risks=found.risks,
            more_risks=found.more_risks,
        )
        self._planned.append(_of_sum(expression, target, found.tail, layer))

    def _tail(self, expression: Expression, root: SumRoot, codes: Codes) -> Tabled:
        key = root.node, expression.value, codes, root.source.codes
        if key not in self.memory.tails:
            self.memory.tails[key] = _known(expression.function(self._model), root, codes)
        known = self.memory.tails[key]
        if isinstance(known, Uncovered):
            raise known
        return known

    def _check(self, root: SumRoot, guarantee: Guarantee) -> None:
        if guarantee.rank > self._guarantee.rank:
            why = f"{guarantee}, and only {self._guarantee} was asked for: {root.layer.reason}"
            raise Refused(root.node, why)

    def outlet(self, expression: Expression) -> Outlet | None:
        """Give a value as floats; None if no instruction does."""
        root = expression.root
        outlet = Outlet(expression.value, expression.place, root.stage)
        if expression.pending is not None:
            return None
        if isinstance(root, CodesRoot):
            values = _columns(root.coded.codes.decode(root.coded.codes.all), expression)
            results = expression.function(self._model)(values)
            if results.dtype != np.float32:
                return None
            fields = {"values": _narrow(results.T).ravel()}
            self._planned.append(Planned(p.Dequantize, (root.coded,), outlet, fields))
            return outlet
        if not isinstance(root, SumRoot):
            return None
        tail = arithmetic_of(expression.function(self._model), root)
        if tail is None:
            return None
        known = self.memory.shared.get(expression.value) or compiled(root.layer)
        assert known.guarantee is not None, "it has codes"
        self._check(root, known.guarantee)
        layer = replace(known, tail=type(tail).__name__)
        self._planned.append(_of_sum(expression, outlet, tail, layer))
        return outlet

    def placed(self, coded: Coded, place: Place) -> Coded:
        """The same codes in another place: the order of the elements in the graph stays."""
        if coded.place == place:
            return coded
        target = Coded(coded.value, place, coded.codes, coded.stage)
        self.add(p.Reshape, (coded,), target, **reshape_fields(coded.place, place))
        return target

    def spread(self, coded: Coded, place: Place) -> Coded:
        """The same codes in a larger place, repeated along the axes of which they have one."""
        if coded.place == place:
            return coded
        target = Coded(coded.value, place, coded.codes, coded.stage)
        sizes = ("height", "width", "channels")
        pairs = [(getattr(coded.place, size), getattr(place, size)) for size in sizes]
        if any(one not in (1, many) for one, many in pairs):
            raise Uncovered("its two inputs differ in their sizes")
        rows, columns, channels = (
            np.arange(many, dtype=np.int32) * (one == many) for one, many in pairs
        )
        where = {"rows": rows, "columns": columns, "channels": channels}
        self.add(p.Gather, (coded,), target, **where, first_channel=0, fill=0)
        return target

    def add(self, kind: type[Any], reads: tuple[Coded, ...], writes: Coded, **fields: Any) -> None:
        self._planned.append(Planned(kind, reads, writes, fields))


def _known(function: Function, root: SumRoot, codes: Codes) -> Tabled | Uncovered:
    """The cheapest tail of a function, or why there is none."""
    try:
        guess = guessed(function, root, codes)
        found = tabled(function, codes.index, codes.levels, root.sum, codes.shift, guess)
    except Uncovered as reason:
        return rounded_of(function, root, codes) or reason
    large = _is_large(found.tail, codes.levels)
    bends = not function.monotone and bool(np.any(root.sum.slack > 0))
    replay = replay_of(function, root, codes, found.tail) if large or bends else None
    if bends:
        found = with_all_risks(found, replay, root.sum, codes.levels)
    return found if replay is None or not large else replace(found, tail=replay.tail)


def _is_large(tail: p.Tail, levels: int) -> bool:
    """Return whether a tail takes so many bytes per channel that a replay is better."""
    if isinstance(tail, p.Table):
        return tail.entries.size > _NEAR_ENTRIES
    return isinstance(tail, p.Thresholds) and levels > _MANY_LEVELS


def reshape_fields(source: Place, target: Place) -> dict[str, int]:
    """The fields of a Reshape that keeps the order of the elements in the graph."""
    return {
        "source_channels_first": int(source.channels_first),
        "target_channels_first": int(target.channels_first),
    }


def _of_sum(of: Expression, target: Coded | Outlet, tail: p.Tail, layer: CompiledLayer) -> Planned:
    root = of.root
    assert isinstance(root, SumRoot), "asked before"
    bits, weights, values = packed(root.weights)
    fields = {
        "window": root.window,
        "groups": root.groups,
        "weight_bits": bits,
        "weights": weights,
        "values": values,
        "tail": tail,
    }
    return Planned(p.Product, (root.source,), target, fields, layer, of)


def _columns(values: Array, expression: Expression) -> Array:
    """The values in one column, or in one per channel where the function differs between them."""
    channels = 1 if expression.uniform else expression.place.channels
    return np.repeat(values[:, None], channels, axis=1)


def _pairs(root: PairRoot, expression: Expression) -> tuple[Array, Array]:
    """All pairs of values, the second's running fastest."""
    first, second = (each.codes.decode(each.codes.all) for each in (root.first, root.second))
    pairs = np.repeat(first, len(second)), np.tile(second, len(first))
    columns = _columns(pairs[0], expression), _columns(pairs[1], expression)
    if columns[0].size > _MOST_ENTRIES:
        raise Uncovered("its two inputs have too many codes in too many channels")
    return columns


def _entries(indices: Array) -> Array:
    return _narrow(indices.T.astype(np.uint8)).ravel()


def _narrow(rows: Array) -> Array:
    """One row where all are the same."""
    rows = np.ascontiguousarray(rows)
    bits = rows.view(f"u{rows.dtype.itemsize}")
    return rows[:1] if np.all(bits == bits[0]) else rows
