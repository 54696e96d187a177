# SPDX-License-Identifier: Apache-2.0
"""By how much two arrays of one shape differ."""

import math
from dataclasses import dataclass

import numpy as np

from anybit.comparison.arrays import Array, is_float, same_bits
from anybit.comparison.steps import Step
from anybit.ops.grids import Spacing

_SAMPLES = 5


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal: a difference up to `atol`, or up to that many steps."""

    steps: float
    atol: float


@dataclass(frozen=True)
class Sample:
    """One differing element; `steps` is None where the step is not known."""

    index: tuple[int, ...]
    a: float
    b: float
    steps: float | None


@dataclass(frozen=True)
class Measured:
    """The figures of `TensorDifference` that follow from the elements alone."""

    differing: int
    within: int
    largest: float
    relative: float
    sqnr: float
    ulps: int | None
    steps: float | None
    nans: int
    zero_signs: int
    samples: tuple[Sample, ...]


def measure(a: Array, b: Array, step: Step | None, tolerance: Tolerance) -> Measured:
    """The figures for two arrays of one shape. NaN equals NaN, and 0 equals -0."""
    if same_bits(a, b):
        return _nothing(step)
    same_type = a.dtype == b.dtype
    left, right = (a, b) if same_type else (a.astype(np.float64), b.astype(np.float64))
    unequal = differing_elements(left, right)
    zero_signs = _zero_signs(left, right)
    if not unequal.any():
        return _nothing(step, ulps=0 if same_type else None, zero_signs=zero_signs)
    x, y = left[unequal], right[unequal]
    distance = _distance(x, y)
    picked = None if step is None else step.at(unequal)
    steps = None if picked is None else _in_steps(picked, x, y)
    excess = distance > tolerance.atol
    if picked is not None and steps is not None and tolerance.steps > 0:
        excess &= ~(steps <= tolerance.steps + _rounding(picked, a, x, y))
    differing = int(np.count_nonzero(excess))
    known = np.array([]) if steps is None else steps[~np.isnan(steps)]
    relative, sqnr = _against_signal(left, distance)
    return Measured(
        differing=differing,
        within=len(x) - differing,
        largest=float(distance.max()),
        relative=relative,
        sqnr=sqnr,
        ulps=_largest_ulps(x, y) if same_type else None,
        steps=float(known.max()) if known.size else None,
        nans=int(np.count_nonzero(_nan(x) != _nan(y))),
        zero_signs=zero_signs,
        samples=_samples(unequal, x, y, distance, steps),
    )


def _nothing(step: Step | None, ulps: int | None = 0, zero_signs: int = 0) -> Measured:
    """The figures of arrays whose elements are equal."""
    steps = None if step is None else 0.0
    return Measured(0, 0, 0.0, 0.0, np.inf, ulps, steps, 0, zero_signs, ())


def differing_elements(a: Array, b: Array) -> Array:
    """A mask of the elements that are not equal."""
    unequal = np.asarray(a != b)
    if unequal.any():
        unequal &= ~(_nan(a) & _nan(b))
    return unequal


def differences(a: Array, b: Array, step: Step | None) -> Array:
    """b - a per element: in steps if there is one, else absolute. Infinite for NaN to number."""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        result = np.array(y - x if step is None else step.positions(y) - step.positions(x))
    result[~differing_elements(x, y)] = 0
    result[np.isnan(result)] = np.inf
    return result


def ulps_between(a: Array, b: Array) -> Array:
    """How many values of their type lie between two floats, plus one; 0 for equal ones.

    Exact, as uint64. Infinities are the neighbours of the largest numbers; there must be no NaN.
    For integers and booleans it is the difference.
    """
    x, y = _ordered(a), _ordered(b)
    # The distance may exceed the signed type; modulo 2^64 it is exact.
    return np.asarray(np.maximum(x, y).view(np.uint64) - np.minimum(x, y).view(np.uint64))


def _ordered(array: Array) -> Array:
    """Integers in the order of the values: the bits of a float, with those of negatives turned."""
    if array.dtype == np.uint64:
        return np.asarray((array ^ np.uint64(2**63)).view(np.int64))
    if not is_float(array):
        return array.astype(np.int64)
    bits = np.ascontiguousarray(array).view(f"i{array.dtype.itemsize}").astype(np.int64)
    lowest = -(2 ** (8 * array.dtype.itemsize - 1))
    return np.where(bits < 0, lowest - bits, bits)


def _nan(array: Array) -> Array:
    return np.asarray(array != array) if is_float(array) else np.zeros(array.shape, bool)


def _zero_signs(a: Array, b: Array) -> int:
    if not is_float(a):
        return 0
    zeros = np.asarray((a == 0) & (b == 0))
    return int(np.count_nonzero(np.signbit(a[zeros]) != np.signbit(b[zeros]))) if zeros.any() else 0


def _distance(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iub":
        return ulps_between(x, y).astype(np.float64)
    with np.errstate(all="ignore"):
        distance = np.abs(_widened(x) - _widened(y))
    return np.asarray(np.where(np.isnan(distance), np.inf, distance))


def _widened(floats: Array) -> Array:
    return floats if floats.dtype.itemsize > 8 else floats.astype(np.float64)


def _against_signal(a: Array, distance: Array) -> tuple[float, float]:
    """The largest difference over the largest magnitude of A, and A over the difference in dB.

    `distance` is that of the elements that differ. What is infinite or NaN on one side only is
    noise without bound.
    """
    values = np.abs(a.astype(np.float64))
    signal = values[np.isfinite(values)]
    largest = float(signal.max(initial=0))
    if not largest or not np.isfinite(distance).all():
        return np.inf, -np.inf
    # In units of the largest, so that no square leaves the range of floats.
    noise = float(np.sum(np.square(distance / largest)))
    power = float(np.sum(np.square(signal / largest)))
    sqnr = 10 * np.log10(power / noise) if noise else np.inf
    return float(distance.max()) / largest, float(sqnr)


def _in_steps(step: Spacing, x: Array, y: Array) -> Array:
    """NaN where the step itself is of no use."""
    with np.errstate(all="ignore"):
        steps = np.abs(step.positions(x) - step.positions(y))
    steps = np.where(_nan(x) != _nan(y), np.inf, steps)
    usable = np.isfinite(step.scale) & (step.scale != 0)
    return np.asarray(np.where(usable, steps, np.nan))


def _rounding(step: Spacing, original: Array, x: Array, y: Array) -> Array:
    """By how much two multiples of a step may miss them: each is rounded to its type."""
    if not is_float(original):
        return np.zeros(len(x))
    epsilon = float(np.spacing(np.ones((), original.dtype)))
    with np.errstate(all="ignore"):
        return np.asarray(
            epsilon * np.maximum(np.abs(step.positions(x)), np.abs(step.positions(y)))
        )


def _largest_ulps(x: Array, y: Array) -> int | None:
    if x.dtype.itemsize > 8:  # extended precision has no integers of its size
        return None
    numbers = ~(_nan(x) | _nan(y))
    return int(ulps_between(x[numbers], y[numbers]).max()) if numbers.any() else None


def _samples(
    unequal: Array, x: Array, y: Array, distance: Array, steps: Array | None
) -> tuple[Sample, ...]:
    order = _largest(distance if steps is None else np.where(np.isnan(steps), -1, steps))
    places = np.flatnonzero(unequal)[order]
    axes = np.unravel_index(places, unequal.shape) if unequal.ndim else ()
    indices = zip(*(each.tolist() for each in axes), strict=True) if axes else [()]
    apart = np.full(len(order), np.nan) if steps is None else steps[order]
    figures = (_numbers(x[order]), _numbers(y[order]), apart.tolist())
    return tuple(
        Sample(index, a, b, None if math.isnan(each) else each)
        for index, a, b, each in zip(indices, *figures, strict=True)
    )


def _largest(values: Array) -> Array:
    """The places of the largest few, of equal ones the first. Sorting all would take long."""
    if len(values) <= _SAMPLES:
        return np.argsort(-values, kind="stable")
    limit = np.partition(values, -_SAMPLES)[-_SAMPLES]
    above = np.flatnonzero(values > limit)
    above = above[np.argsort(-values[above], kind="stable")]
    return np.concatenate([above, np.flatnonzero(values == limit)[: _SAMPLES - len(above)]])


def _numbers(values: Array) -> list[float]:
    """Python numbers; integers stay integers, which may be larger than floats can tell apart."""
    if values.dtype.kind not in "iu":
        values = values.astype(np.int8 if values.dtype.kind == "b" else np.float64)
    numbers: list[float] = values.tolist()
    return numbers
