# SPDX-License-Identifier: Apache-2.0
"""Figures of the difference between two arrays of one shape."""

import math
from dataclasses import dataclass

import numpy as np

from anybit.comparison.steps import QuantizationStep
from anybit.metrics.arrays import is_float, same_bits
from anybit.metrics.sqnr import compute_sqnr
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Spacing

_MAX_SAMPLES = 5


@dataclass(frozen=True)
class Tolerance:
    """Differences up to `atol`, or up to that many steps, count as equal."""

    steps: float
    atol: float


@dataclass(frozen=True)
class ElementDifference:
    """One differing element. `steps` is the difference in steps; None without a step."""

    index: tuple[int, ...]
    a: float
    b: float
    steps: float | None


@dataclass(frozen=True)
class Figures:
    """The figures of `TensorDifference` that depend on the elements alone."""

    differing: int
    tolerated: int
    largest: float
    relative: float
    sqnr: float
    ulps: int | None
    steps: float | None
    nans: int
    zero_signs: int
    samples: tuple[ElementDifference, ...]


def measure(a: Array, b: Array, step: QuantizationStep | None, tolerance: Tolerance) -> Figures:
    """Return the figures of two arrays of one shape. NaN equals NaN, and 0 equals -0."""
    if same_bits(a, b):
        return _equal(step)
    same_type = a.dtype == b.dtype
    left, right = (a, b) if same_type else (a.astype(np.float64), b.astype(np.float64))
    unequal = find_differing_elements(left, right)
    zero_signs = _zero_signs(left, right)
    if not unequal.any():
        return _equal(step, ulps=0 if same_type else None, zero_signs=zero_signs)
    x, y = left[unequal], right[unequal]
    distance = _measure_distance(x, y)
    spacing = None if step is None else step.select(unequal)
    steps = None if spacing is None else _convert_to_steps(spacing, x, y)
    excess = distance > tolerance.atol
    if spacing is not None and steps is not None and tolerance.steps > 0:
        excess &= ~(steps <= tolerance.steps + _bound_rounding(spacing, a, x, y))
    differing = int(np.count_nonzero(excess))
    valid_steps = np.array([]) if steps is None else steps[~np.isnan(steps)]
    relative, sqnr = _compare_with_signal(left, distance)
    return Figures(
        differing=differing,
        tolerated=len(x) - differing,
        largest=float(distance.max()),
        relative=relative,
        sqnr=sqnr,
        ulps=_find_largest_ulps(x, y) if same_type else None,
        steps=float(valid_steps.max()) if valid_steps.size else None,
        nans=int(np.count_nonzero(_nan(x) != _nan(y))),
        zero_signs=zero_signs,
        samples=_split_samples(unequal, x, y, distance, steps),
    )


def _equal(step: QuantizationStep | None, ulps: int | None = 0, zero_signs: int = 0) -> Figures:
    """Return the figures of arrays with equal elements."""
    steps = None if step is None else 0.0
    return Figures(0, 0, 0.0, 0.0, np.inf, ulps, steps, 0, zero_signs, ())


def find_differing_elements(a: Array, b: Array) -> Array:
    """Return a mask of the elements that are not equal."""
    unequal = np.asarray(a != b)
    if unequal.any():
        unequal &= ~(_nan(a) & _nan(b))
    return unequal


def subtract_arrays(a: Array, b: Array, step: QuantizationStep | None) -> Array:
    """Return b - a, in steps if there is one, else absolute; infinite for NaN against a number."""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        result = np.array(y - x if step is None else step.count_steps(y) - step.count_steps(x))
    result[~find_differing_elements(x, y)] = 0
    result[np.isnan(result)] = np.inf
    return result


def count_floats_between(a: Array, b: Array) -> Array:
    """Return the number of floats between two values, plus one; 0 for equal values.

    The result is exact, in uint64. Infinities are the neighbours of the largest numbers. NaN is not
    allowed. For integers and booleans the result is the difference.
    """
    x, y = _map_to_ordered(a), _map_to_ordered(b)
    # The distance may exceed the signed type; modulo 2^64 it is exact.
    return np.asarray(np.maximum(x, y).view(np.uint64) - np.minimum(x, y).view(np.uint64))


