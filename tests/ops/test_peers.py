# SPDX-License-Identifier: Apache-2.0
"""QONNX, ml_dtypes and gfloat on the same inputs: equal, or a deviation that a test states."""

from itertools import product
from typing import Any

import gfloat
import ml_dtypes
import numpy as np
import pytest
from cases import MODES, assert_same_bits, computed, f32, telling_values
from gfloat.formats import format_info_bfloat16, format_info_binary16
from minifloat_formats import GFLOAT_MODES, MINIFLOATS

import anybit
from anybit import formats
from anybit.compat import qonnx as compat
from anybit.formats import FloatFormat

OCP_FORMATS = (
    formats.float8_e4m3fn,
    formats.float8_e5m2,
    formats.float6_e3m2fn,
    formats.float6_e2m3fn,
    formats.float4_e2m1fn,
)
inf, nan = np.inf, np.nan
ONE, ZERO = f32(1), f32(0)


def random_values(seed: int) -> np.ndarray:
    """Telling values, numbers around the usual grids and their ties, and any bits."""
    generator = np.random.default_rng(seed)
    around = generator.normal(size=8000) * 2.0 ** generator.integers(-12, 10, 8000)
    ties = generator.integers(-600, 600, 4000) * 2.0 ** generator.integers(-8, 1, 4000)
    anything = np.frombuffer(generator.bytes(4 * 8000), np.float32)
    return np.concatenate([telling_values(np.float32), f32(around), f32(ties), anything])


def finite(x: np.ndarray) -> np.ndarray:
    return x[np.isfinite(x)]


# ml_dtypes: a cast rounds to nearest even, and so clip-then-cast is float_quant in ROUND.


@pytest.mark.parametrize("format_", [*OCP_FORMATS, formats.bfloat16, formats.float16], ids=str)
def test_float_quant_equals_ml_dtypes(format_: FloatFormat) -> None:
    x = finite(random_values(1))
    target = np.dtype(getattr(ml_dtypes, str(format_), str(format_)))
    expected = np.clip(x, -format_.largest, format_.largest).astype(target).astype(np.float32)
    assert_same_bits(anybit.float_quant(x, 1.0, *format_), expected, computed(str(format_), x))


def test_deviation_ml_dtypes_has_codes_of_nan_and_infinities() -> None:
    x = f32([nan, inf, -inf])
    theirs = {
        "float8_e4m3fn": [nan, nan, nan],
        "float8_e5m2": [nan, inf, -inf],
        "float6_e3m2fn": [-0.0, 28.0, -28.0],
        "float6_e2m3fn": [-0.0, 7.5, -7.5],
        "float4_e2m1fn": [-0.0, 6.0, -6.0],
    }
    for format_ in OCP_FORMATS:
        with np.errstate(all="ignore"):
            cast = x.astype(getattr(ml_dtypes, str(format_))).astype(np.float32)
        assert_same_bits(cast, f32(theirs[str(format_)]), computed(str(format_), x))
        assert_same_bits(anybit.float_quant(x, 1, *format_), f32([nan] * 3), computed("ours", x))


def test_deviation_ml_dtypes_overflows_without_a_clip() -> None:
    x = f32([464.0, 464.1])
    cast = x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert_same_bits(cast, f32([448.0, nan]), computed("ml_dtypes", x))
    actual = anybit.float_quant(x, 1, *formats.float8_e4m3fn)
    assert_same_bits(actual, f32([448.0, 448.0]), computed("ours", x))


# gfloat: five of the seven modes; it computes in float64.


def gfloat_info(e: int, m: int) -> gfloat.FormatInfo:
    """Return a format without reserved codes."""
    return gfloat.FormatInfo(
        f"e{e}m{m}",
        1 + e + m,
        1 + m,
        bias=2 ** (e - 1) - 1,
        is_signed=True,
        domain=gfloat.Domain.Finite,
        has_nz=True,
        num_high_nans=0,
        has_subnormals=True,
        is_twos_complement=False,
    )


