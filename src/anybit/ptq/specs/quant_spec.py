# SPDX-License-Identifier: Apache-2.0
"""How numbers of a range become those of a grid: from words to grids."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anybit.errors import ModelError
from anybit.formats import LARGEST_FLOAT32, FloatFormat
from anybit.onnx.graph.constants import Array
from anybit.onnx.quantizers.grids import Match, match
from anybit.ops.grids import Coding, FloatGrid, Grid, IntegerGrid
from anybit.ops.int_quant import codes_of
from anybit.ptq.specs.dynamic_grid import DynamicGrid
from anybit.quant_types.block_formats import BlockFormat, ScaleRule
from anybit.quant_types.spec_parser import COMMON, PER_BLOCK, Integers, Kind, Signs, read

_WORDS = {
    **COMMON,
    "asymmetric": {"asymmetric": True},
    **{str(rule): {"rule": rule} for rule in ScaleRule},
}
_MOST_BITS = 16
# A name for integers that says more than their width.
_TERNARY = "ternary"
# What scales take of the bits of a block.
FLOAT_SCALE, BYTE_SCALE = 32, 8
_SMALLEST = float(np.finfo(np.float32).tiny)
# Ranges up to here have no values beyond float32.
_SAFE = 2.0**126


@dataclass(frozen=True)
class Scheme:
    """A kind of quantizer, whose scale is still to be found.

    Attributes:
        kind: Integers, signs, or a float format.
        words: What was said.
        per_channel: Whether each channel has a scale of its own.
        narrow: Whether the range of integers is one value shorter.
        power_of_two: Whether scales are powers of two.
        asymmetric: Whether the range need not be the same on both sides of 0.
        block: How many elements share a scale; 0 if it is not a number of them.
        rule: How a block of MX or NVFP4 gets its scale.
    """

    kind: Kind
    words: str
    per_channel: bool = False
    narrow: bool = False
    power_of_two: bool = False
    asymmetric: bool = False
    block: int = 0
    rule: ScaleRule = ScaleRule.MSE

    @property
    def bits(self) -> int:
        """The width of a code."""
        return self.kind.bits

    def said(self, usual: str) -> str:
        """What was asked for, in few words: the kind, and behind it all but what is usual."""
        first, *others = self.words.split()
        kind = first if first == _TERNARY else str(self.kind)
        return " ".join([kind, *(each for each in others if each != usual)])

    @property
    def scale_bits(self) -> int:
        """What the scale of a block takes, with its zero-point."""
        zeropt = self.bits if self.asymmetric else 0
        return BYTE_SCALE if isinstance(self.kind, BlockFormat) else FLOAT_SCALE + zeropt

    def grid(self, lowest: Array, highest: Array) -> Grid:
        """The grid for a range, or for one range per channel; 0 is one of its values.

        Ranges are widened to hold 0. One that is 0 alone has the scale 1, as any scale would do.
        Next to the end of float32 numbers saturate: those of the range do not become infinite.
        """
        low, high = np.minimum(lowest, 0.0), np.maximum(highest, 0.0)
        if np.max(np.maximum(-low, high), initial=0.0) <= _SAFE:
            return self._grid(low, high)
        # The width of such a range is beyond float32.
        low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        return self._held(self._grid(low, high), low, high)

    def _grid(self, low: Array, high: Array) -> Grid:
        reach = np.maximum(-low, high)
        assert not isinstance(self.kind, BlockFormat), "their scales follow another rule"
        if isinstance(self.kind, FloatFormat):
            return FloatGrid(self._scale(reach / self.kind.largest), self.kind)
        if isinstance(self.kind, Signs):
            zero = np.zeros((), np.float32)
            return IntegerGrid(self._scale(reach), zero, range(-1, 2, 2), Coding.SIGN)
        codes = codes_of(self.kind.bits, self.kind.signed, self.narrow)
        if not self.asymmetric:
            scale = self._scale(np.maximum(-low / max(-codes[0], 1), high / codes[-1]))
            return IntegerGrid(scale, np.zeros((), np.float32), codes)
        scale = self._scale((high - low) / (len(codes) - 1))
        zeropt = np.clip(np.rint(codes[0] - low / scale), codes[0], codes[-1])
        return IntegerGrid(scale, zeropt.astype(np.float32), codes)

    def _held(self, grid: Grid, low: Array, high: Array) -> Grid:
        """The same with smaller scales where numbers become infinite.

        A value further from 0 than float32's largest number can be one of the range rounded. With
        scales that are powers of two only what is in the range counts: the grid goes up to twice as
        far, and half of it would be lost else.
        """
        ends = np.stack([low, high])
        if not self.power_of_two:
            ends = np.broadcast_to([[-np.inf], [np.inf]], (2, low.size)).reshape(ends.shape)
        ends = np.clip(ends, -LARGEST_FLOAT32, LARGEST_FLOAT32).astype(np.float32)
        while True:
            with np.errstate(over="ignore"):
                infinite = np.isinf([quantized(each, grid) for each in ends]).any(axis=0)
            if not infinite.any():
                return grid
            smaller = grid.scale / 2 if self.power_of_two else _largest_scale(grid)
            scale = np.where(infinite, smaller, grid.scale).astype(np.float32)
            if self.power_of_two and self.asymmetric and isinstance(grid, IntegerGrid):
                # What is lost is lost on both sides.
                zeropt = np.rint(grid.lowest - low * (len(grid.codes) - 1) / (high - low))
                zeropt = np.where(infinite, zeropt, grid.zeropt).astype(np.float32)
                grid = replace(grid, zeropt=zeropt)
            grid = replace(grid, scale=scale)

    def _scale(self, scale: Array) -> Array:
        """As float32; neither 0 nor infinite."""
        largest = LARGEST_FLOAT32
        if self.power_of_two:
            largest = 2.0**127
            with np.errstate(divide="ignore"):
                scale = np.exp2(np.ceil(np.log2(scale)))
        within = np.clip(scale, _SMALLEST, largest)
        return np.where(scale == 0, 1.0, within).astype(np.float32)


def _largest_scale(grid: Grid) -> Array:
    """That with which all values are finite."""
    if isinstance(grid, IntegerGrid):
        steps = np.maximum(grid.highest - grid.zeropt, grid.zeropt - grid.lowest)
    else:
        steps = np.full_like(grid.scale, grid.format.largest)
    steps = steps.astype(np.float64)
    scale = (LARGEST_FLOAT32 / steps).astype(np.float32)
    below = np.nextafter(scale, np.float32(0))
    return np.asarray(np.where(scale * steps > LARGEST_FLOAT32, below, scale))


def scheme(words: str, role: str) -> Scheme:
    """The scheme that words such as "int4 per-channel narrow" stand for.

    Args:
        words: A kind, and per-tensor, per-channel, per-block N, narrow, power-of-two or asymmetric
            behind it; behind those of MX floor, ceil, even or mse, behind nvfp4 absmax or mse.
        role: "weights", which have a scale per channel unless it is said otherwise, and whose
            integers are the same on both sides of 0; or "activations", which have one scale.

    Unsigned integers are asymmetric: they have a zero-point.

    Raises:
        ModelError: Words that are not known, or do not fit the role.

    >>> scheme("uint8", "activations").asymmetric, scheme("int4", "weights").per_channel
    (True, True)
    """
    try:
        kind, options = read(words, _WORDS)
    except ValueError as error:
        raise ModelError(f"{role}: {error}") from None
    granularity = options.pop("granularity", "")
    weights = role == "weights"
    if granularity == "per-channel" and not weights:
        raise ModelError(
            f'activations: {words!r}: sums need one scale for all of their terms; say "per-tensor"'
        )
    if isinstance(kind, BlockFormat):
        return _of_blocks(kind, words, role, granularity, options)
    if "rule" in options:
        rule = options["rule"]
        raise ModelError(f"{role}: {words!r}: {rule} is for MX and NVFP4, not for {kind}")
    if granularity == PER_BLOCK and not weights:
        raise ModelError(
            f"activations: {words!r}: blocks of what is computed have the formats of MX; "
            'say "mxint8" or "mxfp8"'
        )
    found = Scheme(kind, words, weights and granularity != "per-tensor", **options)
    return _checked(found, role)


def _of_blocks(
    kind: BlockFormat, words: str, role: str, granularity: str, options: dict[str, Any]
) -> Scheme:
    """The scheme of MX or NVFP4; without a word, the scales of weights have the least error.

    Raises:
        ModelError: Words that such formats leave no choice for.
    """
    if granularity or options.keys() - {"rule"}:
        said = granularity or next(iter(options.keys() - {"rule"})).replace("_", "-")
        raise ModelError(f"{role}: {words!r}: {kind} has its own scales, and nothing is {said}")
    rules: tuple[ScaleRule, ...] = (ScaleRule.MSE, ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN)
    if kind.second_scale:
        rules = ScaleRule.MSE, ScaleRule.ABSMAX
    if role != "weights":
        if kind.second_scale:
            raise ModelError(
                f"{role}: {words!r}: its second scale is one of the whole tensor, which is for "
                'what is known; say "mxfp4" or "mxfp8"'
            )
        rules = (ScaleRule.FLOOR,)
    rule = options.get("rule", rules[0])
    if rule not in rules:
        raise ModelError(f"{role}: {words!r}: the scales of {kind} are {', '.join(rules)}")
    return Scheme(kind, words, block=kind.size, rule=rule)


def _checked(found: Scheme, role: str) -> Scheme:
    """With what integers of that role are.

    Raises:
        ModelError: There are none such.
    """
    kind, words, weights = found.kind, found.words, role == "weights"
    if not isinstance(kind, Integers):
        if found.asymmetric:
            raise ModelError(f"{role}: {words!r}: asymmetric is for integers, not for {kind}")
        return found
    if not 1 <= kind.bits <= _MOST_BITS or (kind.bits == 1 and (kind.signed or found.narrow)):
        remedy = "say bipolar for -1 and 1" if kind.bits == 1 else f"use 1 to {_MOST_BITS} bits"
        raise ModelError(f"{role}: {words!r} is not a quantizer: {remedy}")
    return replace(
        found,
        # Blocks have each value of few bits: nothing is computed with their codes alone.
        narrow=found.narrow
        or (weights and kind.signed and not found.asymmetric and not found.block),
        asymmetric=found.asymmetric or not kind.signed,
    )


def operator_for(grid: Grid) -> Match:
    """The operator that gives the values of a grid, and its call."""
    found = match(grid)
    assert found is not None, "schemes make grids of operators"
    return found


def rounding(grid: Grid | DynamicGrid) -> Callable[[Array, Array | None], Array]:
    """What puts arrays on a grid: what its operator gives, in an array for that, which may be x."""
    if isinstance(grid, DynamicGrid):
        return lambda x, out: grid.rounded(x)
    found = operator_for(grid)
    function, given = found.operator.function, {**found.call.parameters, **found.call.attributes}
    return lambda x, out: np.asarray(function(x, **given, out=out))


def quantized(x: Array, grid: Grid | DynamicGrid) -> Array:
    """x on the grid."""
    return rounding(grid)(x, None)
