# SPDX-License-Identifier: Apache-2.0
"""Codes of constants, from their quantizers or from their values alone."""

from collections.abc import Iterator

import numpy as np

from anybit.onnx.analysis.abstract_values import AbstractValue, CodeRanges, from_interval
from anybit.onnx.analysis.integers import summarize_members
from anybit.onnx.analysis.mismatch import Mismatch, check_channels
from anybit.onnx.analysis.units import EXACT, LOWEST_EXPONENT, find_exponent
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import IntegerGrid

# Codes that are recovered from values are smaller than this.
_MOST_CODE = 2**15
_MOST_DISTINCT = 2**16
_MOST_LOOKED_AT = 2**22


def from_constant(array: Array) -> AbstractValue | None:
    """Return the abstract value of a constant; integers are their own codes."""
    if array.size == 0 or array.dtype == np.float64 or array.dtype == np.float16:
        return None
    finite = array[np.isfinite(array)]
    if array.dtype.kind != "f":
        lowest, highest = int(array.min()), int(array.max())
        if max(abs(lowest), abs(highest)) > EXACT:
            return from_interval(lowest, highest, exponent=0)
        one, none = np.ones((), np.float32), np.zeros((), np.float32)
        codes = CodeRanges(one, none, np.asarray(lowest, np.int64), np.asarray(highest, np.int64))
        ends = np.asarray(float(lowest)), np.asarray(float(highest))
        return AbstractValue(*ends, exponent=0, codes=codes, integers=array)
    nan = bool(np.isnan(array).any())
    if nan and np.isnan(array).all():
        return None
    exponent = find_exponent(finite) if finite.size else 0
    return from_interval(
        float(np.nanmin(array)), float(np.nanmax(array)), exponent=exponent, nan=nan
    )


def encode_constant(
    values: Array, grid: IntegerGrid, allowed: range | frozenset[int]
) -> AbstractValue | None:
    """Return a quantized constant with its codes; None if these do not decode to the values."""
    layout = grid.channels
    if layout is None:
        return None
    try:
        integers = grid.encode(values, np.int32)
    except ValueError:
        return None
    return from_integers(integers, layout.scale, layout.zeropt, layout.axis, allowed)


def from_integers(
    integers: Array,
    scale: Array,
    zeropt: Array,
    axis: int | None,
    allowed: range | frozenset[int] | None,
) -> AbstractValue | None:
    """Return a constant of these codes, with the ranges per channel of an axis.

    Raises:
        Mismatch: The numbers of scales and of channels differ.
    """
    if integers.size == 0:
        return None
    other = None
    if axis is not None:
        if -axis > integers.ndim or check_channels(scale, zeropt) not in (1, integers.shape[axis]):
            raise Mismatch("there are not as many scales as channels")
        other = tuple(
            other_axis for other_axis in range(integers.ndim) if other_axis != axis % integers.ndim
        )
    lowest, highest = (
        np.asarray(bound, np.int64)
        for bound in (integers.min(axis=other), integers.max(axis=other))
    )
    step, members = summarize_members(integers) if integers.size <= _MOST_LOOKED_AT else (1, None)
    if np.any((lowest - lowest.min()) % step):
        step = 1
    codes = CodeRanges(scale, zeropt, lowest, highest, step, members, allowed)
    axis, codes = codes.align(axis)
    grid = IntegerGrid(codes.scale, codes.zeropt, codes.hull)
    ends = np.stack([grid.decode(codes.lowest), grid.decode(codes.highest)]).astype(np.float64)
    if not np.isfinite(ends).all():
        return None
    spread = AbstractValue(ends.min(axis=0), ends.max(axis=0), axis, None, False, codes)
    assert spread.grid is not None, "it has codes"
    exponent = find_exponent(spread.grid.decode(integers))
    return AbstractValue(
        spread.lowest, spread.highest, axis, exponent, False, codes, integers=integers
    )


def recover_codes(array: Array, axis: int) -> AbstractValue | None:
    """Return a float constant with codes that decode bit for bit; None if there are none.

    There is one scale, or one per channel of the axis.
    """
    if array.dtype != np.float32 or array.size == 0 or not np.isfinite(array).all():
        return None
    whole = _find_scale(array)
    if whole is not None:
        return _encode(array, np.asarray(whole), None)
    if not -array.ndim <= axis < 0 or array.shape[axis] > 2**12:
        return None
    scales = []
    for channel in np.moveaxis(array, axis, 0):
        scale = _find_scale(channel)
        if scale is None:
            return None
        scales.append(scale)
    return _encode(array, np.asarray(scales, np.float32), axis)


def _encode(array: Array, scale: Array, axis: int | None) -> AbstractValue | None:
    shape = scale if axis is None else scale.reshape(-1, *[1] * (-axis - 1))
    grid = IntegerGrid(shape, np.zeros((), np.float32), range(-_MOST_CODE, _MOST_CODE + 1))
    try:
        integers = grid.encode(array, np.int32)
    except ValueError:
        return None
    return from_integers(integers, scale, np.zeros((), np.float32), axis, None)


def _find_scale(values: Array) -> np.float32 | None:
    """Return the largest scale, among the candidates, that all values are small multiples of."""
    distinct = np.unique(np.abs(values))
    distinct = distinct[distinct > 0]
    if distinct.size == 0:
        return np.float32(1)
    if distinct.size > _MOST_DISTINCT:
        return None
    for scale in _iter_candidates(distinct):
        with np.errstate(all="ignore"):
            codes = np.rint(distinct / scale)
            if codes[-1] <= _MOST_CODE and np.array_equal(codes * scale, distinct):
                return scale
    return None


def _iter_candidates(distinct: Array) -> Iterator[np.float32]:
    """Yield candidate scales of ascending positive numbers, the largest first."""
    smallest = distinct[0]
    gaps = np.diff(distinct, prepend=np.float32(0))
    step = gaps.min()
    for guess in dict.fromkeys((smallest, step, *(smallest / np.float32(k) for k in range(2, 9)))):
        if not guess > 0:
            continue
        yield guess
        # A gap of rounded products is off by their rounding; the largest product is off least.
        largest = distinct[-1]
        count = np.rint(largest / guess)
        if 0 < count <= _MOST_CODE:
            refined = np.float32(largest / count)
            yield refined
            yield np.nextafter(refined, np.float32(0))
            yield np.nextafter(refined, np.float32(np.inf))
    exponent = find_exponent(distinct)
    if exponent >= LOWEST_EXPONENT:
        yield np.float32(2.0**exponent)