def gfloat_rounded(info: gfloat.FormatInfo, x: np.ndarray, mode: str) -> np.ndarray:
    rounding = getattr(gfloat.RoundMode, GFLOAT_MODES[mode])
    return gfloat.round_ndarray(info, x.astype(np.float64), rounding, sat=True).astype(np.float32)


@pytest.mark.parametrize("mode", GFLOAT_MODES)
def test_float_quant_equals_gfloat(mode: str) -> None:
    x = finite(random_values(2))[:6000]
    for e, m in MINIFLOATS:
        if m == 0 and mode == "ROUND":
            continue  # see test_deviation_gfloat_ties_without_mantissa
        actual = anybit.float_quant(x, 1.0, e, m, 2 ** (e - 1) - 1, rounding_mode=mode)
        expected = gfloat_rounded(gfloat_info(e, m), x, mode)
        assert_same_bits(actual, expected, computed(f"e{e}m{m}_{mode}", x))
    for format_, info in (
        (formats.float16, format_info_binary16),
        (formats.bfloat16, format_info_bfloat16),
    ):
        actual = anybit.float_quant(x, 1.0, *format_, rounding_mode=mode)
        assert_same_bits(actual, gfloat_rounded(info, x, mode), computed(f"{format_}_{mode}", x))


def test_deviation_gfloat_ties_without_mantissa() -> None:
    """gfloat goes to the even code, ours to the even multiple of the spacing: 1.5 * 0.5 -> 2 * 0.5.

    With a mantissa bit both say the same.
    """
    x = f32([0.75, 1.5, 3.0])
    expected = gfloat_rounded(gfloat_info(3, 0), x, "ROUND")
    assert_same_bits(expected, f32([0.5, 2.0, 2.0]), computed("gfloat", x))
    assert_same_bits(anybit.float_quant(x, 1, 3, 0, 3), f32([1.0, 2.0, 4.0]), computed("ours", x))


def test_deviation_gfloat_saturates_infinities() -> None:
    x = f32([inf, -inf, nan])
    theirs = gfloat_rounded(gfloat_info(4, 3), x, "ROUND")
    assert_same_bits(theirs, f32([480.0, -480.0, nan]), computed("gfloat", x))
    assert_same_bits(anybit.float_quant(x, 1, 4, 3, 7), f32([nan] * 3), computed("ours", x))


# QONNX 1.0.0: the functions behind its operators, which take arrays of widths for floats only.


@pytest.fixture(scope="module")
def qonnx() -> Any:
    """Return the package's functions; its modules import with any onnx so far."""
    reason = "qonnx is not installed, or does not import with this onnx"
    modules = [
        pytest.importorskip(f"qonnx.custom_op.general.{name}", reason=reason, exc_type=ImportError)
        for name in ("intquant", "floatquant", "trunc", "bipolar_quant")
    ]

    class Functions:
        """Functions of all modules, as `import *` brings them."""

    for module in modules:
        for name, value in vars(module).items():
            if callable(value):
                setattr(Functions, name, staticmethod(value))
    return Functions


def theirs(function: Any, *arguments: Any, **options: Any) -> np.ndarray:
    """Return the result in float32, as QONNX's operators do."""
    with np.errstate(all="ignore"):
        return np.asarray(function(*arguments, **options)).astype(np.float32)


def assert_same(mode: str, actual: np.ndarray, expected: np.ndarray, *arguments: Any) -> None:
    """Equal bits; QONNX's UP, HALF_UP and HALF_DOWN lose the sign of zero, so there +0 is -0."""
    if mode in ("UP", "HALF_UP", "HALF_DOWN"):
        actual, expected = actual + np.float32(0), expected + np.float32(0)
    assert_same_bits(actual, expected, computed(f"{mode}_{arguments[1:]}", *arguments))


