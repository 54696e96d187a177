# SPDX-License-Identifier: Apache-2.0
"""Grids: the exact set of values that a call can give, its codes, and positions in it."""

from typing import Any

import numpy as np
import pytest

import anybit
from anybit.formats import FloatFormat
from anybit.ops import Operator
from anybit.ops.grids import Call, FloatGrid, Grid, IntegerGrid, Spacing, get_channels

f32 = np.float32


def array(values: Any) -> np.ndarray:
    return np.array(values, f32)


def operator(name: str) -> Operator:
    actual: Operator = getattr(anybit, name).operator
    return actual


def grid_of(name: str, parameters: dict[str, Any], **attributes: Any) -> Grid:
    declared = operator(name)
    assert declared.grid is not None
    arrays = {key: array(value) for key, value in parameters.items()}
    grid = declared.grid(Call(arrays, declared.complete(attributes)))
    assert grid is not None
    return grid


CALLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "signed": ("int_quant", {"scale": 0.25, "zeropt": 0, "bitwidth": 3}, {}),
    "narrow": ("int_quant", {"scale": 0.3, "zeropt": 1, "bitwidth": 4}, {"narrow": True}),
    "unsigned": ("int_quant", {"scale": 0.7, "zeropt": 2, "bitwidth": 3}, {"signed": False}),
    "fraction": ("int_quant", {"scale": 0.7, "zeropt": 0.5, "bitwidth": 3}, {}),
    "sign": ("bipolar_quant", {"scale": 0.3}, {}),
    "trunc": (
        "trunc",
        {
            "scale": 0.5,
            "zeropt": 0,
            "in_bitwidth": 6,
            "out_scale": 2,
            "out_bitwidth": 3,
        },
        {},
    ),
    "float": (
        "float_quant",
        {"scale": 0.3, "exponent_bitwidth": 2, "mantissa_bitwidth": 1, "exponent_bias": 1},
        {},
    ),
}


@pytest.mark.parametrize("case", CALLS.values(), ids=list(CALLS))
def test_grid_values_equal_operator_results(case: tuple[Any, ...]) -> None:
    name, parameters, attributes = case
    grid = grid_of(name, parameters, **attributes)
    x = np.linspace(-40, 40, 20001, dtype=f32)
    arguments = np.unique(operator(name).function(x, **parameters, **attributes))
    if isinstance(grid, FloatGrid):
        values = grid.format.values().astype(f32) * grid.scale
    else:
        values = grid.decode(np.array(grid.codes))
    np.testing.assert_array_equal(arguments, np.unique(values))


@pytest.mark.parametrize("case", CALLS.values(), ids=list(CALLS))
def test_grid_encode_inverts_decode(case: tuple[Any, ...]) -> None:
    name, parameters, attributes = case
    grid = grid_of(name, parameters, **attributes)
    values = operator(name).function(np.linspace(-9, 9, 999, dtype=f32), **parameters, **attributes)
    dtype = f32 if isinstance(grid, FloatGrid) else np.int8
    codes = grid.encode(values, dtype)
    np.testing.assert_array_equal(grid.decode(codes), values)
    if isinstance(grid, IntegerGrid):
        assert set(codes.tolist()) <= set(grid.codes)


def test_sign_grid_excludes_zero() -> None:
    grid = grid_of("bipolar_quant", {"scale": 0.5})
    assert isinstance(grid, IntegerGrid)
    assert (list(grid.codes), grid.bits) == ([-1, 1], 1)
    assert grid.encode(array([0.5, -0.5]), np.int8).tolist() == [1, -1]
    for value in (0, 0.25, 1, np.nan, np.inf):
        with pytest.raises(ValueError, match="off their grid"):
            grid.encode(array([0.5, value]), np.int8)


def test_grid_encode_rejects_values_off_grid() -> None:
    with pytest.raises(ValueError, match="differ from its values"):
        FloatGrid(array(0.3), FloatFormat(2, 1)).encode(array([0.31]), np.float16)


@pytest.mark.parametrize(
    ("codes", "bits"),
    [
        (range(-8, 8), 4),
        (range(-7, 8), 4),
        (range(2**32), 32),
        (range(2), 1),
        (range(1), 1),
        (range(-1, 2, 2), 1),
    ],
)
def test_grid_bits_cover_codes(codes: range, bits: int) -> None:
    assert IntegerGrid(array(1), array(0), codes).bits == bits


@pytest.mark.parametrize("name", ["int_quant", "bipolar_quant"])
def test_grid_round_trips_to_quantizer(name: str) -> None:
    parameters = {"scale": array(0.5)}
    if name == "int_quant":
        parameters |= {"zeropt": array(1), "bitwidth": array(4)}
    grid = grid_of(name, parameters)
    others = [item for item in anybit.ops.OPERATORS if item.from_grid is not None]
    calls = {other.name: other.from_grid(grid) for other in others if other.from_grid is not None}
    actual = {key: call for key, call in calls.items() if call is not None}
    assert list(actual) == [name]
    assert actual[name].parameters == parameters


def test_grid_supports_channels() -> None:
    per_channel = IntegerGrid(array([[[1]], [[2]]]), array(3), range(4)).channels
    assert per_channel is not None
    assert (per_channel.axis, per_channel.scale.tolist()) == (-3, [1, 2])
    assert per_channel.zeropt.tolist() == [3, 3]
    assert per_channel.broadcast(per_channel.scale).shape == (2, 1, 1)
    one = FloatGrid(array([[0.5]]), FloatFormat(2, 1)).channels
    assert one is not None
    assert (one.axis, one.scale.shape) == (None, ())
    assert get_channels(array([[1, 2], [3, 4]]), array(0)) is None
    assert get_channels(array([1, 2]), array([1, 2, 3])) is None
    assert get_channels(np.zeros((0,), f32), array(0)) is None


def test_grid_positions_count_steps() -> None:
    grid = IntegerGrid(array([[0.5], [-2]]), array(3), range(8))
    values = array([[0.5, 0.75], [2, -4]])
    assert grid.count_steps(values).tolist() == [[1, 1.5], [1, -2]]
    picked = grid.spacing.select(np.array([[True, False], [False, True]]))
    assert picked.count_steps(values[[0, 1], [0, 1]]).tolist() == [1, -2]


def test_float_grid_positions_count_values() -> None:
    grid = FloatGrid(array(0.5), FloatFormat(3, 2))
    values = grid.format.values() / 2
    np.testing.assert_array_equal(
        grid.count_steps(values), np.arange(len(values)) - len(values) // 2
    )
    assert Spacing(array(0)).count_steps(array([1])).tolist() == [np.inf]
