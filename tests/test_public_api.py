# SPDX-License-Identifier: Apache-2.0
"""The face of the package: what is there, what it costs to import, what it accepts."""

import subprocess
import sys
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from places import ROOT

import anybit


def test_import_is_light() -> None:
    """Importing anybit loads no framework, and neither does calling an operator."""
    code = (
        "import sys, numpy as np, anybit; anybit.int_quant(np.ones(3, np.float32), 1, 0, 4);"
        "heavy = {'onnx', 'onnx_ir', 'onnxruntime', 'torch', 'jax', 'typer', 'rich',"
        "         'ml_dtypes', 'array_api_compat'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_operators_accept_array_likes() -> None:
    expected = np.array([0.5, -4.0])
    for x in ([0.5, -99.0], (0.5, -99.0), np.array([0.5, -99.0])):
        result = anybit.int_quant(x, 0.5, 0, 4)
        np.testing.assert_array_equal(result, expected)
    assert anybit.int_quant(0.6, 0.5, 0, 4).shape == ()
    assert anybit.int_quant(np.float32(0.6), 0.5, 0, 4).dtype == np.float32
    for order in "<>=":
        ordered = np.array([0.5, -99.0], "f4").astype(np.dtype("f4").newbyteorder(order))
        result = anybit.int_quant(ordered, 0.5, 0, 4)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, expected)


def test_operators_accept_parameters_of_any_real_dtype() -> None:
    x = np.array([0.6, -99.0], np.float32)
    expected = anybit.int_quant(x, 0.5, 1, 4)
    for dtype in ("float16", "float64", ml_dtypes.bfloat16):
        for width in ("int8", "uint64", "float32", "bool"):
            expected_codes = anybit.int_quant(x, 0.5, 1, 1) if width == "bool" else expected
            got = anybit.int_quant(
                x, np.array(0.5, dtype), np.array([1], ">i8"), np.array(4).astype(width)
            )
            np.testing.assert_array_equal(got, expected_codes)
    assert anybit.int_quant(x, 0.5, 1, 10**30).tolist() == pytest.approx([0.5, -99.0])


def test_operators_accept_keywords() -> None:
    x = np.array([0.6, -99.0], np.float32)
    by_name = anybit.int_quant(bitwidth=4, scale=0.5, x=x, zeropt=0)
    np.testing.assert_array_equal(by_name, anybit.int_quant(x, 0.5, 0, 4))
    for arguments, keywords, message in [
        ((x, 0.5, 0), {}, "bitwidth"),
        ((x, 0.5, 0, 4, 5), {}, "5"),
        ((x, 0.5, 0, 4), {"scale": 1}, "scale"),
        ((x, 0.5, 0, 4), {"sign": 1}, "sign"),
        ((x, 0.5, 0, 4), {"rounding_mode": 3}, "rounding_mode must be a string, got 3"),
        ((x, 0.5, 0, 4), {"signed": "yes"}, "signed must be a bool, got 'yes'"),
        ((x, 0.5, 0, 4), {"signed": None}, "signed must be a bool, got None"),
        ((x, None, 0, 4), {}, "scale"),
        ((), {}, "x"),
    ]:
        with pytest.raises(TypeError, match=message):
            anybit.int_quant(*arguments, **keywords)


def test_operators_reject_numbers_out_of_range() -> None:
    x = np.ones((2, 2), np.float32)
    with pytest.raises(ValueError, match="scale is an integer beyond every float"):
        anybit.int_quant(x, 10**400, 0, 4)
    with pytest.raises(ValueError, match="axis is out of range, got 9223372036854775808"):
        anybit.dynamic_quantize(x, [1.0], axis=2**63)
    with pytest.raises(ValueError, match="zps must be int8, uint8 or int32, got 1099511627776"):
        anybit.dynamic_quantize(x, [1.0], [2**40])
    with pytest.raises(ValueError, match="zps must be int8, uint8 or int32, got 1099511627776"):
        anybit.dynamic_dequantize(x.astype(np.int8), [1.0], [2**40])


def test_operators_accept_flags_of_numpy() -> None:
    x = np.array([-3.0, 300.0], np.float32)
    for flag in (False, 0, np.False_, np.int8(0)):
        assert anybit.int_quant(x, 1, 0, 8, signed=flag).tolist() == [0, 255]