@pytest.mark.parametrize("mode", [*MODES, "HALF_EVEN", "half_up"])
def test_int_quant_equals_qonnx(qonnx: Any, mode: str) -> None:
    x = random_values(3)
    x = x[np.abs(x) != f32(0.49999997)]  # see test_deviation_qonnx_rounding
    scales = f32([0.1, 1.0, -0.7, 0.0, inf, nan])
    for scale, zero_point, width in product(scales, f32([0, 3, -0.25]), f32([2, 8, 23])):
        for signed, narrow in np.ndindex(2, 2):
            arguments = (x, scale, zero_point, width, signed, narrow, mode)
            expected = theirs(qonnx.int_quant, *arguments)
            assert_same(mode, compat.quant(*arguments), expected, *arguments)


@pytest.mark.parametrize("options", [{}, {"has_inf": 1}, {"has_nan": 1}], ids=str)
def test_float_quant_equals_qonnx(qonnx: Any, options: dict[str, int]) -> None:
    x = random_values(4)
    for format_, scale in product(OCP_FORMATS, f32([0.1, 1.0, -0.7])):
        e, m, bias, largest = map(f32, format_)
        for signed in (True, False):
            arguments = (x, scale, e, m, bias, signed, largest)
            saturation = {**options, "saturation": not options}
            expected = theirs(qonnx.float_quant, *arguments, **saturation)
            actual = compat.float_quant(*arguments, **saturation)
            assert_same_bits(actual, expected, computed(f"{format_}_{saturation}", x))
        defaults = (x, scale, e, m)
        expected = theirs(qonnx.float_quant, *defaults)
        assert_same_bits(compat.float_quant(*defaults), expected, computed(str(format_), x))


@pytest.mark.parametrize("mode", MODES)
def test_trunc_equals_qonnx(qonnx: Any, mode: str) -> None:
    x = random_values(5)
    # Beyond that QONNX's HALF_UP and HALF_DOWN err; see test_deviation_qonnx_rounding.
    x = x[~(np.abs(x) > 1e6)]
    for scale, zero_point, ratio in product(f32([0.3, 1.0]), f32([0, 3, -0.25]), f32([1, 4, 0.6])):
        arguments = (x, scale, zero_point, f32(8), 0, 1, scale * ratio, f32(5), mode)
        expected = theirs(qonnx.trunc_v2, *arguments)
        assert_same(mode, compat.trunc(*arguments), expected, *arguments)
        arguments = (x, scale, zero_point, f32(8), f32(6), mode)
        expected = theirs(qonnx.trunc_v1, *arguments)
        assert_same(mode, compat.trunc_v1(*arguments), expected, *arguments)


def test_bipolar_quant_equals_qonnx(qonnx: Any) -> None:
    x = random_values(6)
    for scale in f32([0.3, -2.0, 0.0, inf, nan]):
        expected = theirs(qonnx.binary_quant, x, scale)
        assert_same_bits(compat.binary_quant(x, scale), expected, computed("binary_quant", x))


ROUNDING_DEVIATIONS = [
    # mode, y, QONNX, ours
    ("UP", -0.0, 0.0, -0.0),
    ("HALF_UP", -0.0, 0.0, -0.0),
    ("HALF_UP", 0.49999997, 1.0, 0.0),
    ("HALF_UP", -0.49999997, -1.0, -0.0),
    ("HALF_UP", 8388609.0, 8388610.0, 8388609.0),
    ("HALF_DOWN", 8388609.0, 8388608.0, 8388609.0),
    ("HALF_DOWN", 0.3, -0.0, 0.0),
    ("HALF_DOWN", -0.3, 0.0, -0.0),
    ("HALF_DOWN", 0.0, -0.0, 0.0),
]


@pytest.mark.parametrize(("mode", "y", "their_result", "our_result"), ROUNDING_DEVIATIONS)
def test_deviation_qonnx_rounding(
    qonnx: Any, mode: str, y: float, their_result: float, our_result: float
) -> None:
    x = f32([y])
    expected = theirs(qonnx.resolve_rounding_mode(mode), x)
    assert_same_bits(expected, f32([their_result]), computed("QONNX", x))
    assert_same_bits(compat.resolve_rounding_mode(mode)(x), f32([our_result]), computed("ours", x))


