# SPDX-License-Identifier: Apache-2.0
"""The documents' functions: order of arguments, what saturation=0 does, exact helpers."""

import doctest
import inspect
from math import inf, nan
from typing import Any

import array_api_strict
import numpy as np
import oracle
import pytest
from cases import FLOAT_DTYPES, MODES, assert_same_bits, computed, f32, telling_values

import anybit
from anybit.compat import qonnx

SIGNATURES = {
    "quant": "inp_tensor scale zeropt bitwidth signed narrow rounding_mode",
    "float_quant": "X scale exponent_bitwidth mantissa_bitwidth exponent_bias signed max_val "
    "has_inf has_nan has_subnormal rounding_mode saturation",
    "trunc": "inp_tensor scale zeropt input_bit_width narrow signed output_scale output_bit_width "
    "rounding_mode",
    "min_int": "signed narrow_range bit_width",
    "max_int": "signed narrow_range bit_width",
    "compute_max_val": "exponent_bitwidth mantissa_bitwidth exponent_bias",
    "compute_default_exponent_bias": "exponent_bitwidth",
    "resolve_rounding_mode": "mode_string",
}
X = f32([3.1, 500.0, -500.0, nan, inf, -inf, -0.0, 1e-9])


@pytest.mark.parametrize("name", SIGNATURES)
def test_qonnx_signatures_match_documents(name: str) -> None:
    parameters = inspect.signature(getattr(qonnx, name)).parameters
    assert " ".join(parameters) == SIGNATURES[name]


