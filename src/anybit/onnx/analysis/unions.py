# SPDX-License-Identifier: Apache-2.0
"""Unions of abstract values."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anybit.onnx.analysis.abstract_values import (
    MOST_CHANNELS,
    AbstractValue,
    CodeRanges,
    encode_units,
    from_interval,
)
from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.points import regrid
from anybit.onnx.analysis.units import LOWEST_EXPONENT
from anybit.onnx.graph.constants import Array

_MOST_MEMBERS = 2**12


def unite(abstracts: Sequence[AbstractValue]) -> AbstractValue:
    """Return the abstract value of elements that come from any of these, in the same channel."""
    if len({abstract.axis for abstract in abstracts} - {None}) > 1 or _is_uneven(abstracts):
        abstracts = [abstract.merge_channels() for abstract in abstracts]
    axis = next((abstract.axis for abstract in abstracts if abstract.axis is not None), None)
    lowest = _take_least([abstract.lowest for abstract in abstracts])
    highest = -_take_least([-abstract.highest for abstract in abstracts])
    nan = any(abstract.nan for abstract in abstracts)
    plain = from_interval(lowest, highest, axis, exponent=_find_exponent(abstracts), nan=nan)
    codes = _unite_codes(abstracts)
    if codes is None:
        return _unite_values(abstracts, plain) or encode_units(plain)
    return replace(plain, codes=codes.align(plain.axis)[1])


def _unite_values(abstracts: Sequence[AbstractValue], plain: AbstractValue) -> AbstractValue | None:
    """Return the union of single values on a common unit: -1 and 1 without 0."""
    exponent = plain.exponent
    if exponent is None or not plain.bounded or plain.axis is not None:
        return None
    if not LOWEST_EXPONENT <= exponent <= 127 or any(
        abstract.lowest != abstract.highest for abstract in abstracts
    ):
        return None
    values = np.asarray([[abstract.lowest] for abstract in abstracts], np.float32)
    unit = np.asarray(2.0**exponent, np.float32)
    every = np.ones(values.shape, np.bool_)
    return regrid(values, every, unit, np.zeros((), np.float32), None)


def _is_uneven(abstracts: Sequence[AbstractValue]) -> bool:
    return len({abstract.lowest.size for abstract in abstracts} - {1}) > 1


def _take_least(arrays: Sequence[Array]) -> Array:
    least = arrays[0]
    for array in arrays[1:]:
        least = np.minimum(least, array)
    return least


def _find_exponent(abstracts: Sequence[AbstractValue]) -> int | None:
    """Return the exponent that all are multiples of; 0 is a multiple of any."""
    exponents = [abstract.exponent for abstract in abstracts if abstract.reach != 0]
    finite = [exponent for exponent in exponents if exponent is not None]
    return min(finite, default=0) if len(finite) == len(exponents) else None


def _unite_codes(abstracts: Sequence[AbstractValue]) -> CodeRanges | None:
    """Return common codes, if all codes are on one grid and the others are single values."""
    first = next((abstract.codes for abstract in abstracts if abstract.codes is not None), None)
    if first is None:
        return None
    all_codes = []
    for abstract in abstracts:
        same = _convert_like(abstract.codes, first) or _encode_constant(abstract, first)
        if same is None:
            return None
        all_codes.append(same)
    lowest = _take_least([codes.lowest for codes in all_codes])
    highest = -_take_least([-codes.highest for codes in all_codes])
    return replace(
        first,
        lowest=lowest,
        highest=highest,
        step=_find_step(all_codes),
        members=_unite_members(all_codes),
        allowed=first.allowed
        if all(codes.allowed == first.allowed for codes in all_codes)
        else None,
    )


def _convert_like(codes: CodeRanges | None, first: CodeRanges) -> CodeRanges | None:
    if codes is None:
        return None
    same = np.all(codes.scale == first.scale) and np.all(codes.zeropt == first.zeropt)
    return codes if same else None


def _encode_constant(abstract: AbstractValue, first: CodeRanges) -> CodeRanges | None:
    """Return the code of a single value."""
    value = abstract.lowest
    if not np.array_equal(value, abstract.highest) or not np.isfinite(value).all():
        return None
    code = np.rint(np.where(first.scale == 0, 0, value / first.scale) + first.zeropt)
    if np.any(np.abs(code) > 2**24):
        return None
    exact = (code.astype(np.float32) - first.zeropt) * first.scale
    if np.any(exact.astype(np.float64) != value):
        return None
    whole = np.asarray(code, np.int64)
    single = frozenset({int(whole.flat[0])}) if np.all(whole == whole.flat[0]) else None
    # A zero-point may lie outside the type; it still represents the zeros of borders.
    of_type = first.allowed is not None and all(bound in first.allowed for bound in whole.flat)
    allowed = first.allowed if of_type else None
    return replace(first, lowest=whole, highest=whole, step=1, members=single, allowed=allowed)


def _find_step(all_codes: Sequence[CodeRanges]) -> int:
    """Return the largest step of a range with all codes of all channels."""
    steps = [codes.step for codes in all_codes if np.any(codes.highest > codes.lowest)]
    lows = np.concatenate([np.ravel(codes.lowest) for codes in all_codes])
    return max(1, math.gcd(*steps, int(np.gcd.reduce(lows - lows[0]))))


def _unite_members(all_codes: Sequence[CodeRanges]) -> frozenset[int] | None:
    if all(codes.members is None for codes in all_codes):
        return None
    members: set[int] = set()
    for codes in all_codes:
        if codes.members is None and len(codes.hull) > _MOST_MEMBERS:
            return None
        members |= codes.hull_members
    return frozenset(members)


def concatenate(
    abstracts: Sequence[AbstractValue], axis: int, sizes: Sequence[int]
) -> AbstractValue | None:
    """Return the abstract value of tensors concatenated along an axis, counted from the end.

    None unless all have channels along this axis, or none has any.

    Raises:
        Mismatch: The number of channels of one differs from its size.
    """
    if (
        any(abstract.axis not in (None, axis) for abstract in abstracts)
        or sum(sizes) > MOST_CHANNELS
    ):
        return None

    def chain(arrays: Sequence[Array]) -> Array:
        pairs = zip(arrays, sizes, strict=True)
        return np.concatenate([np.broadcast_to(array, (size,)) for array, size in pairs])

    if any(
        abstract.lowest.size not in (1, size)
        for abstract, size in zip(abstracts, sizes, strict=True)
    ):
        raise Mismatch("a tensor has another number of channels than scales")
    lowest = chain([abstract.lowest for abstract in abstracts])
    highest = chain([abstract.highest for abstract in abstracts])
    nan = any(abstract.nan for abstract in abstracts)
    plain = from_interval(lowest, highest, axis, exponent=_find_exponent(abstracts), nan=nan)
    all_codes = [abstract.codes for abstract in abstracts if abstract.codes is not None]
    if len(all_codes) < len(abstracts):
        return encode_units(plain)
    codes = CodeRanges(
        chain([part.scale for part in all_codes]),
        chain([part.zeropt for part in all_codes]),
        chain([part.lowest for part in all_codes]),
        chain([part.highest for part in all_codes]),
        _find_step(all_codes),
        _unite_members(all_codes),
        all_codes[0].allowed
        if all(part.allowed == all_codes[0].allowed for part in all_codes)
        else None,
    )
    return replace(plain, codes=codes)
