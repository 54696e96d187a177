# SPDX-License-Identifier: Apache-2.0
"""The oracle against what shares no code with it: literals, hardware, other libraries."""

from collections import Counter
from math import inf, nan

import cases
import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import Case, assert_same_bits, computed, f32, telling_values
from minifloat_formats import GFLOAT_MODES
from samples import samples

ROWS = tuple(cases.every_case())
LITERAL = [row for row in ROWS if row[1].expected is not None]
REFUSED = [row for row in ROWS if row[1].raises is not None]

# Number, ROUND = HALF_EVEN, CEIL, FLOOR, UP, DOWN, HALF_UP, HALF_DOWN: the document's table.
ROUNDING_TABLE = """
     5.5   6   6   5   6   5   6   5
     2.5   2   3   2   3   2   3   2
     1.6   2   2   1   2   1   2   2
     1.1   1   2   1   2   1   1   1
     1.0   1   1   1   1   1   1   1
    -1.0  -1  -1  -1  -1  -1  -1  -1
    -1.1  -1  -1  -2  -2  -1  -1  -1
    -1.6  -2  -1  -2  -2  -1  -2  -2
    -2.5  -2  -2  -3  -3  -2  -3  -2
    -5.5  -6  -5  -6  -6  -5  -6  -5
"""


def name_of(argument: str | Case) -> str:
    return getattr(argument, "name", argument)


@pytest.mark.parametrize(("operator", "case"), LITERAL, ids=name_of)
def test_oracle_matches_literal_rows(operator: str, case: Case) -> None:
    actual = getattr(oracle, operator)(*case.inputs, **case.attributes)
    assert_same_bits(actual, case.expected, case)


@pytest.mark.parametrize(("operator", "case"), REFUSED, ids=name_of)
def test_oracle_rejects_invalid_rows(operator: str, case: Case) -> None:
    error, pattern = case.raises
    with pytest.raises(error, match=pattern):
        getattr(oracle, operator)(*case.inputs, **case.attributes)


@pytest.mark.parametrize("operator", cases.OPERATORS)
def test_oracle_computes_all_other_rows(operator: str) -> None:
    """Check that no computed row raises, and that names of rows are unique."""
    rows = [case for owner, case in ROWS if owner == operator]
    assert not [name for name, count in Counter(case.name for case in rows).items() if count > 1]
    for case in rows:
        if case.raises is None:
            result = cases.expected_result(operator, case)
            assert result.shape == np.shape(case.inputs[0])
            if operator not in ("dynamic_quantize", "dynamic_dequantize"):
                assert result.dtype == np.asarray(case.inputs[0]).dtype


def test_oracle_broadcasts_like_single_calls() -> None:
    """Broadcasting and the sharing of equal elements change no value."""
    x = telling_values(np.float32)
    scale = np.resize(f32([0.1, -3.0, 0.0]), x.shape)
    width = np.resize(np.int8([1, 4, 8, 24]), x.shape)
    together = oracle.int_quant(x, scale, 0.5, width)
    single = [oracle.int_quant(*row, 0.5, bits) for *row, bits in zip(x, scale, width, strict=True)]
    assert_same_bits(together, np.array(single), computed("per_element", x))


def test_oracle_rounding_matches_table() -> None:
    for line in ROUNDING_TABLE.strip().splitlines():
        number, *expected = map(float, line.split())
        rounded = [oracle.round_value(number, mode) for mode in cases.MODES]
        assert rounded == expected, number


def test_oracle_rounding_keeps_nan_infinities_and_signs() -> None:
    values = [nan, inf, -inf, 0.0, -0.0, -0.4]
    for mode in ("ROUND", "CEIL", "DOWN", "HALF_UP", "HALF_DOWN"):
        rounded = np.array([oracle.round_value(value, mode) for value in values])
        expected = np.array([*values[:5], -0.0])
        assert_same_bits(rounded, expected, computed(mode, expected))


@pytest.mark.parametrize(
    ("mode", "function"),
    [("ROUND", np.rint), ("CEIL", np.ceil), ("FLOOR", np.floor), ("DOWN", np.trunc)],
)
def test_oracle_rounding_equals_hardware(mode: str, function: np.ufunc) -> None:
    x = telling_values(np.float64)
    actual = np.array([oracle.round_value(value, mode) for value in x.tolist()])
    assert_same_bits(actual, function(x), computed(mode, x))


