# SPDX-License-Identifier: Apache-2.0
"""What is known of tensors whose elements come from several others."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anybit.onnx.analysis.carriers import MOST_CHANNELS, Carrier, Codes, of_interval, on_units
from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.points import regrid
from anybit.onnx.analysis.units import LOWEST_EXPONENT
from anybit.onnx.graph.constants import Array

_MOST_MEMBERS = 2**12


def union(carriers: Sequence[Carrier]) -> Carrier:
    """What is known of elements each of which is one of these, in its own channel."""
    if len({each.axis for each in carriers} - {None}) > 1 or _uneven(carriers):
        carriers = [each.whole() for each in carriers]
    axis = next((each.axis for each in carriers if each.axis is not None), None)
    lowest = _least([each.lowest for each in carriers])
    highest = -_least([-each.highest for each in carriers])
    nan = any(each.nan for each in carriers)
    plain = of_interval(lowest, highest, axis, exponent=_exponent(carriers), nan=nan)
    codes = _codes(carriers)
    if codes is None:
        return _of_values(carriers, plain) or on_units(plain)
    return replace(plain, codes=codes.uniform(plain.axis)[1])


def _of_values(carriers: Sequence[Carrier], plain: Carrier) -> Carrier | None:
    """Single values in units that they have in common: -1 and 1 without 0."""
    exponent = plain.exponent
    if exponent is None or not plain.bounded or plain.axis is not None:
        return None
    if not LOWEST_EXPONENT <= exponent <= 127 or any(
        each.lowest != each.highest for each in carriers
    ):
        return None
    values = np.asarray([[each.lowest] for each in carriers], np.float32)
    unit = np.asarray(2.0**exponent, np.float32)
    every = np.ones(values.shape, np.bool_)
    return regrid(values, every, unit, np.zeros((), np.float32), None)


def _uneven(carriers: Sequence[Carrier]) -> bool:
    return len({each.lowest.size for each in carriers} - {1}) > 1


def _least(arrays: Sequence[Array]) -> Array:
    least = arrays[0]
    for each in arrays[1:]:
        least = np.minimum(least, each)
    return least


def _exponent(carriers: Sequence[Carrier]) -> int | None:
    """Of which power of two all are multiples. What is 0 is one of any."""
    found = [each.exponent for each in carriers if each.reach != 0]
    known = [each for each in found if each is not None]
    return min(known, default=0) if len(known) == len(found) else None


def _codes(carriers: Sequence[Carrier]) -> Codes | None:
    """Codes for all, if those that have codes have the same, and the others are single values."""
    first = next((each.codes for each in carriers if each.codes is not None), None)
    if first is None:
        return None
    found = []
    for each in carriers:
        same = _like(each.codes, first) or _constant(each, first)
        if same is None:
            return None
        found.append(same)
    lowest = _least([each.lowest for each in found])
    highest = -_least([-each.highest for each in found])
    return replace(
        first,
        lowest=lowest,
        highest=highest,
        step=_step(found),
        members=_members(found),
        allowed=first.allowed if all(each.allowed == first.allowed for each in found) else None,
    )


def _like(codes: Codes | None, first: Codes) -> Codes | None:
    if codes is None:
        return None
    same = np.all(codes.scale == first.scale) and np.all(codes.zeropt == first.zeropt)
    return codes if same else None


def _constant(carrier: Carrier, first: Codes) -> Codes | None:
    """The code of a single value."""
    value = carrier.lowest
    if not np.array_equal(value, carrier.highest) or not np.isfinite(value).all():
        return None
    code = np.rint(np.where(first.scale == 0, 0, value / first.scale) + first.zeropt)
    if np.any(np.abs(code) > 2**24):
        return None
    exact = (code.astype(np.float32) - first.zeropt) * first.scale
    if np.any(exact.astype(np.float64) != value):
        return None
    whole = np.asarray(code, np.int64)
    single = frozenset({int(whole.flat[0])}) if np.all(whole == whole.flat[0]) else None
    # A zero-point need not be a code of the type, and stands for the zeros of borders all the same.
    of_type = first.allowed is not None and all(each in first.allowed for each in whole.flat)
    allowed = first.allowed if of_type else None
    return replace(first, lowest=whole, highest=whole, step=1, members=single, allowed=allowed)


def _step(found: Sequence[Codes]) -> int:
    """The largest with which all codes that can occur, of all channels, are one range."""
    steps = [each.step for each in found if np.any(each.highest > each.lowest)]
    lows = np.concatenate([np.ravel(each.lowest) for each in found])
    return max(1, math.gcd(*steps, int(np.gcd.reduce(lows - lows[0]))))


def _members(found: Sequence[Codes]) -> frozenset[int] | None:
    if all(each.members is None for each in found):
        return None
    members: set[int] = set()
    for each in found:
        if each.members is None and len(each.hull) > _MOST_MEMBERS:
            return None
        members |= each.hull_members
    return frozenset(members)


def joined(carriers: Sequence[Carrier], axis: int, sizes: Sequence[int]) -> Carrier | None:
    """What is known of tensors behind one another along an axis, counted from the end.

    None if they do not all have channels along this axis, or none at all.

    Raises:
        Mismatch: One has not as many channels as its size says.
    """
    if any(each.axis not in (None, axis) for each in carriers) or sum(sizes) > MOST_CHANNELS:
        return None

    def behind(arrays: Sequence[Array]) -> Array:
        pairs = zip(arrays, sizes, strict=True)
        return np.concatenate([np.broadcast_to(array, (size,)) for array, size in pairs])

    if any(each.lowest.size not in (1, size) for each, size in zip(carriers, sizes, strict=True)):
        raise Mismatch("a tensor has another number of channels than scales")
    lowest = behind([each.lowest for each in carriers])
    highest = behind([each.highest for each in carriers])
    nan = any(each.nan for each in carriers)
    plain = of_interval(lowest, highest, axis, exponent=_exponent(carriers), nan=nan)
    found = [each.codes for each in carriers if each.codes is not None]
    if len(found) < len(carriers):
        return on_units(plain)
    codes = Codes(
        behind([each.scale for each in found]),
        behind([each.zeropt for each in found]),
        behind([each.lowest for each in found]),
        behind([each.highest for each in found]),
        _step(found),
        _members(found),
        found[0].allowed if all(each.allowed == found[0].allowed for each in found) else None,
    )
    return replace(plain, codes=codes)
