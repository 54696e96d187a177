# SPDX-License-Identifier: Apache-2.0
"""Every input there is, or a sample of it in the quick set.

All 2^16 inputs of the half types meet every format of up to 8 bits in every mode. All 2^32 inputs
of float32 meet 4-bit integers, e4m3 and e2m1; those with a fraction meet rounding as such.
"""

import functools
from itertools import product
from typing import Any

import half_reference
import numpy as np
import oracle
import pytest
from backends import Backend
from cases import MODES, assert_same_bits, bfloat16, computed
from minifloat_formats import MINIFLOATS

import anybit

HALF_BACKENDS = [Backend.REFERENCE, Backend.BASELINE, Backend.AVX2, Backend.AVX512]
HALF_TYPES = [np.dtype(np.float16), bfloat16]
SCALES = (1.0, 0.3, -0.5)
SCALES_AND_ZERO_POINTS = ((1.0, 0.0), (0.3, 3.0), (0.75, -0.5))

every_half = pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(997, id="sample")]
)
on_half_backends = pytest.mark.parametrize("backend", HALF_BACKENDS, indirect=True)


def halves(dtype: np.dtype, step: int) -> np.ndarray:
    return np.arange(0, 2**16, step, dtype=np.uint16).view(dtype)


def sampled(choices: list[Any], step: int) -> list[Any]:
    """Return all choices for all inputs, some for a sample: calls cost more than elements."""
    return choices if step == 1 else choices[::5]


def usual_bias(e: int) -> int:
    return 2 ** (e - 1) - 1


@functools.lru_cache(maxsize=1)
def float_answers(dtype: np.dtype, step: int) -> list[tuple[Any, dict[str, np.ndarray]]]:
    """Return results by parameters and mode; back-ends share them as they take longest."""
    requested = sampled(list(product(MINIFLOATS, SCALES)), step)
    parameters = [(scale, e, m, usual_bias(e)) for (e, m), scale in requested]
    return [
        (parameter, half_reference.float_quant(halves(dtype, step), *parameter, MODES))
        for parameter in parameters
    ]


@every_half
@on_half_backends
@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
def test_float_quant_matches_reference_on_every_half(
    backend: Backend, dtype: np.dtype, step: int
) -> None:
    x = halves(dtype, step)
    for parameters, by_mode in float_answers(dtype, step):
        for mode, expected in by_mode.items():
            actual = backend.apply("float_quant", x, *parameters, rounding_mode=mode)
            assert_same_bits(actual, expected, computed(f"{parameters}_{mode}", x))


def bounds(bits: int, signed: int, narrow: int) -> tuple[int, int]:
    if signed:
        return narrow - 2 ** (bits - 1), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1 - narrow


@functools.lru_cache(maxsize=1)
def int_answers(dtype: np.dtype, step: int) -> list[tuple[Any, dict[str, np.ndarray]]]:
    """Return results by (bits, signed, narrow), scale and zero-point, and mode."""
    x, actual = halves(dtype, step), []
    for kind in sampled(list(product(range(1, 9), (0, 1), (0, 1))), step):
        for shift in SCALES_AND_ZERO_POINTS:
            by_mode = half_reference.int_quant(x, *shift, bounds(*kind), MODES)
            actual.append(((kind, shift), by_mode))
    return actual


@every_half
@on_half_backends
@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
def test_int_quant_matches_reference_on_every_half(
    backend: Backend, dtype: np.dtype, step: int
) -> None:
    x = halves(dtype, step)
    for ((bits, signed, narrow), shift), by_mode in int_answers(dtype, step):
        for mode, expected in by_mode.items():
            attributes = {"signed": signed, "narrow": narrow, "rounding_mode": mode}
            actual = backend.apply("int_quant", x, *shift, bits, **attributes)
            name = f"int{bits}_{signed}_{narrow}_{shift}_{mode}"
            assert_same_bits(actual, expected, computed(name, x))


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
def test_half_reference_equals_oracle(dtype: np.dtype) -> None:
    x = halves(dtype, 1009)
    for (e, m), scale in zip(MINIFLOATS, SCALES * 10, strict=False):
        parameters = (scale, e, m, usual_bias(e))
        for mode, fast in half_reference.float_quant(x, *parameters, MODES).items():
            slow = oracle.float_quant(x, *parameters, rounding_mode=mode)
            assert_same_bits(fast, slow, computed(f"e{e}m{m}_{scale}_{mode}", x))
    for bits, (scale, zero_point) in zip((1, 3, 8), SCALES_AND_ZERO_POINTS, strict=True):
        range_ = bounds(bits, 1, 0)
        for mode, fast in half_reference.int_quant(x, scale, zero_point, range_, MODES).items():
            slow = oracle.int_quant(x, scale, zero_point, bits, rounding_mode=mode)
            assert_same_bits(fast, slow, computed(f"int{bits}_{scale}_{mode}", x))


