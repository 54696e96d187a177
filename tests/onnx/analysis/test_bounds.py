# SPDX-License-Identifier: Apache-2.0
"""Bounds where numbers are extreme: each holds for exact rational arithmetic, and in a run."""

from fractions import Fraction

import numpy as np
import onnx
import pytest
from analysis_cases import standard_node
from analysis_checks import analyze_and_compare
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import model

from anybit.onnx.analysis.abstract_values import (
    AbstractValue,
    CodeRanges,
    from_codes,
    from_interval,
)
from anybit.onnx.analysis.sums import bound_error

UNIT = Fraction(1, 2**24)


def rounded(value: Fraction) -> Fraction:
    """Round to 24 bits, without bounds of the exponent."""
    if value == 0:
        return value
    exponent = 0
    while abs(value) >= 2 ** (exponent + 24):
        exponent += 1
    while abs(value) < Fraction(2) ** (exponent + 23):
        exponent -= 1
    return Fraction(round(value / Fraction(2) ** exponent)) * Fraction(2) ** exponent


@pytest.mark.parametrize("terms", [0, 1, 2, 100, 2**12, 2**16])
@pytest.mark.parametrize("reach", [1.0, 1e-30, 3e30])
def test_analysis_errors_have_a_rounding_for_each_operation(terms: int, reach: float) -> None:
    """Compare two evaluations: one rounds the product and the sums.

    The other rounds the factors, the accumulator, the scale, the product and the bias.
    """
    error = bound_error(np.asarray(reach), np.asarray(terms))
    assert Fraction(float(error)) >= ((1 + UNIT) ** (terms + 7) - 1) * Fraction(reach)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2**12), st.integers(-(2**12), 2**12)), min_size=1),
    st.tuples(*[st.integers(2**23, 2**23 + 99)] * 2),
    st.integers(-(2**30), 2**30),
)
def test_analysis_errors_of_sums(
    codes: list[tuple[int, int]], scales: tuple[int, int], bias_code: int
) -> None:
    """Scales just above a power of two, whose products round as far as anything does."""
    first, second = (Fraction(scale) for scale in scales)
    bias = rounded(Fraction(bias_code) * first * second)
    products = [rounded(a * first) * rounded(b * second) for a, b in codes]
    total = Fraction(0)
    for product in products:
        total = rounded(total + rounded(product))
    one = rounded(total + bias)
    accumulator = rounded(Fraction(sum(a * b for a, b in codes)))
    other = rounded(rounded(accumulator * rounded(first * second)) + bias)
    reach = sum(map(abs, products)) + abs(bias)
    error = Fraction(float(bound_error(np.asarray(float(reach)), np.asarray(len(codes)))))
    assert max(abs(one - other), abs(one - sum(products) - bias)) <= error


@pytest.mark.parametrize("highest", [2**17, 2**22 + 1, 2**23 + 3, 2**24])
@pytest.mark.parametrize("scale", [0.1, 1 / 3, 1e-40, 0.5, 3e30])
def test_analysis_codes_of_very_many_steps_are_not_cut_off(scale: float, highest: int) -> None:
    ends = np.asarray(-highest, np.int64), np.asarray(highest, np.int64)
    x = from_codes(CodeRanges(np.asarray(scale, np.float32), np.zeros((), np.float32), *ends))
    assert x is not None
    codes = np.arange(highest - 3, highest + 1, dtype=np.int64)[None]
    assert x.grid is not None
    nodes = [
        standard_node("Relu", "x", "r"),
        standard_node("ThresholdedRelu", "x", "t", alpha=scale * 9),
    ]
    proto = model(nodes, {}, inputs={"x": [1, 4]}, outputs=["r", "t"])
    actual = analyze_and_compare(proto, {"x": x.grid.decode(codes)}, {"x": x})
    assert all(value.codes is not None for value in actual.values.values())


def steps(scale: float, highest: int) -> AbstractValue | None:
    ends = np.asarray(-highest, np.int64), np.asarray(highest, np.int64)
    return from_codes(CodeRanges(np.asarray(scale, np.float32), np.zeros((), np.float32), *ends))


LARGEST = float(np.finfo(np.float32).max)
HUGE = {"numbers": from_interval(-LARGEST, LARGEST), "codes": steps(2.0**126, 3)}
HUGE["exponents"] = from_interval(-100, 100)
ONE = np.ones(4, np.float32)
OVERFLOWING: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray]]] = {
    "ReduceSum": (standard_node("ReduceSum", "x"), {}),
    "ReduceMean": (standard_node("ReduceMean", "x", axes=[2, 3]), {}),
    "GlobalAveragePool": (standard_node("GlobalAveragePool", "x"), {}),
    "AveragePool": (standard_node("AveragePool", "x", kernel_shape=[2, 2], pads=[1] * 4), {}),
    "Add": (standard_node("Add", "x x"), {}),
    "Sub": (standard_node("Sub", "x n"), {"n": -3 * np.float32(2.0**126) * ONE[:, None, None]}),
    "Mul": (standard_node("Mul", "x x"), {}),
    "Exp": (standard_node("Exp", "x"), {}),
    "Conv": (standard_node("Conv", "x w"), {"w": np.ones((4, 4, 1, 1), np.float32)}),
    "MatMul": (standard_node("MatMul", "x w"), {"w": np.eye(4, dtype=np.float32) * 2}),
    "BatchNormalization": (
        standard_node("BatchNormalization", "x one zero zero one"),
        {"one": ONE * 8, "zero": ONE * 0},
    ),
}


@pytest.mark.parametrize("kind", OVERFLOWING)
@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize("sign", [1, -1])
def test_analysis_sums_beyond_float32_are_unbounded(kind: str, huge: str, sign: int) -> None:
    """Include infinities of a run in bounds and exactness."""
    made, constants = OVERFLOWING[kind]
    x = np.full((1, 4, 4, 4), sign * HUGE[huge].highest, np.float32)
    actual = analyze_and_compare(
        model([made], constants, inputs={"x": x.shape}), {"x": x}, {"x": HUGE[huge]}
    )
    assert not any(product.exact for product in actual.products)