def test_qonnx_quantizers_equal_operators() -> None:
    x = telling_values(np.float32)
    calls = [
        (
            qonnx.quant(x, 0.3, 1.0, 5, 0, 1, "half_up"),
            anybit.int_quant(x, 0.3, 1.0, 5, signed=0, narrow=1, rounding_mode="HALF_UP"),
        ),
        (
            qonnx.trunc(x, 0.3, 1.0, 8, 1, 0, 1.2, 5, "CEIL"),
            anybit.trunc(x, 0.3, 1.0, 8, 1.2, 5, signed=0, narrow=1, rounding_mode="CEIL"),
        ),
        (
            qonnx.trunc_v1(x, 0.3, 1.0, 8, 5, "UP"),
            anybit.trunc_v1(x, 0.3, 1.0, 8, 5, rounding_mode="UP"),
        ),
        (qonnx.binary_quant(x, 0.3), anybit.bipolar_quant(x, 0.3)),
        (
            qonnx.float_quant(x, 0.3, 4, 3, 7, False, 448.0, 0, 1, 1, "FLOOR", True),
            anybit.float_quant(x, 0.3, 4, 3, 7, 448.0, signed=False, rounding_mode="FLOOR"),
        ),
    ]
    for actual, expected in calls:
        assert_same_bits(actual, expected, computed("compat", x))
    assert qonnx.int_quant is qonnx.quant
    assert qonnx.trunc_v2 is qonnx.trunc


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "bool"])
def test_qonnx_computes_integers_in_float64(dtype: str) -> None:
    x = np.array([0, 1, 1, 0, 1], dtype)
    result = qonnx.quant(x, 0.75, 0, 4, 1, 0, "ROUND")
    expected = np.array([0.0, 0.75, 0.75, 0.0, 0.75])
    assert_same_bits(result, expected, computed(dtype, x))
    for other in (
        qonnx.float_quant(x, 0.75, 4, 3),
        qonnx.trunc(x, 0.75, 0, 8, 0, 1, 0.75, 8, "ROUND"),
        qonnx.trunc_v1(x, 0.75, 0, 8, 8, "ROUND"),
        qonnx.binary_quant(x, 0.75),
    ):
        assert other.dtype == np.float64


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3.0, 448, -448, nan, nan, nan, -0.0, 0.0]),
        ({"has_inf": 1, "saturation": 0}, [3.0, inf, -inf, nan, nan, nan, -0.0, 0.0]),
        ({"has_inf": 1, "has_nan": 1, "saturation": 0}, [3, inf, -inf, nan, nan, nan, -0.0, 0]),
        ({"has_nan": 1, "saturation": 0}, [3.0, nan, nan, nan, nan, nan, -0.0, 0.0]),
        ({"has_nan": 1, "has_inf": 1}, [3.0, 448, -448, nan, nan, nan, -0.0, 0.0]),
        (
            {"signed": False, "has_inf": True, "saturation": False},
            [3.0, inf, -inf, nan, nan, nan, -0.0, 0.0],
        ),
        ({"signed": False}, [3.0, 448, 0.0, nan, nan, nan, -0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_qonnx_saturation_replaces_infinities(
    options: dict[str, Any], expected: list[float], dtype: np.dtype
) -> None:
    with np.errstate(all="ignore"):
        x, target = X.astype(dtype), np.array(expected).astype(dtype)
    result = qonnx.float_quant(x, 1.0, 4, 3, max_val=448.0, **options)
    assert_same_bits(result, target, computed("saturation", x))


def test_qonnx_saturation_keeps_values_that_round_to_the_largest() -> None:
    x = f32([463.9, 464.0, 464.1, 480.0, -463.9])
    result = qonnx.float_quant(x, 1, 4, 3, 7, True, 448.0, has_nan=True, saturation=False)
    assert_same_bits(result, f32([448, 448, nan, nan, -448]), computed("edge", x))
    per_channel = qonnx.float_quant(
        f32([[9.0, 9.0], [9.0, 9.0]]),
        f32([[1.0], [-2.0]]),
        np.array([[2], [4]]),
        np.array([[1], [3]]),
        np.array([[1], [7]]),
        has_inf=True,
        saturation=False,
    )
    assert_same_bits(per_channel, f32([[inf, inf], [9, 9]]), computed("channels", x))
    # The float below the largest is 2^104 away: an overflow of float32 itself.
    x = f32([np.finfo(np.float32).max])
    result = qonnx.float_quant(x, 1, 8, 3, 127, has_nan=True, saturation=False)
    assert_same_bits(result, f32([nan]), computed("float32_overflows", x))


def test_qonnx_saturation_supports_other_libraries_and_numbers() -> None:
    x = array_api_strict.asarray([500.0, -3.1])
    result = qonnx.float_quant(x, 1, 4, 3, 7, True, 448.0, has_inf=True, saturation=False)
    assert type(result) is type(x)
    assert_same_bits(np.asarray(result), np.array([inf, -3.0]), computed("strict", X))
    result = qonnx.float_quant(500.0, 1, 4, 3, has_nan=True, saturation=False)
    assert_same_bits(result, np.array(nan), computed("zero_dimensional", X))


def test_qonnx_saturation_without_infinity_is_rejected() -> None:
    with pytest.raises(RuntimeError, match="set has_inf or has_nan, or saturation=1"):
        qonnx.float_quant(X[:0], 1, 4, 3, saturation=False)


@pytest.mark.parametrize(
    ("signed", "narrow", "low", "high"),
    [(1, 1, -127, 127), (0, 1, 0, 254), (1, 0, -128, 127), (0, 0, 0, 255)],
)
def test_qonnx_integer_bounds_match_range(signed: int, narrow: int, low: int, high: int) -> None:
    for width in (8, 8.0, np.int8(8), np.uint8(8), np.float32(8), np.array(8)):
        assert qonnx.min_int(signed, narrow, width) == low
        assert qonnx.max_int(signed, narrow, width) == high
    bounds = qonnx.min_int(signed, narrow, np.int8([8, 1])), qonnx.max_int(signed, narrow, [8, 1])
    assert [bound[0] for bound in bounds] == [low, high]
    assert [bound.dtype for bound in bounds] == [np.int64, np.int64]


def test_qonnx_integer_bounds_are_exact_for_wide_types() -> None:
    assert qonnx.max_int(False, False, 100) == 2**100 - 1
    assert qonnx.min_int(True, True, 100) == 1 - 2**99
    assert qonnx.max_int(False, False, np.float32(25)) == 2.0**25
    assert qonnx.max_int(False, True, np.int8(62)) == 2**62 - 2
    assert qonnx.min_int(True, False, np.float32(1000)) == -inf
    assert qonnx.min_int(False, False, np.float32(1000)) == 0
    assert qonnx.max_int(True, False, np.int8(62)) == 2**61 - 1
    with pytest.raises(ValueError, match="at most 62 for dtype int8, got 63; give a float"):
        qonnx.max_int(False, False, np.int8(63))


@pytest.mark.parametrize("width", [0, -1, 2.5, nan, inf, np.float32([8, 0.5])])
def test_qonnx_bounds_reject_bad_widths(width: Any) -> None:
    for helper in (qonnx.min_int, qonnx.max_int):
        with pytest.raises(ValueError, match="bit_width must be an integer >= 1, got"):
            helper(True, False, width)
    with pytest.raises(ValueError, match="exponent_bitwidth must be an integer >= 1, got"):
        qonnx.compute_default_exponent_bias(width)


def test_qonnx_float_bounds_match_format() -> None:
    assert [float(qonnx.compute_default_exponent_bias(e)) for e in (1, 2, 4, 8)] == [0, 1, 7, 127]
    assert qonnx.compute_max_val(4, 3, 7) == 480.0
    assert qonnx.compute_max_val(4, 3) == 480.0
    assert qonnx.compute_max_val(4, 3, 0) == 61440.0  # a bias of 0 is not "the default bias"
    assert qonnx.compute_max_val(11, 52) == inf
    assert qonnx.compute_max_val(4, 3, 3000) == 0.0
    assert qonnx.compute_max_val(1e9, 3, 0) == inf
    arrays = qonnx.compute_max_val(f32([4, 5]), np.int8([3, 2]))
    assert_same_bits(arrays, np.array([480.0, 114688.0]), computed("compute_max_val", arrays))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_qonnx_rounding_function_matches_mode(mode: str, dtype: np.dtype) -> None:
    x = telling_values(dtype)
    with np.errstate(all="ignore"):
        values = x.astype(np.float64).tolist()
        expected = np.array([oracle.round_value(value, mode) for value in values]).astype(dtype)
    for spelled in (mode, mode.lower()):
        actual = qonnx.resolve_rounding_mode(spelled)(x)
        assert_same_bits(actual, expected, computed(f"{mode}_{dtype}", x))


def test_qonnx_rounding_function_rejects_unknown_modes() -> None:
    assert qonnx.resolve_rounding_mode("half_even")([0.5, 1.5]).tolist() == [0.0, 2.0]
    with pytest.raises(ValueError, match=r"ROUND_TO_ZERO.*DOWN"):
        qonnx.resolve_rounding_mode("ROUND_TO_ZERO")
    with pytest.raises(ValueError, match="got 'NEAREST'"):
        qonnx.float_quant(X, 1, 4, 3, rounding_mode="NEAREST")


def test_qonnx_docstring_examples_run() -> None:
    results = doctest.testmod(qonnx)
    assert results.attempted >= 8
    assert results.failed == 0