# The operators of the float32 sweeps, by name: the function, its oracle and its parameters.
SWEPT = {
    "int4": (anybit.int_quant, oracle.int_quant, (1.0, 0.0, 4)),
    "e4m3": (anybit.float_quant, oracle.float_quant, (1.0, *anybit.formats.float8_e4m3fn)),
    "e2m1": (anybit.float_quant, oracle.float_quant, (1.0, *anybit.formats.float4_e2m1fn)),
}
INFINITY, SIGN = 0x7F80_0000, 0x8000_0000
NAN = None


def exact_answers(name: str, mode: str, inputs: list[int]) -> list[int | None]:
    """Return the bits of the oracle's results for inputs as bits; NAN for any NaN."""
    _, exact, parameters = SWEPT[name]
    x = np.array(inputs, np.uint32).view(np.float32)
    results = exact(x, *parameters, rounding_mode=mode)
    bits = results.view(np.uint32).tolist()
    return [NAN if isnan else answer for isnan, answer in zip(np.isnan(results), bits, strict=True)]


@functools.cache
def plateaus(name: str, mode: str) -> list[tuple[int, int, int | None]]:
    """Runs of inputs with one answer, ascending: first bits, last bits, bits of the answer.

    Rounding never decreases as the magnitude grows, and so equal answers at both ends mean equal
    answers in between. The slow oracle is asked at the ends only.
    """
    actual: list[tuple[int, int, int | None]] = [
        (INFINITY + 1, SIGN - 1, NAN),
        ((SIGN | INFINITY) + 1, 2**32 - 1, NAN),
    ]
    pending = [(0, INFINITY), (SIGN, SIGN | INFINITY)]
    while pending:
        at_ends = exact_answers(name, mode, [end for run in pending for end in run])
        halves = []
        for (first, last), answer, other in zip(pending, at_ends[::2], at_ends[1::2], strict=True):
            if answer == other:
                actual.append((first, last, answer))
            else:
                middle = (first + last) // 2
                halves += [(first, middle), (middle + 1, last)]
        pending = halves
    return sorted(actual, key=lambda run: run[0])


def all_are(result: np.ndarray, answer: int | None) -> bool:
    if answer is NAN:
        return bool(np.isnan(result).all())
    return bool((result.view(np.uint32) == np.uint32(answer)).all())


@pytest.mark.parametrize("name", SWEPT)
def test_rounding_matches_oracle_at_ends_of_plateaus(backend: Backend, name: str) -> None:
    function, _, parameters = SWEPT[name]
    for mode in MODES:
        first, last, answers = zip(*plateaus(name, mode), strict=True)
        x = np.array([first, last], np.uint32).view(np.float32)
        actual = backend.apply(function.__name__, x, *parameters, rounding_mode=mode)
        for place, answer in enumerate(answers):
            assert all_are(actual[:, place].copy(), answer), (mode, x[:, place], actual[:, place])


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEPT)
def test_rounding_is_constant_between_ends_of_plateaus(name: str) -> None:
    function, _, parameters = SWEPT[name]
    by_mode = {mode: list(plateaus(name, mode)) for mode in MODES}
    size = 2**17  # parts that stay in the cache
    offsets, result = np.arange(size, dtype=np.uint32), np.empty(size, np.float32)
    bits = np.empty_like(offsets)
    for start in range(0, 2**32, size):
        np.add(offsets, np.uint32(start), out=bits)
        for mode, runs in by_mode.items():
            function(bits.view(np.float32), *parameters, rounding_mode=mode, out=result)
            while runs and runs[0][0] < start + size:
                first, last, answer = runs[0]
                part = result[max(first - start, 0) : last - start + 1]
                assert all_are(part, answer), (mode, hex(first), hex(last), part)
                if last >= start + size:
                    break
                runs.pop(0)
    assert not any(by_mode.values()), "some inputs were not reached"


