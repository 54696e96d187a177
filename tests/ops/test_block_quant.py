# SPDX-License-Identifier: Apache-2.0
"""Blocks: threads, memory layouts, agreement with the elementwise operators, gradients."""

from collections.abc import Callable

import numpy as np
import pytest
from backends import OPERATORS
from small_models import model, node

import anybit
from anybit import formats
from anybit._native import _core

FLOATS = {
    "mxfp8": formats.float8_e4m3fn,
    "mxfp8_e5m2": formats.float8_e5m2,
    "mxfp6": formats.float6_e2m3fn,
    "mxfp6_e3m2": formats.float6_e3m2fn,
    "mxfp4": formats.float4_e2m1fn,
}


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("form", ["mxfp8", "int8"])
def test_block_quant_does_not_depend_on_threads(
    form: str, axis: int, set_threads: Callable[[int], None]
) -> None:
    x = np.random.default_rng(axis).normal(size=(70, 101, 80)).astype(np.float32)
    set_threads(1)
    expected = anybit.block_quant(x, format=form, axis=axis)
    for threads in (2, 5):
        set_threads(threads)
        np.testing.assert_array_equal(anybit.block_quant(x, format=form, axis=axis), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("form", ["mxfp8", "nvfp4", "int4"])
def test_block_quant_of_columns_equals_that_of_rows(
    form: str, dtype: type, isas: list[str]
) -> None:
    """Compare widths around those that kernels compute at a time."""
    for columns in (1, 31, 63, 64, 65, 129, 511, 512, 513, 1100):
        rng = np.random.default_rng(columns)
        x = (rng.normal(size=(70, columns)) * 2.0 ** rng.integers(-12, 12, columns)).astype(dtype)
        x[5, -1], x[40, 0] = np.nan, -np.inf
        expected = anybit.block_quant(np.ascontiguousarray(x.T), format=form, axis=-1).T
        for isa in isas:
            _core.set_isa(isa)
            result = anybit.block_quant(x, format=form, axis=0)
            np.testing.assert_array_equal(result, expected, strict=True)


@pytest.mark.parametrize("name", FLOATS)
def test_block_quant_equals_float_quant_with_mx_scales(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
    x *= np.float32(2.0) ** np.arange(-60, 40, 2, dtype=np.float32)[:, None]
    element = FLOATS[name]
    emax = np.frexp(element.largest)[1]
    scale = np.ldexp(np.float32(1), np.frexp(np.abs(x).max(1, keepdims=True))[1] - emax)
    expected = anybit.float_quant(x, scale, *element)
    np.testing.assert_array_equal(anybit.block_quant(x, format=name), expected)


def test_block_quant_equals_int_quant_with_absmax_scales() -> None:
    x = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
    scale = np.abs(x).max(1, keepdims=True) / np.float32(7)
    expected = anybit.int_quant(x, scale, 0, 4, narrow=True)
    np.testing.assert_array_equal(anybit.block_quant(x, format="int4"), expected)


def test_block_quant_partials_are_zero_where_elements_are_clipped() -> None:
    x = np.array([63.0, -50.0, 48.0, 1.0, np.nan], np.float32)  # a scale of 8: 48 is the largest
    partials = OPERATORS["block_quant"].partials(x, format="mxfp4", block_size=4)
    assert partials["x"].tolist() == [0, 0, 1, 1, 1]


def test_compile_does_not_take_blocks_for_elementwise() -> None:
    """Codes before a BlockQuant say nothing about single elements after it."""
    x = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    nodes = [
        node("IntQuant", "x scale zeropt bits", "a"),
        node("BlockQuant", "a", "b", domain="anybit", format="mxfp4"),
        node("IntQuant", "b scale zeropt bits", "c"),
        node("MatMul", "c w", "y", domain=""),
    ]
    w = np.float32(np.arange(64 * 3).reshape(64, 3) % 5 - 2)
    constants = {"scale": np.float32(0.5), "zeropt": np.float32(0), "bits": np.float32(4), "w": w}
    opsets = {"": 18, "qonnx.custom_op.general": 1, "anybit": 1}
    proto = model(nodes, constants, inputs={"x": ["n", 64]}, opsets=opsets)
    expected = anybit.load(proto).run(x)["y"]
    compiled = anybit.load(anybit.compile(proto).model).run(x)["y"]
    np.testing.assert_array_equal(compiled, expected)
