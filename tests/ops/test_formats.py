# SPDX-License-Identifier: Apache-2.0
"""Formats as values: the named ones against ml_dtypes, any other by its definition."""

import dataclasses
import doctest
import math
import pickle

import ml_dtypes
import numpy as np
import pytest

import anybit
from anybit import formats
from anybit.formats import FloatFormat

NAMED = [getattr(formats, name) for name in formats.__all__ if name != "FloatFormat"]


@pytest.mark.parametrize("named", NAMED, ids=str)
def test_format_names_match_ml_dtypes(named: FloatFormat) -> None:
    dtype = np.dtype(getattr(ml_dtypes, str(named), str(named)))
    limits = ml_dtypes.finfo(dtype)
    assert named.bits == limits.bits
    assert named.largest == named.max_val == float(limits.max)
    assert named.smallest_normal == float(limits.smallest_normal)
    assert named.smallest_subnormal == float(limits.smallest_subnormal)
    codes = np.arange(2**named.bits, dtype=np.uint8 if named.bits <= 8 else np.uint16)
    with np.errstate(all="ignore"):
        decoded = codes.view(dtype).astype(np.float64)
    expected = np.unique(decoded[np.isfinite(decoded)])
    actual = named.values()
    assert actual.dtype == np.float64
    np.testing.assert_array_equal(actual, expected, strict=True)


def test_format_names_are_exported() -> None:
    assert [str(named) for named in NAMED] == [name for name in formats.__all__ if name[0] != "F"]


def test_format_unpacks_to_float_quant_parameters() -> None:
    assert tuple(formats.float8_e4m3fn) == (4, 3, 7, 448.0)
    assert tuple(formats.float4_e2m1fn) == (2, 1, 1, 6.0)
    x = np.array([0.3, 17.0, -1e9], np.float32)
    quantized = anybit.float_quant(x, 1.0, *formats.float8_e4m3fn)
    np.testing.assert_array_equal(quantized, np.float32([0.3125, 16.0, -448.0]), strict=True)


@pytest.mark.parametrize("e", range(1, 7))
@pytest.mark.parametrize("m", range(5))
@pytest.mark.parametrize("bias", [None, -3, 0, 20])
def test_format_values_match_float_quant(e: int, m: int, bias: int | None) -> None:
    format_ = FloatFormat(e, m, bias)
    values = format_.values()
    assert len(values) == 2 ** (1 + e + m) - 1
    assert np.all(np.diff(values) > 0)
    np.testing.assert_array_equal(anybit.float_quant(values, 1.0, *format_), values)
    middles = (values[1:] + values[:-1]) / 2
    rounded = anybit.float_quant(middles, 1.0, *format_, rounding_mode="CEIL")
    np.testing.assert_array_equal(rounded, values[1:])
    assert format_.largest == values[-1] == anybit.float_quant(1e300, 1.0, *format_)
    assert format_.smallest_subnormal == values[values > 0][0]
    assert format_.smallest_normal in format_
    assert all(value in format_ for value in values.tolist())
    assert not any(middle in format_ for middle in middles.tolist())


def test_format_contains_values_not_parameters() -> None:
    e4m3 = formats.float8_e4m3fn
    inside = (0, -0.0, 3, 448.0, -448, 2**-9, np.float32(0.3125))
    outside = (7.25 * 2, 449, 480.0, 2**-10, 0.3, math.inf, -math.inf, math.nan)
    assert [value in e4m3 for value in inside] == [True] * 7
    assert [value in e4m3 for value in outside] == [False] * 8
    assert 4 not in FloatFormat(1, 1)


def test_format_with_max_val_reserves_codes() -> None:
    limited = FloatFormat(4, 3, max_val=240)
    assert limited.largest == 240.0
    assert limited.values()[-1] == 240.0
    assert len(limited.values()) == 2 * (15 * 8 - 1) + 1
    assert 256 not in limited


def test_format_properties_are_exact_for_wide_formats() -> None:
    binary64 = FloatFormat(11, 52, max_val=float(np.finfo(np.float64).max))
    assert binary64.smallest_subnormal == math.ulp(0.0)
    assert binary64.smallest_normal == float(np.finfo(np.float64).tiny)
    assert math.pi in binary64
    with pytest.raises(ValueError, match="18437736874454810623 values"):
        binary64.values()
    assert len(FloatFormat(8, 15, max_val=1.0).values()) == 2 * 127 * 2**15 + 1


def test_format_equality_ignores_name() -> None:
    same = FloatFormat(4, 3, 7, 448.0, "another name")
    assert same == formats.float8_e4m3fn
    assert hash(same) == hash(formats.float8_e4m3fn)
    assert FloatFormat(2, 1, max_val=6) == formats.float4_e2m1fn
    assert FloatFormat(4, 3) != formats.float8_e4m3fn
    assert FloatFormat(4, 3) != FloatFormat(4, 3, 8)


def test_format_has_repr_and_copies() -> None:
    e4m3 = formats.float8_e4m3fn
    assert str(e4m3) == "float8_e4m3fn"
    assert eval(repr(e4m3)) == e4m3
    assert str(FloatFormat(3, 4)) == "float8_e3m4"
    assert str(FloatFormat(4, 3, 11)) == "float8_e4m3b11"
    assert pickle.loads(pickle.dumps(e4m3)) == e4m3
    assert dataclasses.replace(e4m3, max_val=240.0).largest == 240.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        e4m3.max_val = 1.0


def test_format_converts_numbers_to_python() -> None:
    parts = list(FloatFormat(np.float32(4), np.int8(3), 7.0, np.float32(448)))
    assert parts == [4, 3, 7, 448.0]
    assert [type(part) for part in parts] == [int, int, int, float]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2.5, 1), r"exponent_bitwidth must be an integer in 1 \.\. 64, got 2\.5"),
        ((0, 1), "exponent_bitwidth .* got 0"),
        ((65, 1), "exponent_bitwidth .* got 65"),
        ((math.nan, 1), "exponent_bitwidth .* got nan"),
        ((math.inf, 1), "exponent_bitwidth .* got inf"),
        ((None, 1), "exponent_bitwidth .* got None"),
        (("four", 1), "exponent_bitwidth .* got 'four'"),
        ((4, -1), "mantissa_bitwidth .* got -1"),
        ((4, 53), "mantissa_bitwidth .* got 53"),
        ((4, 3, 0.5), r"exponent_bias must be an integer, got 0\.5"),
        ((4, 3, 2000), r"exponent_bias .* 2\^-2002 .* got 2000"),
        ((4, 30, -1050), r"exponent_bias .* 2\^1051, .* got -1050"),
        ((11, 52), r"exceeds float64 .* give its max_val"),
        ((4, 3, 7, 449.0), r"max_val must be a value of float8_e4m3 .* got 449\.0"),
        ((4, 3, 7, 496.0), r"in \[0\.015625, 480\.0\], got 496\.0"),
        ((4, 3, 7, 2**-8), "max_val"),
        ((4, 3, 7, math.nan), "got nan"),
        ((4, 3, 7, math.inf), "got inf"),
        ((4, 3, 7, -448.0), r"got -448\.0"),
    ],
)
def test_format_errors_show_value(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FloatFormat(*arguments)


def test_format_docstring_examples_run() -> None:
    results = doctest.testmod(formats)
    assert results.attempted >= 3
    assert results.failed == 0
