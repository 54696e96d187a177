# SPDX-License-Identifier: Apache-2.0
"""Sums and products of two tensors in integers, for targets that have no floats.

An `Add` or a `Multiply` has at most 65536 pairs of indices, so its results are known. Sought are
multipliers, a term and a right shift with the same results: index k begins where y reaches
k << shift. For given multipliers and shift, the terms that fulfill all these inequalities are an
interval of integers. Multipliers are those of the float arithmetic and their neighbors.

No term may fit where float32 rounds, or where ties go to even. Then the least term is taken with
which no index is too small. Those too large by one have low bits of y within `near`: a bit per
index corrects ties to even, and a list names pairs for which that bit is wrong.

All sums in ResNet-18, MobileNet V2 and V3 and EfficientNet, and all sums of 30 random scales, need
32 bits and no correction. Scales that are powers of two need the parity of the index. Half of the
products need no correction, the others at most 32 bytes of bits or pairs.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from anybit.compiler.program import program as p
from anybit.compiler.program.reference import add_indices, multiply_indices
from anybit.onnx.graph.constants import Array

_LITTLE_MEMORY = 128
"""Up to this number of bytes of corrections in 32 bits, none in 64 bits are searched."""

_TIGHTEST = 1024
"""Number of pairs by which multipliers are chosen: those nearest to a step."""

_RADIUS_OF_SUMS, _RADIUS_OF_PRODUCTS = 2, 16
"""Distance to which neighbors of multipliers are tried."""

_STEEPEST = 2.0**12
"""Larger slopes saturate, so they are reduced to this one."""

_MOST_MULTIPLIER = 2**31 - 1
_NEVER = 2**61


@dataclass(frozen=True, eq=False)
class IntegerPair:
    """index = y >> right_shift, within lowest..highest, less one for some pairs.

    y = first * multipliers[0] + second * multipliers[1] + term, or with one multiplier
    y = (first - zeros[0]) * (second - zeros[1]) * multipliers[0] + term, evaluated from left to
    right. If the low bits y - (y >> right_shift << right_shift) are at most `near` and the index is
    not saturated, it is one less if either bit `index` of `late` is set or the pair is an
    exception, but not both.

    Attributes:
        levels: Number of indices of the first and the second tensor.
        zeros: Zeros of a product.
        multipliers: Two int32 numbers for a sum, one for a product.
        term: Includes what rounds.
        right_shift: At most MOST_RIGHT_SHIFT.
        bits: 32 or 64; y and all intermediate results fit.
        lowest, highest: Bounds of the index.
        near: -1 if no index needs a correction.
        late: A bit per index, the first in the lowest bit; or empty.
        exceptions: Keys 256 * first + second, uint16, ascending.
        table: If not empty, the index of every pair, the second running fastest; nothing else
            counts then.
    """

    levels: tuple[int, int]
    zeros: tuple[int, int]
    multipliers: tuple[int, ...]
    term: int
    right_shift: int
    bits: int
    lowest: int
    highest: int
    near: int
    late: p.Bytes
    exceptions: Array
    table: p.Bytes

    @property
    def has_bitmap(self) -> bool:
        """Return whether a bit for every pair takes less memory than a list of exceptions."""
        return self.exceptions.size * 16 > self.levels[0] * self.levels[1]

    @property
    def bitmap(self) -> p.Bytes:
        """Return a bit per pair, the second running fastest, the first in the lowest bit."""
        flags = np.zeros(self.levels, np.uint8)
        flags[self.exceptions >> 8, self.exceptions & 255] = 1
        return np.packbits(flags.ravel(), bitorder="little")

    @property
    def late_parity(self) -> int | None:
        """Return 0 or 1 if bits of `late` are set where index & 1 is that; None for other bits."""
        bits = np.unpackbits(self.late, count=self.highest + 1, bitorder="little")
        odd = np.arange(bits.size) & 1
        same = [parity for parity in (0, 1) if self.late.size and np.all(bits == (odd == parity))]
        return same[0] if same else None

    @property
    def size(self) -> int:
        """Return the number of bytes of the arrays; none for bits of one parity."""
        exceptions = self.bitmap if self.has_bitmap else self.exceptions
        late = self.late.nbytes if self.late_parity is None else 0
        return late + exceptions.nbytes + self.table.nbytes


def fit_pair(at: p.Add | p.Multiply, first_levels: int, second_levels: int) -> IntegerPair:
    """Return integer arithmetic that equals an instruction on every pair of indices.

    Args:
        at: The instruction.
        first_levels: Number of indices of the first tensor, at most 256.
        second_levels: Number of indices of the second tensor, at most 256.
    """
    levels = first_levels, second_levels
    pairs = np.indices(levels).reshape(2, -1)
    product = isinstance(at, p.Multiply)
    index = (multiply_indices if product else add_indices)(at, *pairs)  # type: ignore[arg-type]
    gains, divisor = at.gains.astype(np.float64), float(at.divisor[0])
    zeros = (int(at.zeros[0]), int(at.zeros[1])) if product else (0, 0)
    with np.errstate(all="ignore"):
        slopes = np.array([gains[0] * gains[1]]) / divisor if product else gains / divisor
    return fit_indices(index, levels, slopes, zeros)


def fit_indices(
    index: Array, levels: tuple[int, int], slopes: Array, zeros: tuple[int, int] = (0, 0)
) -> IntegerPair:
    """Return integer arithmetic with the index of every pair.

    Args:
        index: The indices, the second tensor running fastest.
        levels: Number of indices of both tensors.
        slopes: Change of the index by one of the first and of the second tensor; or by one of the
            product.
        zeros: Zeros of a product.
    """
    table = index.astype(np.uint8)
    slopes = np.nan_to_num(slopes, posinf=_STEEPEST, neginf=-_STEEPEST)
    slopes = np.clip(slopes, -_STEEPEST, _STEEPEST)
    steps = _Steps.of_pairs(index.astype(np.int64), levels, slopes, zeros)
    pair = steps.search()
    if pair is not None and np.array_equal(evaluate(pair, *np.indices(levels)).ravel(), index):
        return pair
    return replace(steps.make_pair((0,) * slopes.size, 0, 0, 32), table=table)


def evaluate(pair: IntegerPair, first: Array, second: Array) -> Array:
    """Return the indices of pairs."""
    first, second = first.astype(np.int64), second.astype(np.int64)
    if pair.table.size:
        return np.asarray(pair.table[first * pair.levels[1] + second], np.int64)
    y = _combine_terms(pair, first, second)
    raw = y >> pair.right_shift
    index = np.clip(raw, pair.lowest, pair.highest)
    if pair.near < 0:
        return np.asarray(index)
    late = np.isin(256 * first + second, pair.exceptions)
    if pair.late.size:
        late ^= np.unpackbits(pair.late, bitorder="little")[index] > 0
    near = y - (raw << pair.right_shift) <= pair.near
    return np.asarray(index - (late & near & (raw == index)))


def _combine_terms(pair: IntegerPair, first: Array, second: Array) -> Array:
    if len(pair.multipliers) == 1:
        product = (first - pair.zeros[0]) * (second - pair.zeros[1])
        return np.asarray(product * pair.multipliers[0] + pair.term)
    return np.asarray(first * pair.multipliers[0] + second * pair.multipliers[1] + pair.term)


@dataclass(frozen=True, eq=False)
class _Steps:
    """Inequalities that a term has to fulfill, at all pairs.

    Attributes:
        levels, zeros: Those of the result.
        slopes: Slopes in indices, one per row of operands.
        operands: Both indices of each pair, or their product, one column per pair.
        index: The index k of each pair.
        tightest: Places of pairs nearest to a step.
    """

    levels: tuple[int, int]
    zeros: tuple[int, int]
    slopes: Array
    operands: Array
    index: Array
    tightest: Array

    @staticmethod
    def of_pairs(
        index: Array, levels: tuple[int, int], slopes: Array, zeros: tuple[int, int]
    ) -> "_Steps":
        operands = np.indices(levels).reshape(2, -1).astype(np.int64)
        if slopes.size == 1:
            operands = np.prod(operands - np.array(zeros)[:, None], axis=0)[None]
        rest = index - slopes @ operands
        above = np.where(index > index.min(), rest, -np.inf)
        below = np.where(index < index.max(), rest, np.inf)
        half = min(_TIGHTEST // 2, index.size)
        order = np.argpartition(-above, half - 1)[:half], np.argpartition(below, half - 1)[:half]
        return _Steps(levels, zeros, slopes, operands, index, np.unique(np.concatenate(order)))

    def search(self) -> IntegerPair | None:
        """Return the cheapest pair found: without exceptions, or with few in 32 bits."""
        lines = list(self._iterate_lines())
        best = self._search_lines(lines, 32)
        if best is not None and best.size <= _LITTLE_MEMORY:
            return best
        wide = self._search_lines(lines, 64)
        if wide is None or (best is not None and 2 * wide.size > best.size):
            return best
        return wide

    def _search_lines(self, lines: list[tuple[Array, int, int]], bits: int) -> IntegerPair | None:
        """Return a pair that fits some bits: without corrections, or with the smallest ones."""
        for multipliers, shift, width in lines:
            pair = self._complete(multipliers, shift, bits, True) if width >= 0 else None
            if pair is not None:
                return pair
        pairs = (self._complete(multipliers, shift, bits, False) for multipliers, shift, _ in lines)
        some = [pair for pair in pairs if pair is not None]
        return min(some, key=_rate_corrections) if some else None

    def _iterate_lines(self) -> Iterator[tuple[Array, int, int]]:
        """Yield multipliers, shift and the widest interval of terms at the tightest pairs."""
        radius = _RADIUS_OF_SUMS if self.slopes.size == 2 else _RADIUS_OF_PRODUCTS
        moves = itertools.product(range(-radius, radius + 1), repeat=self.slopes.size)
        near = np.array(sorted(moves, key=lambda by: sum(map(abs, by))))
        largest = np.maximum(np.abs(self.operands).max(axis=1), 1)
        for shift in range(p.MOST_RIGHT_SHIFT + 1):
            center = np.rint(np.ldexp(self.slopes, shift))
            if np.any(np.abs(center) > np.minimum(_MOST_MULTIPLIER, 2**59 / largest) - radius):
                return
            multipliers = center.astype(np.int64) + near
            least, most = self._bound_terms(multipliers, shift, self.tightest)
            best = int(np.argmax(most - least))
            width = int(most[best] - least[best])
            if width >= -(1 << shift):
                yield multipliers[best], shift, width

    def _bound_terms(self, multipliers: Array, shift: int, places: Array) -> tuple[Array, Array]:
        """Return the least and the greatest term for rows of multipliers at some pairs."""
        index = self.index[places]
        rest = (index << shift) - multipliers @ self.operands[:, places]
        reached = rest[:, index > self.index.min()]
        avoided = rest[:, index < self.index.max()] + (1 << shift) - 1
        return reached.max(axis=1, initial=-_NEVER), avoided.min(axis=1, initial=_NEVER)

    def _complete(
        self, multipliers: Array, shift: int, most_bits: int, exact: bool
    ) -> IntegerPair | None:
        """Return a pair with the best term, and corrections unless it has to be exact."""
        least, most = (
            int(bound[0])
            for bound in self._bound_terms(multipliers[None], shift, np.arange(self.index.size))
        )
        term = _choose_term(least, most)
        bits = self._count_bits(multipliers, term)
        if bits > most_bits or least - most > (0 if exact else 1 << shift):
            return None
        pair = self.make_pair(tuple(multipliers.tolist()), term, shift, bits)
        return pair if least <= most else self._correct(pair, least - most - 1)

    def _count_bits(self, multipliers: Array, term: int) -> int:
        """Return 32, 64 or more, which hold all results: the largest are those of outer indices."""
        corners = np.arange(self.index.size).reshape(self.levels)[[0, 0, -1, -1], [0, -1, 0, -1]]
        parts = self.operands[:, corners] * multipliers[:, None]
        total = parts.sum(axis=0)
        results = np.concatenate([*self.operands[:, corners], *parts, total, total + term])
        largest = max(int(np.abs(results).max()), abs(term))
        return 32 if largest < 2**31 else 64 if largest < 2**62 else 128

    def _correct(self, pair: IntegerPair, near: int) -> IntegerPair:
        """Return a pair with the corrections of its indices that are too large."""
        y = np.array(pair.multipliers) @ self.operands + pair.term
        raw = y >> pair.right_shift
        wrong = (raw > self.index) & (self.index < pair.highest)
        close = (y - (raw << pair.right_shift) <= near) & (raw >= pair.lowest)
        close &= raw <= pair.highest
        counts = [np.bincount(raw[places], minlength=256) for places in (close, wrong)]
        odd = np.arange(256) % 2 == 1
        corrected = []
        for bits in (np.zeros(256, bool), odd, ~odd, 2 * counts[1] > counts[0]):
            listed = close & (wrong != bits[np.clip(raw, 0, 255)])
            first, second = np.divmod(np.flatnonzero(listed), self.levels[1])
            keys = (256 * first + second).astype(np.uint16)
            packed = np.packbits(bits[: pair.highest + 1], bitorder="little")
            packed = packed[: packed.size * bool(bits.any())]
            corrected.append(replace(pair, near=near, late=packed, exceptions=keys))
        return min(corrected, key=_rate_corrections)

    def make_pair(
        self, multipliers: tuple[int, ...], term: int, shift: int, bits: int
    ) -> IntegerPair:
        """Return a pair without corrections."""
        lowest, highest = int(self.index.min()), int(self.index.max())
        numbers = multipliers, term, shift, bits, lowest, highest
        none = np.zeros(0, np.uint8)
        return IntegerPair(
            self.levels, self.zeros, *numbers, -1, none, none.astype(np.uint16), none
        )


def _rate_corrections(pair: IntegerPair) -> int:
    """Return the bytes of corrections, and more if they are of both kinds."""
    return pair.size + _LITTLE_MEMORY * bool(pair.late.size and pair.exceptions.size)


def _choose_term(least: int, most: int) -> int:
    """Return the middle of an interval, its only bound, or the lower one if it is empty."""
    if least == -_NEVER or most == _NEVER:
        return 0 if least == -most else most if least == -_NEVER else least
    return max(least, (least + most) // 2)