def _map_to_ordered(array: Array) -> Array:
    """Return int64 in the order of the values: the bits of floats, reversed for negative ones."""
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


def _measure_distance(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iub":
        return count_floats_between(x, y).astype(np.float64)
    with np.errstate(all="ignore"):
        distance = np.abs(_widen(x) - _widen(y))
    return np.asarray(np.where(np.isnan(distance), np.inf, distance))


def _widen(floats: Array) -> Array:
    return floats if floats.dtype.itemsize > 8 else floats.astype(np.float64)


def _compare_with_signal(a: Array, distance: Array) -> tuple[float, float]:
    """Return the largest difference over the largest magnitude in A, and the SQNR in dB.

    `distance` has the elements that differ. Infinity or NaN on one side only is unbounded noise.
    """
    values = np.abs(a.astype(np.float64))
    signal = values[np.isfinite(values)]
    largest = float(signal.max(initial=0))
    if not largest or not np.isfinite(distance).all():
        return np.inf, -np.inf
    # In units of the largest, so that no square overflows.
    noise = float(np.sum(np.square(distance / largest)))
    power = float(np.sum(np.square(signal / largest)))
    return float(distance.max()) / largest, compute_sqnr(power, noise)


def _convert_to_steps(step: Spacing, x: Array, y: Array) -> Array:
    """Return the distance in steps; NaN where the step is 0, infinite or NaN."""
    with np.errstate(all="ignore"):
        steps = np.abs(step.count_steps(x) - step.count_steps(y))
    steps = np.where(_nan(x) != _nan(y), np.inf, steps)
    usable = np.isfinite(step.scale) & (step.scale != 0)
    return np.asarray(np.where(usable, steps, np.nan))


def _bound_rounding(step: Spacing, original: Array, x: Array, y: Array) -> Array:
    """Return the error, in steps, of two multiples of a step that are rounded to their type."""
    if not is_float(original):
        return np.zeros(len(x))
    epsilon = float(np.spacing(np.ones((), original.dtype)))
    with np.errstate(all="ignore"):
        return np.asarray(
            epsilon * np.maximum(np.abs(step.count_steps(x)), np.abs(step.count_steps(y)))
        )


def _find_largest_ulps(x: Array, y: Array) -> int | None:
    if x.dtype.itemsize > 8:  # extended precision has no integers of its size
        return None
    numbers = ~(_nan(x) | _nan(y))
    return int(count_floats_between(x[numbers], y[numbers]).max()) if numbers.any() else None


def _split_samples(
    unequal: Array, x: Array, y: Array, distance: Array, steps: Array | None
) -> tuple[ElementDifference, ...]:
    order = _find_largest(distance if steps is None else np.where(np.isnan(steps), -1, steps))
    places = np.flatnonzero(unequal)[order]
    axes = np.unravel_index(places, unequal.shape) if unequal.ndim else ()
    indices = zip(*(axis.tolist() for axis in axes), strict=True) if axes else [()]
    apart = np.full(len(order), np.nan) if steps is None else steps[order]
    figures = (_convert_to_numbers(x[order]), _convert_to_numbers(y[order]), apart.tolist())
    return tuple(
        ElementDifference(index, a, b, None if math.isnan(in_steps) else in_steps)
        for index, a, b, in_steps in zip(indices, *figures, strict=True)
    )


def _find_largest(values: Array) -> Array:
    """Return the indices of the largest values, ties by index. Sorting all would be slow."""
    if len(values) <= _MAX_SAMPLES:
        return np.argsort(-values, kind="stable")
    limit = np.partition(values, -_MAX_SAMPLES)[-_MAX_SAMPLES]
    above = np.flatnonzero(values > limit)
    above = above[np.argsort(-values[above], kind="stable")]
    return np.concatenate([above, np.flatnonzero(values == limit)[: _MAX_SAMPLES - len(above)]])


def _convert_to_numbers(values: Array) -> list[float]:
    """Return Python numbers. Integers stay integers: floats cannot represent all of them."""
    if values.dtype.kind not in "iu":
        values = values.astype(np.int8 if values.dtype.kind == "b" else np.float64)
    numbers: list[float] = values.tolist()
    return numbers