def test_deviation_qonnx_one_signed_bit(qonnx: Any) -> None:
    arguments = (f32([-1.0, -0.3, 0.3, 5.0]), ONE, ZERO, ONE, 1, 0, "ROUND")
    assert theirs(qonnx.int_quant, *arguments).tolist() == [-1, -1, 1, 1]
    assert compat.quant(*arguments).tolist() == [-1, 0, 0, 0]


@pytest.mark.parametrize(("mode", "result"), [("FLOOR", 28.0), ("DOWN", 28.0)])
def test_deviation_qonnx_exponent_by_logarithm(qonnx: Any, mode: str, result: float) -> None:
    arguments = (f32([31.999996]), ONE, 4, 3, 7, True)
    assert theirs(qonnx.float_quant, *arguments, rounding_mode=mode).tolist() == [result]
    assert compat.float_quant(*arguments, rounding_mode=mode).tolist() == [30.0]


def test_deviation_qonnx_trunc_near_the_root_of_a_half(qonnx: Any) -> None:
    """log2 of 0.70710677 is below -0.5; in float32 it is -0.5, which rounds to 0."""
    x = f32([5.0])
    arguments = (x, ONE, ZERO, f32(8), 0, 1, f32(0.70710677), f32(8), "ROUND")
    assert_same_bits(theirs(qonnx.trunc_v2, *arguments), f32([3.535534]), computed("QONNX", x))
    assert_same_bits(compat.trunc(*arguments), f32([7.071068]), computed("ours", x))


def test_deviation_qonnx_applies_saturation(qonnx: Any) -> None:
    """Check the effect of `saturation` in QONNX, whose documents say that it has none."""
    x = f32([1000.0])
    result = theirs(qonnx.float_quant, x, 1, 4, 3, 7, has_inf=True, saturation=False)
    assert result.tolist() == [inf]
    result = anybit.float_quant(x, 1, 4, 3, 7, has_infinity=True, saturation=False)
    assert result.tolist() == [480.0]


def test_deviation_qonnx_computes_in_float64(qonnx: Any) -> None:
    x, scale = f32([0.35]), np.array([0.1])
    arguments = (x, scale, ZERO, f32(4), 1, 0, "ROUND")
    assert theirs(qonnx.int_quant, *arguments).tolist() == f32([0.3]).tolist()
    assert anybit.int_quant(x, scale, 0, 4).tolist() == f32([0.4]).tolist()


def test_deviation_qonnx_widths_wrap(qonnx: Any) -> None:
    x, width = f32([300]), np.array(8, np.int8)
    assert theirs(qonnx.int_quant, x, ONE, ZERO, width, 0, 0, "ROUND").tolist() == [0]
    assert anybit.int_quant(x, 1, 0, width, signed=False).tolist() == [255]


def test_deviation_qonnx_divides_by_very_large_steps(qonnx: Any) -> None:
    x = f32([1e-30])
    arguments = (x, ONE, f32(4), f32(3), f32(-120))
    assert theirs(qonnx.float_quant, *arguments, rounding_mode="CEIL").tolist() == [0]
    assert anybit.float_quant(*arguments, rounding_mode="CEIL").tolist() == [2.0**118]


def test_deviation_qonnx_trunc_by_an_infinite_ratio(qonnx: Any) -> None:
    x, scale, out_scale = f32([100]), f32(1e-30), f32(1e30)
    arguments = (x, scale, ZERO, f32(8), 0, 1, out_scale, f32(8), "FLOOR")
    assert theirs(qonnx.trunc_v2, *arguments).tolist() == [0]
    assert np.isnan(anybit.trunc(x, scale, 0, 8, out_scale, 8)).all()