def operands(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of telling values, and random bit patterns."""
    values = telling_values(dtype)
    random = np.random.default_rng(1).bytes(2 * 10_000 * np.dtype(dtype).itemsize)
    left, right = np.frombuffer(random, dtype).reshape(2, -1)
    pairs = np.meshgrid(values, values)
    return np.append(pairs[0], left), np.append(pairs[1], right)


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "divide"])
@pytest.mark.parametrize(
    ("dtype", "fmt"), [(np.float32, oracle.BINARY32), (np.float64, oracle.BINARY64)]
)
def test_oracle_arithmetic_equals_hardware(operation: str, dtype: type, fmt: oracle.Format) -> None:
    left, right = operands(dtype)
    with np.errstate(all="ignore"):
        expected = getattr(np, operation)(left, right)
        exact = getattr(fmt, operation)
        pairs = zip(
            left.astype(np.float64).tolist(), right.astype(np.float64).tolist(), strict=True
        )
        actual = np.array([exact(*pair) for pair in pairs]).astype(dtype)
    assert_same_bits(actual, expected, computed(operation, left, right))


@pytest.mark.parametrize(
    ("source", "target", "fmt"),
    [
        (np.float64, np.float32, oracle.BINARY32),
        (np.float64, np.float16, oracle.BINARY16),
        (np.float32, np.float16, oracle.BINARY16),
        (np.float32, cases.bfloat16, oracle.BFLOAT16),
    ],
)
def test_oracle_conversion_equals_hardware(source: type, target: type, fmt: oracle.Format) -> None:
    x, _ = operands(source)
    small = np.random.default_rng(2).standard_normal(10_000).astype(source)
    # Every exponent from float16's subnormals to past its maximum.
    x = np.append(x, np.ldexp(small, np.arange(10_000) % 45 - 26).astype(source))
    with np.errstate(all="ignore"):
        expected = x.astype(target)
        wide = x.astype(np.float64).tolist()
        actual = np.array([fmt.convert(value) for value in wide]).astype(target)
    assert_same_bits(actual, expected, computed("conversion", x))


def test_oracle_floor_log2_equals_frexp() -> None:
    x = np.abs(np.concatenate(operands(np.float64)))
    x = x[np.isfinite(x) & (x > 0)]
    expected = np.frexp(x)[1] - 1
    actual = [oracle.floor_log2(*value.as_integer_ratio()) for value in x.tolist()]
    assert actual == expected.tolist()


# ml_dtypes name: exponent bits, mantissa bits, bias, largest value, gfloat name.
OCP_FORMATS = {
    "float8_e4m3fn": (4, 3, 7, 448.0, "ocp_e4m3"),
    "float8_e5m2": (5, 2, 15, 57344.0, "ocp_e5m2"),
    "float6_e3m2fn": (3, 2, 3, 28.0, "ocp_e3m2"),
    "float6_e2m3fn": (2, 3, 1, 7.5, "ocp_e2m3"),
    "float4_e2m1fn": (2, 1, 1, 6.0, "ocp_e2m1"),
}


def every_finite_half() -> np.ndarray:
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    return x[np.isfinite(x)]


@pytest.mark.parametrize("name", OCP_FORMATS)
def test_oracle_float_quant_equals_ml_dtypes(name: str) -> None:
    x = every_finite_half()
    *bits, largest, _ = OCP_FORMATS[name]
    actual = oracle.float_quant(x, 1.0, *bits, largest)
    clipped = np.clip(x.astype(np.float32), -largest, largest)
    expected = clipped.astype(getattr(ml_dtypes, name)).astype(np.float16)
    assert_same_bits(actual, expected, computed(name, x))


@pytest.mark.parametrize("mode", GFLOAT_MODES)
@pytest.mark.parametrize("name", OCP_FORMATS)
def test_oracle_float_quant_equals_gfloat(name: str, mode: str) -> None:
    gfloat = pytest.importorskip("gfloat", reason="gfloat is not installed")
    from gfloat import formats

    *parameters, largest, gfloat_name = OCP_FORMATS[name]
    # Every seventh half, and the last float32 values below powers of two.
    powers = f32(2.0 ** np.arange(-9, 6))
    x = np.append(f32(every_finite_half()[::7]), [np.nextafter(powers, f32(0)), -powers])
    actual = oracle.float_quant(x, 1.0, *parameters, largest, rounding_mode=mode)
    fmt = getattr(formats, f"format_info_{gfloat_name}")
    rounding = getattr(gfloat.RoundMode, GFLOAT_MODES[mode])
    expected = gfloat.round_ndarray(fmt, x.astype(np.float64), rounding, sat=True)
    assert_same_bits(actual, expected.astype(np.float32), computed(name, x))


def test_oracle_int_quant_equals_document_sample() -> None:
    widths = cases.in_column([1, 2, 3, 4, 8, 24, 25, 26, 32, 64, 127, 128, 129], np.float32)
    x = cases.in_rows(np.float32, len(widths))
    for namespace in samples("quant"):
        for mode in ("ROUND", "CEIL", "FLOOR"):
            for scale, zero_point in ((1, 0), (0.3, 3), (-0.7, 0.5), (0, 0), (1e-40, 1), (inf, 0)):
                for signed, narrow in np.ndindex(2, 2):
                    inputs = (x, f32(scale), f32(zero_point), widths)
                    with np.errstate(all="ignore"):
                        expected = namespace["quant"](*inputs, signed, narrow, mode)
                    attributes = {"signed": signed, "narrow": narrow, "rounding_mode": mode}
                    actual = oracle.int_quant(*inputs, **attributes)
                    assert_same_bits(actual, expected, computed(mode, *inputs))


@pytest.mark.parametrize("mode", ["ROUND", "CEIL", "FLOOR"])
def test_oracle_float_quant_equals_document_sample(mode: str) -> None:
    """Directed modes on values of few bits: the sample's log2 errs just below powers of two."""
    x = telling_values(np.float32) if mode == "ROUND" else f32(every_finite_half()[::5])
    for namespace in samples("float_quant"):
        for bits in ((4, 3, 7), (5, 2, 15), (2, 1, 1), (4, 4, 0), (3, 10, -2), (8, 7, 117)):
            for scale, largest in ((1, None), (0.25, 20.0), (-2, 0.0)):
                with np.errstate(all="ignore"):
                    expected = namespace["float_quant"](
                        x, f32(scale), *bits, True, largest, rounding_mode=mode
                    )
                    # The sample leaves binary64 behind; its product is exact there.
                    expected = expected.astype(np.float32)
                actual = oracle.float_quant(x, f32(scale), *bits, largest, rounding_mode=mode)
                assert_same_bits(actual, expected, computed(f"{mode}_{bits}", x))


# scale, zeropt, out_scale: ratios far from the square root of two, where float log2 is right.
TRUNC_SCALES = ((1, 0, 4), (0.3, 3, 0.7), (-0.5, 0.5, -3), (0, 0, 1))


def test_oracle_trunc_equals_document_sample() -> None:
    helpers = samples("min_int")[0]
    x = telling_values(np.float32)
    for namespace in samples("trunc"):
        namespace |= {name: helpers[name] for name in ("min_int", "max_int")}
        for mode in ("ROUND", "CEIL", "FLOOR"):
            for scale, zero_point, out_scale in TRUNC_SCALES:
                for width, signed, narrow in ((4, 1, 0), (8, 1, 1), (3, 0, 0), (25, 0, 1)):
                    values = [f32(value) for value in (scale, zero_point, out_scale, width)]
                    scales, zeros, out_scales, widths = values
                    with np.errstate(all="ignore"):
                        expected = namespace["trunc"](
                            x, scales, zeros, 8, narrow, signed, out_scales, widths, mode
                        )
                    attributes = {"signed": signed, "narrow": narrow, "rounding_mode": mode}
                    actual = oracle.trunc(x, scales, zeros, 8, out_scales, widths, **attributes)
                    assert_same_bits(actual, expected, computed(mode, x, *values))


@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=str)
def test_assert_same_bits_detects_single_bits(dtype: np.dtype) -> None:
    values = cases.cast([0.0, 1.0, nan], dtype)
    case = computed("comparison", values)
    assert_same_bits(values.copy(), values, case)
    assert_same_bits(cases.cast([0.0, 1.0, -nan], dtype), values, case)
    wrong = (
        cases.cast([-0.0, 1.0, nan], dtype),
        cases.cast([0.0, 1.0, 1.0], dtype),
        values[:2],
        values[0],
    )
    for actual in (*wrong, values.astype(np.complex128)):
        with pytest.raises(AssertionError, match="comparison"):
            assert_same_bits(actual, values, case)
