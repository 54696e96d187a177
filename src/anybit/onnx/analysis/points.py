# SPDX-License-Identifier: Apache-2.0
"""Images of elementwise functions on the values that can occur."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import (
    AbstractValue,
    CodeRanges,
    encode_units,
    from_codes,
    from_interval,
)
from anybit.onnx.analysis.integers import summarize_members
from anybit.onnx.analysis.mismatch import check_channels
from anybit.onnx.analysis.units import EXACT, LOWEST_EXPONENT, find_exponent
from anybit.onnx.graph.constants import Array

MOST_POINTS = 2**17
"""The maximal number of values to evaluate; beyond it, only the bounds."""


@dataclass(frozen=True, eq=False)
class Points:
    """Values of a tensor: float32 of shape (points, channels).

    Attributes:
        occur: Mask of the points that can occur.
        axis: The axis of the channels, from the end; None for one channel.
        every: Whether these are all values; otherwise they are the lowest, the highest, and the
            turning points in between (such as 0).
    """

    values: Array
    occur: Array
    axis: int | None
    every: bool


def list_points(
    x: AbstractValue, axis: int | None, *parameters: Array, turns: Sequence[float] = (0.0,)
) -> Points:
    """Return the points of a tensor that is combined with parameters along an axis.

    Raises:
        Mismatch: The numbers of parameters and of channels differ.
    """
    if axis is not None and x.axis not in (None, axis):
        x = x.merge_channels()
    check_channels(x.lowest, *parameters)
    all_points = x.values(MOST_POINTS)
    axis = axis if x.axis is None else x.axis
    if all_points is not None:
        return Points(*all_points, axis, every=True)
    lowest, highest = x.lowest.reshape(-1), x.highest.reshape(-1)
    inner = [np.clip(np.full(lowest.shape, turn), lowest, highest) for turn in turns]
    with np.errstate(all="ignore"):
        # The values are float32, so that rounded bounds are bounds.
        values = np.stack([lowest, highest, *inner]).astype(np.float32)
    return Points(values, np.ones(values.shape, np.bool_), axis, every=False)


def map_points(
    points: Points,
    function: Callable[[Array], Array],
    scales: Sequence[tuple[Array, Array]],
    *,
    nan: bool,
    margin: float = 0.0,
    sources: Sequence[ir.Value] = (),
) -> AbstractValue:
    """Return the abstract value of the output of a function.

    Args:
        points: The arguments. If these are not all values, the function is monotone between them.
        function: From float32 to float32 of the same shape, or with more channels.
        scales: Candidate scales and zero-points of the results, 0-d or per channel. They are tried
            if all results are known; powers of two are tried last.
        nan: Whether NaN may occur; it is propagated.
        margin: Relative and absolute tolerance for other implementations; with one there are no
            codes.
        sources: The tensors that determine the result.
    """
    with np.errstate(all="ignore"):
        results = np.asarray(function(points.values))
    occur = np.broadcast_to(points.occur, results.shape)
    low, high = _find_ends(results, occur)
    nan_found = bool(np.isnan(results[occur]).any())
    nan = nan or nan_found
    # A function that is NaN at a bound may have any value inside.
    if np.any(low > high) or (not points.every and nan_found):
        return from_interval(-np.inf, np.inf, nan=True, sources=sources)
    wider = margin * (np.maximum(np.abs(low), np.abs(high)) + 1) if margin else 0.0
    plain = from_interval(low - wider, high + wider, points.axis, nan=nan, sources=sources)
    if not points.every or margin or nan or plain.infinite:
        return plain
    for scale, zeropt in scales:
        abstract = regrid(results, occur, scale, zeropt, points.axis)
        if abstract is not None:
            return replace(abstract, sources=plain.sources)
    exponent = find_exponent(results[occur])
    plain = from_interval(low, high, points.axis, exponent=exponent, sources=sources)
    abstract = _encode_units(results, occur, exponent, points.axis)
    return encode_units(plain) if abstract is None else replace(abstract, sources=plain.sources)


def _find_ends(results: Array, occur: Array) -> tuple[Array, Array]:
    """Return the lowest and the highest occurring number per channel, in float64."""
    defined = occur & ~np.isnan(results)
    low = np.where(defined, results, np.inf).min(axis=0)
    return low.astype(np.float64), np.where(defined, results, -np.inf).max(axis=0).astype(
        np.float64
    )


def _encode_units(
    results: Array, occur: Array, exponent: int, axis: int | None
) -> AbstractValue | None:
    if not LOWEST_EXPONENT <= exponent <= 127:
        return None
    unit = np.asarray(2.0**exponent, np.float32)
    return regrid(results, occur, unit, np.zeros((), np.float32), axis)


def regrid(
    results: Array, occur: Array, scale: Array, zeropt: Array, axis: int | None
) -> AbstractValue | None:
    """Return the abstract value of values that are codes of a scale and a zero-point.

    None if they are not on that grid.
    """
    if not np.isfinite(scale).all() or not np.isfinite(zeropt).all():
        return None
    with np.errstate(all="ignore"):
        codes = np.rint(results.astype(np.float64) / scale + zeropt)
        codes = np.where(np.broadcast_to(scale == 0, codes.shape), np.rint(zeropt), codes)
        codes = np.where(occur, codes, zeropt)
        if not np.all(np.abs(codes) <= EXACT) or not np.all((np.rint(codes) == codes) | ~occur):
            return None
        values = (codes.astype(np.float32) - zeropt).astype(np.float32) * scale
    if not np.array_equal(np.where(occur, values, 0), np.where(occur, results, 0)):
        return None
    whole = codes.astype(np.int64)
    lowest = np.where(occur, whole, 2**40).min(axis=0)
    highest = np.where(occur, whole, -(2**40)).max(axis=0)
    step, members = summarize_members(whole[occur])
    if np.any((lowest - lowest.min()) % step):
        step = 1
    if lowest.size == 1:
        lowest, highest = lowest.reshape(()), highest.reshape(())
    return from_codes(CodeRanges(scale, zeropt, lowest, highest, step, members), axis)
