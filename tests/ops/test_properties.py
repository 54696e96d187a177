# SPDX-License-Identifier: Apache-2.0
"""Properties of all operators that hold for any values."""

import numpy as np
import pytest
from cases import MODES, OPERATORS
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    NEAREST,
    SYMMETRIC,
    Quantizer,
    arrays,
    codes,
    exact_scales,
    moderate,
    positive_scales,
    quantizers,
    widths,
    x_arrays,
)

import anybit

any_operator = pytest.mark.parametrize("name", OPERATORS)


@any_operator
@given(data=st.data())
def test_operators_are_monotonic(name: str, data: st.DataObject) -> None:
    """Check that a larger x never gives a smaller result (infinities are NaN in float_quant)."""
    quantize = data.draw(quantizers(name))
    x = np.sort(data.draw(x_arrays(name, moderate | st.floats(-(2.0**99), 2.0**99, width=32))))
    result = quantize(x).astype(np.float64)
    assert np.all(result[1:] >= result[:-1]), (x, result)


@any_operator
@given(data=st.data())
def test_operators_are_idempotent(name: str, data: st.DataObject) -> None:
    """Quantizing what is on the grid already changes nothing, in any mode.

    Of a dequantizer: quantizing its values gives the codes back.
    """
    fixed = {"signed": True} if name == "float_quant" else {}
    quantize = data.draw(quantizers(name, scales=exact_scales, zeros=st.integers(-20, 20), **fixed))
    x = data.draw(x_arrays(name, moderate))
    result = quantize(x)
    scale, zero = np.float32(quantize.inputs[0]), quantize.inputs[-1]
    match name:
        case "trunc":  # from the scale and the zero-point of the result to the same
            scale, zero, wide, out_scale, narrow = quantize.inputs
            quantize.inputs = (out_scale, zero * scale / out_scale, wide, out_scale, narrow)
        case "trunc_v1":  # what lost its bits has none to lose
            scale, zero, wide, _ = quantize.inputs
            quantize.inputs = (scale, zero, wide, wide)
        case "dynamic_quantize":
            codes = result.astype(np.float32) - zero.astype(np.float32)
            np.testing.assert_array_equal(quantize(codes * scale), result)
            return
        case "dynamic_dequantize":
            again = anybit.dynamic_quantize(result, *quantize.inputs, dtype=x.dtype)
            np.testing.assert_array_equal(again, x, strict=True)
            return
    np.testing.assert_array_equal(quantize(result), result)  # -0 may become +0


@any_operator
@given(data=st.data())
def test_operators_are_odd(name: str, data: st.DataObject) -> None:
    """-x gives the negated result in modes that are symmetric about zero, for symmetric ranges."""
    symmetric = st.sampled_from(SYMMETRIC)
    quantize = data.draw(
        quantizers(name, zeros=st.just(0), modes=symmetric, signed=True, narrow=True, dtype="s8")
    )
    x = data.draw(codes(np.int8, -127) if name == "dynamic_dequantize" else arrays(moderate))
    if name == "bipolar_quant":
        x = x[x != 0]
    result, mirrored = quantize(x).astype(np.float32), -quantize(-x).astype(np.float32)
    if name == "dynamic_quantize":  # its range is -128 .. 127
        result, mirrored = np.clip(result, -127, 127), np.clip(mirrored, -127, 127)
    np.testing.assert_array_equal(result, mirrored)


@pytest.mark.parametrize("name", ["int_quant", "float_quant", "trunc", "trunc_v1"])
@given(data=st.data())
def test_operators_mirror_floor_and_ceil(name: str, data: st.DataObject) -> None:
    quantize = data.draw(
        quantizers(name, zeros=st.just(0), modes=st.just("FLOOR"), signed=True, narrow=True)
    )
    x = data.draw(arrays(moderate))
    ceil = Quantizer(quantize.function, quantize.inputs, {**quantize.attributes})
    ceil.attributes["rounding_mode"] = "CEIL"
    np.testing.assert_array_equal(quantize(x), -ceil(-x))


@pytest.mark.parametrize("mode", MODES)
@given(x=arrays(moderate), scale=exact_scales, width=widths, zero=st.integers(-20, 20))
def test_int_quant_stays_within_a_step(
    mode: str, x: np.ndarray, scale: float, width: int, zero: int
) -> None:
    """Half a step to nearest, at most one otherwise; inside the range, where nothing is cut."""
    result = anybit.int_quant(x, scale, zero, width, rounding_mode=mode)
    lowest = (-(2 ** (width - 1)) - zero) * scale
    highest = (2 ** (width - 1) - 1 - zero) * scale
    inside = (x >= lowest) & (x <= highest)
    error = np.abs(result - x.astype(np.float64))[inside] / scale
    assert np.all(error <= 0.5 if mode in NEAREST else error <= 1), (x, result)
    assert np.all((result >= lowest) & (result <= highest))


@pytest.mark.parametrize("mode", MODES)
@given(x=arrays(moderate), e=st.integers(1, 6), m=st.integers(0, 6), bias=st.integers(-3, 20))
def test_float_quant_stays_within_a_step(
    mode: str, x: np.ndarray, e: int, m: int, bias: int
) -> None:
    result = anybit.float_quant(x, 1.0, e, m, bias, rounding_mode=mode)
    format_ = anybit.formats.FloatFormat(e, m, bias)
    assert all(value in format_ for value in result.tolist())
    exponents = np.maximum(np.frexp(x)[1] - 1, 1 - bias)
    steps = np.ldexp(1.0, exponents - m)
    inside = np.abs(x) <= format_.largest
    error = (np.abs(result - x.astype(np.float64)) / steps)[inside]
    assert np.all(error <= 0.5 if mode in NEAREST else error <= 1), (x, result)


@pytest.mark.parametrize("mode", MODES)
@given(codes=arrays(st.integers(-2000, 2000)), shift=st.integers(0, 6), scale=exact_scales)
def test_trunc_stays_within_a_step(mode: str, codes: np.ndarray, shift: int, scale: float) -> None:
    x = codes * np.float32(scale)
    out_scale = scale * 2.0**shift
    result = anybit.trunc(x, scale, 0, 12, out_scale, 24, rounding_mode=mode)
    error = np.abs(result - x) / out_scale
    assert np.all(error <= 0.5 if mode in NEAREST else error <= 1), (x, result)
    kept = anybit.trunc_v1(x, scale, 0, 12, 12 - shift, rounding_mode=mode)
    np.testing.assert_array_equal(kept * 2.0**shift, result)


@given(x=arrays(moderate), scale=positive_scales)
def test_bipolar_quant_has_two_values(x: np.ndarray, scale: float) -> None:
    result = anybit.bipolar_quant(x, scale)
    np.testing.assert_array_equal(result, np.where(x >= 0, scale, -scale).astype(np.float32))


@given(x=arrays(moderate), scale=exact_scales, zero=st.integers(-20, 20))
def test_dynamic_quantize_stays_within_half_a_step(x: np.ndarray, scale: float, zero: int) -> None:
    scales, zps = np.array([scale], np.float32), np.array([zero], np.int32)
    for dtype, lowest, highest in (("s8", -128, 127), ("u8", 0, 255)):
        codes = anybit.dynamic_quantize(x, scales, zps, dtype=dtype)
        value = (codes.astype(np.float64) - zero) * scale
        inside = (x >= (lowest - zero) * scale) & (x <= (highest - zero) * scale)
        assert np.all(np.abs(value - x)[inside] <= scale / 2), (x, codes)
