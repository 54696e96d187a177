# SPDX-License-Identifier: Apache-2.0
"""The operator documents' own sample code against the kernels, on random inputs, bit for bit.

Where they are meant to differ, a test states both results.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import assert_same_bits, computed, f32
from samples import samples

import anybit
from anybit.compat import qonnx

SAMPLE_MODES = ("ROUND", "CEIL", "FLOOR")


def sample(function: str) -> list[Callable[..., Any]]:
    """Return the function as each document defines it; Trunc's helpers are those of Quant."""
    actual = samples(function)
    helpers = samples("min_int")[0]
    for namespace in actual:
        for name in ("min_int", "max_int"):
            namespace.setdefault(name, helpers[name])
    # FloatQuant's document hides one helper inside its function.
    return [namespace[function] for namespace in actual if function in namespace]


def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with np.errstate(all="ignore"):
        return function(*arguments, **options)


def random_values(seed: int, size: int = 20_000) -> np.ndarray:
    """Half any bits, half around the grids that the tests use; some on ties."""
    generator = np.random.default_rng(seed)
    anything = np.frombuffer(generator.bytes(2 * size), np.float32)
    around = generator.normal(size=size // 4) * 2.0 ** generator.integers(-6, 8, size // 4)
    ties = generator.integers(-600, 600, size // 4) * 0.5
    return np.concatenate([anything, f32(around), f32(ties)])


@pytest.mark.parametrize("mode", SAMPLE_MODES)
@pytest.mark.parametrize("seed", range(4))
def test_int_quant_equals_document_sample(seed: int, mode: str) -> None:
    generator = np.random.default_rng(seed)
    x = random_values(seed).reshape(4, -1)
    for function, (signed, narrow) in product(sample("quant"), np.ndindex(2, 2)):
        scale = f32(generator.normal(size=(4, 1)))
        zero_point = f32(generator.integers(-4, 5, (4, 1)) / 2)
        width = f32(generator.integers(1, 26, (4, 1)))
        expected = call(function, x, scale, zero_point, width, signed, narrow, mode)
        actual = qonnx.quant(x, scale, zero_point, width, signed, narrow, mode)
        assert_same_bits(actual, expected, computed(mode, x, scale, zero_point, width))


@pytest.mark.parametrize("seed", range(4))
def test_float_quant_equals_document_sample(seed: int) -> None:
    generator = np.random.default_rng(100 + seed)
    x = random_values(100 + seed)
    (function,) = sample("float_quant")
    for _ in range(6):
        e, m = int(generator.integers(1, 9)), int(generator.integers(1, 11))
        bias = int(generator.integers(-20, 100))
        for options in (
            {},
            {"has_inf": True, "saturation": False},
            {"has_nan": True, "saturation": False},
        ):
            scale = f32(generator.normal())
            largest = qonnx.compute_max_val(e, m, bias) * generator.uniform(0.1, 2)
            largest = float(f32(min(largest, 3e38)))
            arguments = (x, scale, e, m, bias, bool(generator.integers(2)), largest)
            # The sample returns float64, in which its last product is exact.
            with np.errstate(all="ignore"):
                expected = function(*arguments, **options).astype(np.float32)
            actual = qonnx.float_quant(*arguments, **options)
            assert_same_bits(actual, expected, computed(f"e{e}m{m}b{bias}_{options}", x))


@pytest.mark.parametrize("mode", ["FLOOR", "CEIL"])
def test_float_quant_equals_document_sample_in_directed_modes(mode: str) -> None:
    """Away from powers of two: the sample's logarithm errs on up to 44 floats below each."""
    x = random_values(200)
    mantissa = x.view(np.uint32) & 0x7F_FFFF
    exponent = x.view(np.uint32) >> 23 & 0xFF
    x = x[(mantissa < 0x7F_FFFF - 64) & (exponent > 0)]
    assert x.size > 15_000
    (function,) = sample("float_quant")
    for e, m, bias in ((4, 3, 7), (5, 2, 15), (2, 1, 1), (8, 7, 100), (3, 4, -10)):
        with np.errstate(all="ignore"):
            expected = function(x, f32(0.5), e, m, bias, True, rounding_mode=mode)
            expected = expected.astype(np.float32)
        actual = qonnx.float_quant(x, f32(0.5), e, m, bias, True, rounding_mode=mode)
        assert_same_bits(actual, expected, computed(f"e{e}m{m}b{bias}_{mode}", x))


@pytest.mark.parametrize("mode", SAMPLE_MODES)
@pytest.mark.parametrize("seed", range(4))
def test_trunc_equals_document_sample(seed: int, mode: str) -> None:
    generator = np.random.default_rng(300 + seed)
    x = random_values(300 + seed).reshape(4, -1)
    (function,) = sample("trunc")
    for signed, narrow in np.ndindex(2, 2):
        scale = f32(np.exp(generator.normal(size=(4, 1))))
        # Ratios away from the square roots of two, where the sample's logarithm is exact enough.
        ratio = f32(2.0 ** (generator.integers(-3, 6, (4, 1)) + generator.uniform(-0.4, 0.4)))
        zero_point = f32(generator.integers(-4, 5, (4, 1)) / 2)
        width = f32(generator.integers(1, 20, (4, 1)))
        arguments = (x, scale, zero_point, 8, narrow, signed, scale * ratio, width, mode)
        expected = call(function, *arguments)
        actual = qonnx.trunc(*arguments)
        assert_same_bits(actual, expected, computed(mode, x, scale, zero_point, width))


def test_qonnx_bounds_equal_document_sample() -> None:
    (largest,) = [namespace["compute_max_val"] for namespace in samples("compute_max_val")]
    for e, m, bias in product(range(1, 9), range(12), (-3, 0, 7, 127)):
        assert qonnx.compute_max_val(e, m, bias) == largest(e, m, bias)
    for name in ("min_int", "max_int"):
        for function, signed, narrow in product(sample(name), (0, 1), (0, 1)):
            ours = getattr(qonnx, name)
            for width in (1, 2, 8, 31, 62, 100):
                assert ours(signed, narrow, width) == function(signed, narrow, width)
            widths = f32(range(1, 140))
            expected = call(function, signed, narrow, widths)
            assert_same_bits(call(ours, signed, narrow, widths), expected, computed(name, widths))


def test_qonnx_rounding_functions_equal_document_sample() -> None:
    x = random_values(400)
    for resolve, mode in product(sample("resolve_rounding_mode"), SAMPLE_MODES):
        expected = call(resolve(mode), x)
        assert_same_bits(qonnx.resolve_rounding_mode(mode)(x), expected, computed(mode, x))


def test_int_quant_equals_example_of_document() -> None:
    """Check the documents' example: its zero-dimensional float64 parameters widen x in NumPy 2."""
    x = f32(np.random.default_rng(0).normal(size=100) * 10)
    arguments = (x, np.array(1.0), np.array(0.0), np.array(4), 1, 0, "ROUND")
    for function in sample("quant"):
        expected = function(*arguments).astype(np.float32)
        assert_same_bits(qonnx.quant(*arguments), expected, computed("example", x))


def test_deviation_float_quant_computes_exponent_exactly() -> None:
    """31.999996 lies below 32; its float32 logarithm is 5."""
    (function,) = sample("float_quant")
    x = f32([31.999996])
    assert function(x, f32(1), 4, 3, 7, True, rounding_mode="FLOOR").tolist() == [28.0]
    assert qonnx.float_quant(x, 1, 4, 3, 7, True, rounding_mode="FLOOR").tolist() == [30.0]


@pytest.mark.skipif(np.__version__ < "2", reason="NumPy 1 does not let 0-d arrays widen x")
def test_deviation_int_quant_keeps_dtype_of_x() -> None:
    """0.35 / 0.1 is the tie 3.5 in float32; the sample divides by the float64 0.1."""
    x, scale = f32([0.35]), np.array(0.1)
    for function in sample("quant"):
        result = function(x, scale, np.array(0.0), np.array(4), 1, 0, "ROUND")
        assert_same_bits(result, np.array([3 * 0.1]), computed("sample", x))
    actual = qonnx.quant(x, scale, 0, 4, 1, 0, "ROUND")
    assert_same_bits(actual, f32([4]) * f32(0.1), computed("ours", x))


def test_deviation_int_quant_widens_small_integer_widths() -> None:
    for function in sample("max_int"):
        with np.errstate(all="ignore"):
            assert function(False, False, np.int8(8)) == -1
    assert qonnx.max_int(False, False, np.int8(8)) == 255
    assert anybit.int_quant(f32([200.0]), 1, 0, np.int8(8), signed=False).tolist() == [200.0]


def test_deviation_int_quant_accepts_modes_in_any_case() -> None:
    for resolve in sample("resolve_rounding_mode"):
        for mode in ("round", "HALF_EVEN", "UP", "DOWN", "HALF_UP", "HALF_DOWN"):
            with pytest.raises(ValueError, match=mode):
                resolve(mode)
            assert qonnx.resolve_rounding_mode(mode)(f32([2.0])).tolist() == [2.0]


def test_deviation_float_quant_rejects_saturation_without_infinity() -> None:
    (function,) = sample("float_quant")
    for inner in (function, qonnx.float_quant):
        with pytest.raises(RuntimeError):
            inner(f32([1.0]), 1, 4, 3, 7, True, saturation=False)
