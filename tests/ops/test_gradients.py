# SPDX-License-Identifier: Apache-2.0
"""Derivatives of the operators, and sums of gradients to the shapes of parameters."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from backends import OPERATORS
from x_types import reads_codes, x_dtypes

from anybit.ops import Operator
from anybit.ops.gradient import propagate_gradients
from anybit.ops.rounding import round_to_integer

DIFFERENTIABLE = [operator for operator in OPERATORS.values() if operator.differentiable]
MODES = ("ROUND", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN")
each_operator = pytest.mark.parametrize("operator", DIFFERENTIABLE, ids=lambda item: item.name)


class FrozenRounding:
    """Rounds as usual the first time, and adds the same offsets from then on.

    That makes the operator a smooth function whose derivative the straight-through one is.
    """

    def __init__(self, rounded: Callable[..., np.ndarray]) -> None:
        self.rounded = rounded
        self.offsets: list[np.ndarray] = []
        self.replayed: Iterator[np.ndarray] | None = None

    def __call__(self, y: np.ndarray, *grid: Any) -> np.ndarray:
        if self.replayed is not None:
            return y + next(self.replayed)
        rounded = self.rounded(y, *grid)
        self.offsets.append(rounded - y)
        return rounded

    def again(self) -> None:
        self.replayed = iter(self.offsets)


def arguments(operator: Operator) -> dict[str, Any]:
    """Float64 arguments; channels have parameters of their own, and some of x is clipped.

    Those of a dequantizer are codes, and float32.
    """
    random = np.random.default_rng(0)
    known_values = {
        "x": random.normal(0, 6, (4, 200)),
        "scale": random.uniform(0.3, 1, (4, 1)),
        "zeropt": random.uniform(-3, 3, (4, 1)),
        "bitwidth": np.array([[3], [4], [5], [2]]),
        "in_bitwidth": 8,
        "out_bitwidth": np.array([[3], [4], [5], [2]]),
        "exponent_bitwidth": 2,
        "mantissa_bitwidth": 1,
        "exponent_bias": 1,
        "max_val": np.array([[4.0], [99.0], [3.0], [6.5]]),
        "src": random.integers(-128, 128, (4, 200)).astype(np.int8),
        "scales": np.array([0.5, 1, 2, 0.25], np.float32),
        "zps": np.array([0, 3, -128, 2**24 + 2], np.int32),
    }
    operands = {
        declared.name: known_values[declared.name]
        for declared in operator.inputs
        if declared.name in known_values
    }
    if "out_scale" in operator.differentiable:
        # Near a power of two times scale, and away from where the nearest power changes.
        operands["out_scale"] = known_values["scale"] * np.array([[1.0], [2.3], [4.0], [1.8]])
    return operands


def variants(operator: Operator) -> Iterator[dict[str, Any]]:
    names = {attribute.name for attribute in operator.attributes}
    if "qtype" in names:
        yield {"qtype": "per_channel", "axis": 0}
        return
    modes = MODES if "rounding_mode" in names else (None,)
    for mode in modes:
        for signed in (True, False) if "signed" in names else (None,):
            for narrow in (True, False) if "narrow" in names else (None,):
                options = {"rounding_mode": mode, "signed": signed, "narrow": narrow}
                yield {name: value for name, value in options.items() if value is not None}


def frozen(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> FrozenRounding:
    """Holds the rounding of an operator: to a grid of its own, or to integers."""
    module = sys.modules[f"anybit.ops.{operator.name}"]
    name = "_round_to_grid" if hasattr(module, "_round_to_grid") else "round_to_integer"
    rounding = FrozenRounding(getattr(module, name, round_to_integer))
    monkeypatch.setattr(module, name, rounding, raising=False)
    return rounding


def smooth_derivatives(
    operator: Operator,
    operands: dict[str, Any],
    attributes: dict[str, Any],
    name: str,
    rounding: FrozenRounding,
) -> list[np.ndarray]:
    """Return the differences to both sides of the operator with fixed rounding offsets."""
    rounding.offsets.clear()
    rounding.replayed = None
    here = operator.reference(**operands, **attributes)
    differences = []
    # A product with a scale is linear in it, and exact in float32 for this step.
    for step in (0.125, -0.125) if reads_codes(operator) else (1e-6, -1e-6):
        rounding.again()
        moved = {**operands, name: operands[name] + step}
        differences.append((operator.reference(**moved, **attributes) - here) / step)
    return differences


SMOOTH = [
    (operator, name)
    for operator in DIFFERENTIABLE
    for name in operator.differentiable
    # The sign of x has no rounding to hold, and widths are integers: tests of their own below.
    if "bitwidth" not in name and (operator.name, name) != ("bipolar_quant", "x")
]


@pytest.mark.parametrize(
    ("operator", "name"), SMOOTH, ids=[f"{operator.name}-{name}" for operator, name in SMOOTH]
)
def test_partials_match_finite_differences(
    operator: Operator, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = arguments(operator)
    shape = operands[operator.inputs[0].name].shape
    cases = list(variants(operator))
    expected = [operator.partials(**operands, **attributes)[name] for attributes in cases]
    rounding = frozen(operator, monkeypatch)
    for attributes, partial in zip(cases, expected, strict=True):
        got = np.broadcast_to(partial, shape)
        right, left = smooth_derivatives(operator, operands, attributes, name, rounding)
        # What is rounded to the very bound has a kink: either side will do there.
        smooth = np.isclose(right, left, rtol=1e-4, atol=1e-6)
        target = np.where(np.abs(got - left) < np.abs(got - right), left, right)
        np.testing.assert_allclose(got, target, rtol=1e-4, atol=1e-6, err_msg=str(attributes))
        assert np.mean(smooth) > 0.7
        assert np.any(got[smooth] != 0)


def bounds(bits: np.ndarray, signed: bool, narrow: bool) -> tuple[np.ndarray, np.ndarray]:
    if signed:
        return -(2.0 ** (bits - 1)) + narrow, 2.0 ** (bits - 1) - 1
    return 0 * bits, 2.0**bits - 1 - narrow


WIDTHS: list[tuple[str, str, Callable[[dict[str, Any]], tuple[Any, Any]]]] = [
    (
        "int_quant",
        "bitwidth",
        lambda operands: (operands["scale"], operands["scale"]),
    ),
    (
        "trunc",
        "out_bitwidth",
        lambda operands: (
            operands["scale"] * 2 ** np.round(np.log2(operands["out_scale"] / operands["scale"])),
            operands["out_scale"],
        ),
    ),
]


@pytest.mark.parametrize(("operator", "name", "scales"), WIDTHS, ids=["int_quant", "trunc"])
def test_partials_of_bitwidth_follow_bounds(
    operator: str, name: str, scales: Callable[[dict[str, Any]], tuple[Any, Any]]
) -> None:
    operands = arguments(OPERATORS[operator])
    scale_in, scale_out = scales(operands)
    codes = np.rint(operands["x"] / operands["scale"] + operands["zeropt"])
    if operator == "int_quant":
        codes = operands["x"] / operands["scale"] + operands["zeropt"]
    codes = codes * operands["scale"] / scale_in
    for attributes in variants(OPERATORS[operator]):
        limits = {key: attributes[key] for key in ("signed", "narrow")}
        step = 1e-6
        lowest, highest = bounds(operands[name], **limits)
        lower, upper = (bounds(operands[name] + shift, **limits) for shift in (-step, step))
        by_lowest, by_highest = (
            (after - before) / (2 * step) * scale_out
            for before, after in zip(lower, upper, strict=True)
        )
        expected = np.where(codes > highest, by_highest, np.where(codes < lowest, by_lowest, 0))
        got = OPERATORS[operator].partials(**operands, **attributes)[name]
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)
        assert np.any(got != 0)


def test_bipolar_partials_are_zero_beyond_scale() -> None:
    x = np.array([-2.1, -2.0, -0.5, -0.0, 0.0, 1.9, 2.0, 2.1, np.nan])
    partials = OPERATORS["bipolar_quant"].partials(x, -2.0)
    assert partials["x"].tolist() == [0, 1, 1, 1, 1, 1, 1, 0, 0]
    assert partials["scale"].tolist() == [-1, -1, -1, 1, 1, 1, 1, 1, -1]


@each_operator
def test_partials_have_declared_names_and_dtypes(operator: Operator) -> None:
    operands, attributes = arguments(operator), next(variants(operator))
    names = [declared.name for declared in operator.inputs]
    x = operands[names[0]]
    for dtype in x_dtypes(operator)[:2]:
        operands[names[0]] = x.astype(dtype)
        partials = operator.partials(**operands, **attributes)
        assert tuple(partials) == operator.differentiable
        for partial in partials.values():
            assert partial.dtype == (np.float32 if reads_codes(operator) else dtype)
            assert np.broadcast_shapes(partial.shape, x.shape) == x.shape
    assert (operator.differentiable[0] == names[0]) == (not reads_codes(operator))
    assert set(operator.differentiable) <= set(names)


def test_partials_are_missing_for_integer_results_only() -> None:
    for operator in OPERATORS.values():
        result_dtype = operator.result_dtype
        dtype = "float32" if result_dtype is None else result_dtype(operator.complete({}))
        assert bool(operator.differentiable) == (np.dtype(dtype).kind == "f")


SHAPES: list[tuple[int, ...]] = [
    (),
    (1,),
    (1, 1, 1),
    (2, 1, 1),
    (1, 3, 1),
    (4,),
    (3, 1),
    (2, 1, 4),
    (2, 3, 4),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_carried_back_sums_to_parameter_shape(shape: tuple[int, ...], dtype: Any) -> None:
    random = np.random.default_rng(0)
    # Small integers: every order of summation gives the same.
    gradient = random.integers(-8, 8, (2, 3, 4)).astype(np.float32)
    partial = random.integers(-8, 8, (2, 3, 4)).astype(np.float32)
    parameter = np.zeros(shape, dtype)
    actual = propagate_gradients(gradient, {"scale": parameter}, {"scale": partial}, ["scale"])[
        "scale"
    ]
    expected = np.zeros((1,) * (3 - len(shape)) + shape)
    for place, product in np.ndenumerate(gradient * partial):
        expected[tuple(min(i, n - 1) for i, n in zip(place, expected.shape, strict=True))] += (
            product
        )
    assert actual.dtype == dtype
    assert actual.shape == shape
    assert np.array_equal(actual, expected.reshape(shape).astype(dtype))


@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 1, 1)), (1, (1, 3, 1)), (-1, (1, 1, 4))])
def test_carried_back_sums_along_parameter_axis(axis: int, shape: tuple[int, ...]) -> None:
    """Scales of channels are 1-D, which is not how they broadcast to x."""
    random = np.random.default_rng(0)
    codes = random.integers(-128, 128, (2, 3, 4)).astype(np.int8)
    gradient = random.integers(-8, 8, codes.shape).astype(np.float32)
    scales = np.ones(codes.shape[axis], np.float32)
    operator, attributes = OPERATORS["dynamic_dequantize"], {"qtype": "per_channel", "axis": axis}
    shapes = operator.broadcast_shapes((codes, scales, None), attributes)
    assert shapes == {"src": codes.shape, "scales": shape}
    partials = operator.partials(codes, scales, **attributes)
    actual = propagate_gradients(gradient, {"scales": scales}, partials, ["scales"], shapes)[
        "scales"
    ]
    others = tuple(i for i in range(3) if i != axis % 3)
    assert np.array_equal(actual, (gradient * codes).sum(axis=others))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (3, 1)])
def test_carried_back_of_empty_arrays_is_zero(shape: tuple[int, ...]) -> None:
    empty = np.zeros((3, 0), np.float32)
    actual = propagate_gradients(empty, {"scale": np.ones(shape)}, {"scale": empty}, ["scale"])[
        "scale"
    ]
    assert actual.shape == shape
    assert np.all(actual == 0)


def test_carried_back_stops_infinite_gradients_at_zero_derivatives() -> None:
    gradient = np.array([np.inf, np.nan, -np.inf, 3.0], np.float32)
    partial = np.array([0.0, -0.0, 1.0, 2.0], np.float32)
    inputs = {"x": gradient, "scale": np.float32(1).reshape(())}
    actual = propagate_gradients(gradient, inputs, {"x": partial, "scale": partial}, ["x", "scale"])
    assert actual["x"].tolist() == [0, 0, -np.inf, 6]
    assert not np.signbit(actual["x"][:2]).any()
    assert actual["scale"] == -np.inf


def test_carried_back_computes_requested_gradients_only() -> None:
    operator = OPERATORS["int_quant"]
    operands = arguments(operator)
    operands["bitwidth"] = operands["bitwidth"].astype(np.float32)
    partials = operator.partials(**operands)
    actual = propagate_gradients(operands["x"], operands, partials, ("zeropt", "bitwidth"))
    assert set(actual) == {"zeropt", "bitwidth"}
    assert actual["bitwidth"].dtype == np.float32
    assert actual["zeropt"].shape == (4, 1)
