# SPDX-License-Identifier: Apache-2.0
"""Rounded sums and products of two tensors of codes, without a table of all pairs.

Gains are fitted to the values that the last quantizer rounds, or are the scales of the graph. They
count if they give the index of every pair: near ties, roundings of the float graph decide, which a
fit may miss, and only its own scales repeat.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.compiler.lower.requantization import get_zero_index
from anybit.compiler.operators import is_quantizer, split_quantizer
from anybit.compiler.partition.expressions import Expression, PairRoot
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import add_indices, multiply_indices
from anybit.onnx.graph.constants import Array
from anybit.quant_types.grids import TensorGrid

_NEAR = 1e-3
"""Distance to a tie over which the roundings of float32 may move a value."""

_MOST_ULPS, _MOST_ULPS_OF_PRODUCT = 2, 16
"""Largest change of the fitted gains and offset in ulps: of a sum, and of a product."""

_NO_OFFSET = 1e-4
"""Smaller fitted offsets of products are errors of the fit."""


@dataclass(frozen=True)
class PairArithmetic:
    """An instruction that computes a function of two tensors of codes.

    Attributes:
        kind: `Add` or `Multiply`.
        fields: Its fields without the tensors.
    """

    kind: type[p.Add | p.Multiply]
    fields: dict[str, Any]


def find_pair_arithmetic(
    model: ir.Model,
    expression: Expression,
    root: PairRoot,
    pairs: tuple[Array, Array],
    grid: TensorGrid,
    index: Array,
) -> PairArithmetic | None:
    """Return an instruction that gives the index of every pair; None if none is found.

    Args:
        model: The graph.
        expression: A function of two tensors of codes.
        root: The two tensors.
        pairs: The values of all pairs of codes, the second running fastest, in one column each.
        grid: The grid of the results.
        index: The index of the result of each pair, pairs x channels.
    """
    if index.shape[1] != 1:
        return None
    index, sources = index[:, 0], (root.first.grid, root.second.grid)
    indices = np.indices([source.levels for source in sources]).reshape(2, -1)
    zeros = np.array([get_zero_index(source) for source in sources], np.int32)
    values = _evaluate_unrounded(model, expression, pairs, grid)
    table = _Table(indices, zeros, index, index if values is None else values)
    scales = [operand.scale * operand.step for operand in (*sources, grid)]
    first, second = (indices - zeros[:, None]).astype(np.float64)
    return (
        table.fit(p.Add, [first, second], _generate_nearby_sums)
        or table.fit(p.Multiply, [first * second], _generate_nearby_products)
        or table.try_scales(p.Add, scales)
        or table.try_scales(p.Multiply, scales)
    )


_COMPUTED: dict[type[Any], Callable[..., Array]] = {
    p.Add: add_indices,
    p.Multiply: multiply_indices,
}


@dataclass(frozen=True, eq=False)
class _Table:
    """A function of two codes at all pairs.

    Attributes:
        pairs: Both indices of each pair, 2 x pairs.
        zeros: The indices of code 0.
        index: The index of the result of each pair.
        values: The values that are rounded to these.
    """

    pairs: Array
    zeros: Array
    index: Array
    values: Array

    def fit(
        self,
        kind: type[p.Add | p.Multiply],
        terms: list[Array],
        nearby: Callable[[Array], Iterator[tuple[Array, Array, int]]],
    ) -> PairArithmetic | None:
        """Return an instruction whose gains and offset are fitted; None if none gives the table."""
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
        # Nearly all candidates that fail do so at these pairs.
        near = np.abs(y - np.floor(y) - 0.5) < _NEAR
        one = np.ones(1, np.float32)
        for gains, offset, odd in nearby(weights):
            instruction = self._verify(kind, (gains, offset, one, shift - odd), near)
            if instruction is not None:
                return instruction
        return None

    def try_scales(
        self, kind: type[p.Add | p.Multiply], scales: list[float]
    ) -> PairArithmetic | None:
        """Return an instruction with the scales of the graph; None if it differs from the table."""
        gains, divisor = np.array(scales[:2], np.float32), np.array(scales[2:], np.float32)
        if not divisor[0] > 0:
            return None
        inside = (self.index > self.index.min()) & (self.index < self.index.max())
        if not inside.any():
            return None
        first, second = (self.pairs - self.zeros[:, None]) * gains[:, None].astype(np.float64)
        y = (first + second if kind is p.Add else first * second) / divisor[0]
        shift = round(float(np.median(self.index[inside] - y[inside])))
        if abs(shift) >= p.MOST_SHIFT:
            return None
        for zero in (0, shift):  # a zero-point is added before the rounding
            numbers = gains, np.array([zero], np.float32), divisor, shift - zero
            instruction = self._verify(kind, numbers, inside)
            if instruction is not None:
                return instruction
        return None

    def _verify(
        self, kind: type[p.Add | p.Multiply], numbers: tuple[Any, Any, Any, int], first: Any
    ) -> PairArithmetic | None:
        """Return an instruction if it gives all indices; the pairs at `first` are tried first."""
        bounds = int(self.index.min()), int(self.index.max())
        gains, offset, divisor, shift = numbers
        instruction = kind(0, 0, 0, self.zeros, gains, offset, divisor, shift, *bounds)
        computed = _COMPUTED[kind]
        for part in (first, slice(None)):
            if not np.array_equal(computed(instruction, *self.pairs[:, part]), self.index[part]):
                return None
        tensors = ("first", "second", "target")
        fields = {
            field.name: getattr(instruction, field.name)
            for field in dataclasses.fields(instruction)
            if field.name not in tensors
        }
        return PairArithmetic(kind, fields)


def _generate_nearby_sums(weights: Array) -> Iterator[tuple[Array, Array, int]]:
    """Yield float32 gains, offset and 0 or 1 to add to the offset, the nearest ones first.

    Ties go to the even number, which is an odd index if the graph adds an odd zero-point first.
    """
    moves = itertools.product(range(-_MOST_ULPS, _MOST_ULPS + 1), repeat=3)
    for by in sorted(moves, key=lambda ulps: sum(map(abs, ulps))):
        for odd in (0, 1):
            yield _move(weights[:2], by[:2]), _move(weights[2:] + odd, by[2:]), odd


def _generate_nearby_products(weights: Array) -> Iterator[tuple[Array, Array, int]]:
    """Yield the same for a product; its second gain is 1."""
    offset = np.where(np.abs(weights[1:]) < _NO_OFFSET, 0, weights[1:])
    for by in sorted(range(-_MOST_ULPS_OF_PRODUCT, _MOST_ULPS_OF_PRODUCT + 1), key=abs):
        for odd in (0, 1):
            gains = np.append(_move(weights[:1], (by,)), np.float32(1))
            yield gains, (offset + odd).astype(np.float32), odd


def _evaluate_unrounded(
    model: ir.Model, expression: Expression, pairs: tuple[Array, Array], grid: TensorGrid
) -> Array | None:
    """Return the inputs of the last quantizer in steps; None if another node is the last."""
    if not expression.nodes or not is_quantizer(expression.nodes[-1]):
        return None
    x, nodes = split_quantizer(expression.nodes[-1])
    before = expression.nodes[: -len(nodes)]
    if not before or before[-1].outputs[0] is not x:
        return None
    floats = replace(expression, value=x, nodes=before).function(model)(*pairs)
    return np.asarray(floats[:, 0].astype(np.float64) / (grid.scale * grid.step))


def _move(numbers: Array, by: tuple[int, ...]) -> Array:
    """Return float32 numbers, moved by numbers of ulps."""
    floats = numbers.astype(np.float32)
    for place, count in enumerate(by):
        for _ in range(abs(count)):
            floats[place] = np.nextafter(floats[place], np.float32(np.copysign(np.inf, count)))
    return floats