def rounded_binade(significands: np.ndarray, shift: int, mode: str, negative: bool) -> np.ndarray:
    """Magnitudes of the integers that significands * 2^-shift round to, by integer arithmetic."""
    whole, rest = significands >> shift, significands & ((1 << shift) - 1)
    half = 1 << shift >> 1
    away = {
        "ROUND": lambda: (rest > half) | ((rest == half) & (whole & 1 == 1)),
        "CEIL": lambda: (rest > 0) & (not negative),
        "FLOOR": lambda: (rest > 0) & negative,
        "UP": lambda: rest > 0,
        "DOWN": lambda: np.zeros(rest.shape, bool),
        "HALF_UP": lambda: rest >= half,
        "HALF_DOWN": lambda: rest > half,
    }[mode]()
    return (whole + away).astype(np.float32)


def check_rounding(field: int, mantissas: np.ndarray, mode: str, negative: bool) -> None:
    """float32 values of one exponent field, rounded by int_quant with scale 1 and no limits."""
    bits = mantissas + np.uint32((field << 23) + (SIGN if negative else 0))
    x = bits.view(np.float32)
    actual = anybit.int_quant(x, 1.0, 0.0, 200, rounding_mode=mode)
    shift = 127 + 23 - field
    if shift <= 0:
        expected = x
    elif 0 < field < 126:  # between 0 and a half all magnitudes round alike
        expected = np.copysign(rounded_binade(mantissas[:1] | 1 << 23, 25, mode, negative), x[:1])
    else:
        significands = mantissas | (1 << 23 if field else 0)
        rounded = rounded_binade(significands, min(shift, 25), mode, negative)
        expected = np.copysign(rounded, x)
        expected[significands == 0] = 0.0  # x + 0 turns -0 into +0
    if not (actual.view(np.uint32) == expected.view(np.uint32)).all():
        assert_same_bits(actual, np.broadcast_to(expected, x.shape), computed(mode, x))


@pytest.mark.parametrize("mode", MODES)
def test_rounding_matches_numpy_on_a_sample_of_float32(mode: str) -> None:
    mantissas = np.arange(0, 2**23, 99_989, dtype=np.uint32)
    for field, negative in product((0, 1, 100, *range(124, 153), 254, 255), (False, True)):
        check_rounding(field, mantissas, mode, negative)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_rounding_matches_numpy_on_every_float32_with_fraction(mode: str) -> None:
    """Check all values between a half and 2^23; of others, one in 16 of each exponent.

    Magnitudes below a half round alike, those from 2^23 to themselves.
    """
    # Parts of 128 KiB stay in the cache, and their memory is not returned to the system.
    for part, mantissas in enumerate(np.arange(2**23, dtype=np.uint32).reshape(256, -1)):
        for field, negative in product(range(256), (False, True)):
            if 126 <= field < 150 or field % 16 == part % 16:
                check_rounding(field, mantissas, mode, negative)


@pytest.mark.parametrize("mode", ["HALF_UP", "HALF_DOWN"])
def test_rounding_matches_numpy_near_ties_of_float64(backend: Backend, mode: str) -> None:
    """Check rounding in a dtype too large to sweep: around ties of every size."""
    generator = np.random.default_rng(7)
    wholes = np.concatenate([np.arange(9), 2 ** np.arange(3, 54), 2 ** np.arange(3, 54) - 1])
    wholes = np.append(wholes, generator.integers(0, 2**53, 500) >> generator.integers(0, 53, 500))
    ties = wholes + 0.5
    x = np.concatenate([wholes, np.nextafter(ties, 0), ties, np.nextafter(ties, np.inf)])
    x = np.append(x, -x)
    actual = backend.apply("int_quant", x, 1.0, 0.0, 2000, rounding_mode=mode)
    expected = oracle.int_quant(x, 1.0, 0.0, 2000, rounding_mode=mode)
    assert_same_bits(actual, expected, computed(mode, x))
