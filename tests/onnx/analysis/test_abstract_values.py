# SPDX-License-Identifier: Apache-2.0
"""Abstract values: codes per channel, units, and the codes of constants."""

from fractions import Fraction

import numpy as np
import pytest
from analysis_checks import prepare
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import model, node

import anybit
from anybit.onnx.analysis.abstract_values import (
    AbstractValue,
    CodeRanges,
    from_codes,
    from_interval,
)
from anybit.onnx.analysis.analysis import analyze
from anybit.onnx.analysis.constants import recover_codes
from anybit.onnx.analysis.integers import find_divisor, summarize_members
from anybit.onnx.analysis.unions import unite
from anybit.onnx.analysis.units import find_exponent, find_exponents
from anybit.ops.grids import IntegerGrid


def abstracts(nodes: list, constants: dict, **options: object) -> dict[str, AbstractValue]:
    actual = analyze(prepare(model(nodes, constants, **options)))
    return {str(value.name): item for value, item in actual.values.items()}


def test_analysis_units() -> None:
    assert find_exponents(np.float32([1, 0.75, 6, 0, -0.5, np.inf, 2.0**-149])).tolist() == [
        *(0, -2, 1, 0, -1, 0, -149)
    ]
    assert find_exponent(np.float32([0, 6, 0.75])) == -2
    assert find_exponent(np.float32([0, 0])) == 0


def test_analysis_codes_per_channel() -> None:
    lowest, highest = np.int64([0, -2]), np.int64([3, 2])
    scale = np.float32([0.5, 2])
    codes = CodeRanges(scale, np.zeros((), np.float32), lowest, highest)
    actual = from_codes(codes, -3)
    assert actual.codes.get_channel(0) == range(4)
    assert actual.codes.get_channel(1) == range(-2, 3)
    assert actual.lowest.tolist() == [0, -4]
    assert actual.highest.tolist() == [1.5, 4]
    assert actual.exponent == -1
    assert actual.grid.scale.shape == (2, 1, 1)
    assert isinstance(actual.grid, IntegerGrid)
    assert actual.merge_channels().codes is None
    assert (actual.merge_channels().lowest, actual.merge_channels().highest) == (-4, 4)


def test_analysis_signs_and_their_sums() -> None:
    """-1 and 1; sums of four of them are even; of five, odd."""
    for size in (4, 5):
        nodes = [
            node("BipolarQuant", "x one", "q", name="q"),
            node("BipolarQuant", "w one", "wq", name="wq"),
            node("MatMul", "q wq", domain=""),
        ]
        weight = np.random.default_rng(0).standard_normal((size, 3)).astype(np.float32)
        actual = abstracts(nodes, {"one": 1, "w": weight}, inputs={"x": [1, size]})
        assert actual["q"].codes.hull == range(-1, 2, 2)
        assert actual["y"].codes.get_channel(2) == range(-size, size + 1, 2)


def test_analysis_minifloats_are_sparse_integers() -> None:
    form = anybit.formats.float4_e2m1fn
    names = "exponent mantissa bias largest"
    constants = {"scale": 0.5} | dict(zip(names.split(), form, strict=True))
    actual = abstracts([node("FloatQuant", f"x scale {names}")], constants)["y"]
    assert actual.codes.members == {0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12}
    assert actual.codes.scale == 0.25
    assert actual.codes.bits == 4


def test_analysis_reports_possible_nan() -> None:
    """0 / 0 in a quantizer, or overflow before it; a sign is none."""
    scales = np.float32([0.5, 0, 0.5, 0.5])
    nodes = [node("Quant", "x scale zero four", "q", name="q"), node("BipolarQuant", "q one")]
    actual = abstracts(nodes, {"scale": scales, "zero": 0, "four": 4, "one": 1})
    assert actual["q"].nan
    assert not actual["y"].nan
    usual = abstracts(nodes, {"scale": 0.5, "zero": 0, "four": 4, "one": 1})
    assert not usual["q"].nan


def test_analysis_constants_have_integers() -> None:
    nodes = [
        node("Quant", "w scale zero three", "q", name="q"),
        node("Transpose", "q", "t", domain="", perm=[1, 0]),
        node("MatMul", "x t", domain=""),
    ]
    weight = np.float32([[0.5, -0.5, 0, 1], [2, 0, 2, -4]])
    constants = {"w": weight, "scale": np.float32([[0.5], [2]]), "zero": 0, "three": 3}
    actual = abstracts(nodes, constants)
    assert actual["q"].integers.tolist() == [[1, -1, 0, 2], [1, 0, 1, -2]]
    assert actual["t"].integers.tolist() == [[1, 1], [-1, 0], [0, 1], [2, -2]]
    assert (actual["q"].axis, actual["t"].axis) == (-2, -1)
    assert actual["t"].codes.allowed == range(-4, 4)