def test_errors_escape_unprintable_names() -> None:
    with pytest.raises(ValueError, match=r"got 'ro\\x00und'"):
        anybit.int_quant(np.ones(2, np.float32), 1, 0, 4, rounding_mode="ro\0und")


def test_operators_write_out() -> None:
    x = np.array([[0.6, -99.0, 3.0]], np.float32)
    expected = anybit.int_quant(x, 0.5, 0, 4)
    out = np.empty_like(x)
    assert anybit.int_quant(x, 0.5, 0, 4, out=out) is out
    np.testing.assert_array_equal(out, expected)
    in_place = x.copy()
    assert anybit.int_quant(in_place, 0.5, 0, 4, out=in_place) is in_place
    np.testing.assert_array_equal(in_place, expected)


def test_operators_write_out_that_overlaps_inputs() -> None:
    memory = np.arange(12, dtype=np.float32) / 3
    expected = anybit.int_quant(memory[:8].copy(), 0.5, 0, 4)
    shifted = memory.copy()
    anybit.int_quant(shifted[:8], 0.5, 0, 4, out=shifted[2:10])
    np.testing.assert_array_equal(shifted[2:10], expected)
    reversed_ = memory.copy()[:8]
    anybit.int_quant(reversed_, 0.5, 0, 4, out=reversed_[::-1])
    np.testing.assert_array_equal(reversed_[::-1], expected)
    scale = np.full(8, 0.5, np.float32)
    anybit.int_quant(memory[:8], scale, 0, 4, out=scale)
    np.testing.assert_array_equal(scale, expected)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.empty(3, np.float32), ValueError, r"shape \(2,\).*got shape \(3,\)"),
        (np.empty(2), ValueError, "float32.*float64"),
        (np.empty(2, np.int8), ValueError, "float32.*int8"),
        (np.empty(2, ">f4"), ValueError, ">f4"),
        ([0.0, 0.0], TypeError, "list"),
    ],
)
def test_operators_reject_wrong_out(out: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        anybit.int_quant(np.ones(2, np.float32), 1, 0, 4, out=out)


def test_operators_reject_read_only_out() -> None:
    out = np.zeros(2, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        anybit.int_quant(np.ones(2, np.float32), 1, 0, 4, out=out)
    assert out.tolist() == [0, 0]


def test_operators_write_nothing_before_an_error() -> None:
    x = np.full(1000, 0.3, np.float32)
    widths = np.full(1000, 4.0)
    widths[-1] = 2.5
    with pytest.raises(ValueError, match=r"2\.5"):
        anybit.int_quant(x, 0.25, 0, widths, out=x)
    assert (x == np.float32(0.3)).all()


def test_operators_accept_unaligned_arrays() -> None:
    raw = np.zeros(17, np.uint8)
    x = raw[1:].view(np.float32)
    x[:] = [0.6, -99.0, 1.0, 2.0]
    assert anybit.int_quant(x, 0.5, 0, 4).tolist() == [0.5, -4.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="aligned"):
        anybit.int_quant(np.ones(4, np.float32), 0.5, 0, 4, out=x)


@pytest.mark.parametrize("x", [np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]"), {}, "text"])
def test_operators_reject_other_objects(x: object) -> None:
    with pytest.raises(TypeError, match="x must"):
        anybit.int_quant(x, 0.5, 0, 4)


def test_operators_reject_too_many_dimensions() -> None:
    x = np.ones((1,) * 64, np.float32)
    assert anybit.int_quant(x, 1, 0, 4).shape == x.shape


@pytest.mark.parametrize("call", [anybit.load, anybit.inspect, anybit.clean, anybit.compile])
def test_load_rejects_files_that_are_not_models(call: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match=r"a model is a path, .* not int"):
        call(3)


def test_model_lists_inputs_and_outputs() -> None:
    source = ROOT / "examples/digits_w4a4.onnx"
    assert repr(anybit.load(source)) == (
        "<anybit.Model: x: float32[rows, 8, 8] -> y: float32[rows, 10]>"
    )
    assert repr(anybit.compile(source)) == (
        "<anybit.CompiledModel: x: float32[?, 8, 8] -> y: float32[?, 10]>"
    )
