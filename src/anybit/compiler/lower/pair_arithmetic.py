# SPDX-License-Identifier: Apache-2.0
"""Functions of two codes that are a sum or a product, rounded, without their table.

Weights are those of a fit of what the last quantizer rounds, or the scales of the graph, with its
division. Those count that give the table at every pair: near ties the roundings of the float graph
decide, which a fit may miss, and only the scales repeat.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import is_quantizer, quantizing
from anybit.compiler.partition.expressions import Expression, IntegerGrid, PairRoot
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import added, multiplied
from anybit.onnx.graph.constants import Array

# How far from a tie a pair may be that the roundings of float32 move over it.
_NEAR = 1e-3
# By how many floats gains and offset of a sum, and the gain of a product, are moved at most.
_FAR, _FAR_ALONE = 2, 16
# An offset that a fit of rounded numbers gives where there is none.
_NO_OFFSET = 1e-4


@dataclass(frozen=True)
class PairArithmetic:
    """An instruction that computes a function of two tensors of codes.

    Attributes:
        kind: `Add` or `Multiply`.
        fields: Its fields but for the tensors.
    """

    kind: type[p.Add | p.Multiply]
    fields: dict[str, Any]


def pair_arithmetic(
    model: ir.Model,
    expression: Expression,
    pairs: tuple[Array, Array],
    codes: IntegerGrid,
    index: Array,
) -> PairArithmetic | None:
    """Return the instruction that gives the index of every pair; None if none is found.

    Args:
        model: The graph.
        expression: A function of two tensors of codes.
        pairs: The values of all pairs of codes, the second's running fastest, in one column each.
        codes: What the function gives.
        index: The index of what it gives for each pair.
    """
    if index.shape[1] != 1:
        return None
    root, index = expression.root, index[:, 0]
    assert isinstance(root, PairRoot), "asked before"
    sources = root.first.codes, root.second.codes
    grid = np.indices([each.levels for each in sources]).reshape(2, -1)
    zeros = np.array([each.shift for each in sources], np.int32)
    values = _rounded_values(model, expression, pairs, codes)
    table = _Table(grid, zeros, index, index if values is None else values)
    scales = [each.scale * each.step for each in (*sources, codes)]
    first, second = (grid - zeros[:, None]).astype(np.float64)
    return (
        table.fitted(p.Add, [first, second], _nearby_sums)
        or table.fitted(p.Multiply, [first * second], _nearby_products)
        or table.repeated(p.Add, scales)
        or table.repeated(p.Multiply, scales)
    )


_COMPUTED: dict[type[Any], Callable[..., Array]] = {p.Add: added, p.Multiply: multiplied}


@dataclass(frozen=True, eq=False)
class _Table:
    """The indices of all pairs, and the values that are rounded to them."""

    grid: Array
    zeros: Array
    index: Array
    values: Array

    def fitted(
        self,
        kind: type[p.Add | p.Multiply],
        terms: list[Array],
        nearby: Callable[[Array], Iterator[tuple[Array, Array, int]]],
    ) -> PairArithmetic | None:
        """Return an instruction that adds up weighted terms and gives this table, if one does."""
        index = self.index
        inside = (index > index.min()) & (index < index.max())
        steps = self.values[inside]
        if not steps.size or not np.isfinite(steps).all():
            return None
        plane = np.stack([*terms, np.ones(len(index))], axis=1)
        weights = np.linalg.lstsq(plane[inside], steps, rcond=None)[0]
        y = plane @ weights
        shift = int(np.median(index[inside] - np.rint(y[inside])))
        if np.abs(index - shift - y)[inside].max() > 0.5 + _NEAR or abs(shift) >= p.MOST_SHIFT:
            return None
        # Nearly all that fail do so here.
        near = np.abs(y - np.floor(y) - 0.5) < _NEAR
        one = np.ones(1, np.float32)
        for gains, offset, odd in nearby(weights):
            found = self._proven(kind, (gains, offset, one, shift - odd), near)
            if found is not None:
                return found
        return None

    def repeated(
        self, kind: type[p.Add | p.Multiply], scales: list[float]
    ) -> PairArithmetic | None:
        """Return the arithmetic of the float graph, where it is that of two scales and a third."""
        gains, divisor = np.array(scales[:2], np.float32), np.array(scales[2:], np.float32)
        if not divisor[0] > 0:
            return None
        inside = (self.index > self.index.min()) & (self.index < self.index.max())
        if not inside.any():
            return None
        first, second = (self.grid - self.zeros[:, None]) * gains[:, None].astype(np.float64)
        y = (first + second if kind is p.Add else first * second) / divisor[0]
        shift = round(float(np.median(self.index[inside] - y[inside])))
        if abs(shift) >= p.MOST_SHIFT:
            return None
        for zero in (0, shift):  # a zero-point is added before the rounding
            numbers = gains, np.array([zero], np.float32), divisor, shift - zero
            found = self._proven(kind, numbers, inside)
            if found is not None:
                return found
        return None

    def _proven(
        self, kind: type[p.Add | p.Multiply], numbers: tuple[Any, Any, Any, int], first: Any
    ) -> PairArithmetic | None:
        """Return the instruction if it gives all indices; those at `first` are looked at first."""
        bounds = int(self.index.min()), int(self.index.max())
        gains, offset, divisor, shift = numbers
        made = kind(0, 0, 0, self.zeros, gains, offset, divisor, shift, *bounds)
        computed = _COMPUTED[kind]
        for part in (first, slice(None)):
            if not np.array_equal(computed(made, *self.grid[:, part]), self.index[part]):
                return None
        tensors = ("first", "second", "target")
        fields = {name: each for name, each in vars(made).items() if name not in tensors}
        return PairArithmetic(kind, fields)


def _nearby_sums(weights: Array) -> Iterator[tuple[Array, Array, int]]:
    """Gains and an offset in float32, those first that are moved least, and what both add.

    Ties go to the even number, which is an odd index where the graph adds an odd zero-point first.
    """
    moves = itertools.product(range(-_FAR, _FAR + 1), repeat=3)
    for by in sorted(moves, key=lambda each: sum(map(abs, each))):
        for odd in (0, 1):
            yield _moved(weights[:2], by[:2]), _moved(weights[2:] + odd, by[2:]), odd


def _nearby_products(weights: Array) -> Iterator[tuple[Array, Array, int]]:
    """The same for a product, one of whose gains is 1."""
    offset = np.where(np.abs(weights[1:]) < _NO_OFFSET, 0, weights[1:])
    for by in sorted(range(-_FAR_ALONE, _FAR_ALONE + 1), key=abs):
        for odd in (0, 1):
            gains = np.append(_moved(weights[:1], (by,)), np.float32(1))
            yield gains, (offset + odd).astype(np.float32), odd


def _rounded_values(
    model: ir.Model, expression: Expression, pairs: tuple[Array, Array], codes: IntegerGrid
) -> Array | None:
    """Return the values that the last node, a quantizer, rounds, in steps; None for others."""
    if not expression.nodes or not is_quantizer(expression.nodes[-1]):
        return None
    x, nodes = quantizing(expression.nodes[-1])
    before = expression.nodes[: -len(nodes)]
    if not before or before[-1].outputs[0] is not x:
        return None
    floats = replace(expression, value=x, nodes=before).function(model)(*pairs)
    return np.asarray(floats[:, 0].astype(np.float64) / (codes.scale * codes.step))


def _moved(numbers: Array, by: tuple[int, ...]) -> Array:
    """Floats that lie so many floats beside numbers."""
    found = numbers.astype(np.float32)
    for place, count in enumerate(by):
        for _ in range(abs(count)):
            found[place] = np.nextafter(found[place], np.float32(np.copysign(np.inf, count)))
    return found