SELECTIONS = {
    "Split of channels": node("Split", "q", "t u", domain="", axis=0),
    "Split of other axes": node("Split", "q", "t u", domain="", axis=-1),
    "Slice": node("Slice", "q one four one", "t", domain=""),
    "Slice of channels": node("Slice", "q one four nil", "t", domain=""),
    "Slice backwards": node("Slice", "q three minus one minus", "t", domain=""),
    "Gather": node("Gather", "q some", "t", domain="", axis=1),
    "Gather of channels": node("Gather", "q some", "t", domain=""),
    "Gather of one": node("Gather", "q at", "t", domain="", axis=1),
    "Gather of one channel": node("Gather", "q at", "t", domain=""),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_analysis_selections_of_constants_have_integers(name: str) -> None:
    weight = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    numbers = {"one": [1], "four": [4], "nil": [0], "three": [3], "minus": [-1]}
    numbers |= {"some": [3, -1, 0, 0]}
    constants = {key: np.array(value, np.int64) for key, value in numbers.items()}
    constants |= {"w": weight, "scale": np.float32([[0.5], [0.25], [2], [1]]), "at": np.array(2)}
    quantizer = node("Quant", "w scale zero bits", "q", name="q")
    constants |= {"zero": 0, "bits": 4}
    nodes = [quantizer, SELECTIONS[name], node("Add", "x t", domain="")]
    selection = abstracts(nodes, constants, inputs={"x": []})["t"]
    assert selection.integers is not None
    if name == "Gather of one channel":
        assert selection.grid is None
        return
    assert selection.grid is not None
    actual = anybit.load(model(nodes, constants, inputs={"x": []})).run(np.float32(0))["y"]
    np.testing.assert_array_equal(selection.grid.decode(selection.integers), actual)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 8),
    st.lists(st.floats(2.0**-20, 4, width=32), min_size=1, max_size=5),
    st.integers(0, 2**32 - 1),
)
def test_analysis_codes_are_recovered_from_values(
    bits: int, scales: list[float], seed: int
) -> None:
    """Bit for bit, whatever the scales, as long as neighbouring codes occur."""
    random = np.random.default_rng(seed)
    largest = 2 ** (bits - 1)
    codes = random.integers(-largest, largest + 1, (len(scales), 40))
    codes[:, :2] = [1, largest]
    array = (codes.astype(np.float32) * np.float32(scales)[:, None]).astype(np.float32)
    actual = recover_codes(array, -2)
    assert actual is not None
    assert np.array_equal(actual.grid.decode(actual.integers), array)
    assert np.abs(actual.integers).max() <= max(largest, 2**15)


@pytest.mark.parametrize("array", [np.float32([np.nan]), np.zeros(0, np.float32), np.ones(2)])
def test_analysis_values_without_codes(array: np.ndarray) -> None:
    assert recover_codes(array, -1) is None


def test_analysis_unions() -> None:
    half = np.asarray(0.5, np.float32)
    none = np.zeros((), np.float32)
    low, high = np.asarray(-2, np.int64), np.asarray(2, np.int64)
    first = from_codes(CodeRanges(half, none, low, high, 2))
    zero = from_interval(0, 0, exponent=0)
    one_more = from_interval(0.5, 0.5, exponent=-1)
    assert unite([first, zero]).codes.hull == range(-2, 3, 2)
    assert unite([first, one_more]).codes.hull == range(-2, 3)
    assert unite([first, from_interval(-9, 9)]).codes is None
    assert unite([first, from_interval(-9, 9)]).lowest == -9


def test_analysis_exponents_by_their_bits() -> None:
    """Compare with exact fractions."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 2000, dtype=np.uint64).astype(np.uint32)
    for values in (bits.view(np.float32), random.integers(-99, 99, 40_000).astype(np.float64)):
        actual = find_exponents(values, 999).tolist()
        some = slice(None, None, max(1, len(actual) // 2000))
        for value, exponent in zip(values[some].tolist(), actual[some], strict=True):
            if not np.isfinite(value) or value == 0:
                assert exponent == 999
                continue
            top, bottom = Fraction(value).as_integer_ratio()
            assert exponent == (top & -top).bit_length() - bottom.bit_length()


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("divisor", [1, 2, 6])
def test_analysis_step_of_integers(dtype: type, divisor: int) -> None:
    members = np.array([[-21, 0], [20, 1]], dtype) * dtype(divisor)
    assert find_divisor(members) == divisor
    assert summarize_members(members) == (divisor, frozenset((members.ravel()).tolist()))
    assert summarize_members(np.arange(-4, 5, dtype=dtype) * dtype(divisor)) == (divisor, None)
    assert find_divisor(np.zeros(3, dtype)) == 1
