# SPDX-License-Identifier: Apache-2.0
"""The traits of standard operators, compared with ONNX's reference evaluator."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from anybit.onnx.analysis.rules.functions import FUNCTIONS
from anybit.onnx.graph.op_traits import (
    Monotonicity,
    OpTrait,
    get_bias_index,
    get_monotonicity,
    get_neutral_operand,
    get_traits,
    is_identity,
    list_operators,
)
from anybit.onnx.graph.reductions import get_reduced_axes

OPSET = 18
LATER = {"Gelu": 20, "Swish": 24}
X = np.random.default_rng(0).permutation(16).astype(np.float32).reshape(1, 4, 2, 2) - 5
ONE = np.ones((), np.float32)
INTS = {
    "Expand": [[3, 4, 2, 2]],
    "Gather": [[3, 0]],
    "Reshape": [[2, 8]],
    "Slice": [[1], [3], [1]],
    "Squeeze": [[0]],
    "Tile": [[1, 2, 1, 1]],
    "Unsqueeze": [[0]],
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "AveragePool": {"kernel_shape": [2, 2]},
    "DepthToSpace": {"blocksize": 2},
    "Gather": {"axis": 1},
    "MaxPool": {"kernel_shape": [2, 2]},
    "SpaceToDepth": {"blocksize": 2},
    "Cast": {"to": 11},
}
TWO = """
    Add And CastLike Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or
    PRelu Pow Sub
"""
LOGICAL = ("And", "Not", "Or", "Where")


def made(kind: str, inputs: int, **attributes: Any) -> onnx.NodeProto:
    names = [f"x{index}" for index in range(inputs)]
    return helper.make_node(kind, names, ["y"], **attributes)


def result(node: onnx.NodeProto, *arrays: np.ndarray) -> np.ndarray:
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")])
    for name, array in zip(node.input, arrays, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", LATER.get(node.op_type, OPSET))]
    )
    with np.errstate(all="ignore"):
        actual = ReferenceEvaluator(model).run(None, dict(zip(node.input, arrays, strict=True)))
    return np.asarray(actual[0])


def case(kind: str, x: np.ndarray) -> tuple[onnx.NodeProto, list[np.ndarray]]:
    """Return a node of the operator, and its inputs besides x."""
    more = [np.array(constant) for constant in INTS.get(kind, [])]
    if kind in LOGICAL:
        x = x > 0
    if kind in TWO.split():
        more = [x[:, ::-1].copy()]
    if kind == "Where":
        more = [X, -X]
    attributes = dict(ATTRIBUTES.get(kind, {}))
    if kind == "Mod":
        attributes["fmod"] = 1
    return made(kind, 1 + len(more), **attributes), [x, *more]


def named(traits: OpTrait) -> list[str]:
    return sorted(list_operators(traits))


UNARY = ("Ceil", "Floor", "Identity", "Relu", "Round", "Sign")
BINARY = ("Add", "Max", "Min", "Mul", "Div", "Sub")
DIRECTIONS: list[tuple[str, int, list[float], dict[str, Any], Monotonicity]] = [
    *((kind, 0, [], {}, Monotonicity.INCREASING) for kind in UNARY),
    *((kind, 0, [0.7], {}, Monotonicity.INCREASING) for kind in BINARY),
    *((kind, 0, [-0.7], {}, Monotonicity.DECREASING) for kind in ("Mul", "Div")),
    ("Clip", 0, [-2, 3], {}, Monotonicity.INCREASING),
    ("Cast", 0, [], {"to": 10}, Monotonicity.INCREASING),
    ("Cast", 0, [], {"to": 9}, Monotonicity.NONE),
    ("Neg", 0, [], {}, Monotonicity.DECREASING),
    ("Sub", 1, [0.7], {}, Monotonicity.DECREASING),
    ("Div", 1, [0.7], {}, Monotonicity.NONE),
    ("Abs", 0, [], {}, Monotonicity.NONE),
    ("LeakyRelu", 0, [], {"alpha": 0.1}, Monotonicity.INCREASING),
    ("LeakyRelu", 0, [], {"alpha": -0.1}, Monotonicity.NONE),
    ("HardSigmoid", 0, [], {"alpha": 0.1}, Monotonicity.INCREASING),
    ("HardSigmoid", 0, [], {"alpha": -0.1}, Monotonicity.DECREASING),
]


def direction(differences: np.ndarray) -> Monotonicity:
    if np.all(differences >= 0):
        return Monotonicity.INCREASING
    return Monotonicity.DECREASING if np.all(differences <= 0) else Monotonicity.NONE


@pytest.mark.parametrize(("kind", "at", "constants", "attributes", "expected"), DIRECTIONS)
def test_op_traits_monotonicity_matches_reference_evaluator(
    kind: str, at: int, constants: list[float], attributes: dict[str, Any], expected: Monotonicity
) -> None:
    x = np.linspace(-6, 6, 97, dtype=np.float32)
    arrays = [np.asarray(constant, np.float32) for constant in constants]
    arrays.insert(at, x)
    proto = made(kind, len(arrays), **attributes)
    y = np.diff(result(proto, *arrays).astype(np.float64))
    assert expected is direction(y)
    node = parsed(proto)
    for value, array in zip(node.inputs, arrays, strict=True):
        if array is not x:
            assert value is not None
            value.const_value = ir.tensor(array)
            ir.Graph([], [], nodes=[], initializers=[value])
    assert node.inputs[at] is not None
    assert get_monotonicity(node, node.inputs[at]) is expected


def test_op_traits_monotonicity_of_factors_of_both_signs_is_per_channel() -> None:
    node = parsed(made("Mul", 2))
    factors = node.inputs[1]
    assert factors is not None
    factors.const_value = ir.tensor(np.float32([1, -1]))
    ir.Graph([], [], nodes=[], initializers=[factors])
    assert get_monotonicity(node, node.inputs[0]) is Monotonicity.MONOTONE


def test_op_traits_functions_of_the_analysis_are_elementwise() -> None:
    assert FUNCTIONS.keys() <= list_operators(OpTrait.ELEMENTWISE)


def parsed(node: onnx.NodeProto) -> ir.Node:
    return ir.from_proto(node)


@pytest.mark.parametrize("kind", named(OpTrait.DATA_MOVEMENT))
def test_op_traits_data_movement_commutes_with_functions(kind: str) -> None:
    node, (x, *rest) = case(kind, X)
    table = np.random.default_rng(1).standard_normal(16, dtype=np.float32)
    after = table[result(node, x, *rest).astype(int) + 5]
    np.testing.assert_array_equal(result(node, table[x.astype(int) + 5], *rest), after)
    assert OpTrait.DATA_MOVEMENT in get_traits(parsed(node), OPSET)


@pytest.mark.parametrize("kind", named(OpTrait.SELECTION))
def test_op_traits_selection_commutes_with_increasing_functions(kind: str) -> None:
    node, (x,) = case(kind, X)
    np.testing.assert_array_equal(result(node, np.exp2(x)), np.exp2(result(node, x)))
    assert set(result(node, x).ravel()) < set(x.ravel())


@pytest.mark.parametrize("kind", named(OpTrait.RECTIFIER))
def test_op_traits_rectifier_returns_x_or_zero(kind: str) -> None:
    node, (x,) = case(kind, X)
    y = result(node, x)
    assert np.all((y == x) | (y == 0))


@pytest.mark.parametrize("kind", named(OpTrait.ELEMENTWISE))
def test_op_traits_elementwise_operators_commute_with_reversal(kind: str) -> None:
    node, arrays = case(kind, np.abs(X) + 1)
    turned = result(node, *(array[..., ::-1].copy() for array in arrays))
    np.testing.assert_array_equal(turned, result(node, *arrays)[..., ::-1])


@pytest.mark.parametrize("kind", named(OpTrait.MEAN))
def test_op_traits_mean_operators_average(kind: str) -> None:
    node, (x,) = case(kind, X)
    y = result(node, x)
    assert np.all(y == (X.mean() if y.size == 1 else X.mean((2, 3), keepdims=True)))


@pytest.mark.parametrize("kind", named(OpTrait.REDUCTION))
def test_op_traits_reduction_returns_one_element(kind: str) -> None:
    node, (x,) = case(kind, X)
    assert result(node, x).size == 1


SHAPES = {"Conv": (3, 4, 1, 1), "ConvTranspose": (4, 3, 1, 1), "Gemm": (4, 3), "MatMul": (4, 3)}


@pytest.mark.parametrize("kind", named(OpTrait.MATMUL))
def test_op_traits_bias_input_adds_to_channels(kind: str) -> None:
    shape = SHAPES[kind]
    x = X if len(shape) == 4 else X.reshape(4, 4)
    bias = np.array([0, 1, 0], np.float32)
    at = get_bias_index(parsed(made(kind, 2)))
    if at is None:
        assert kind == "MatMul"
        return
    added = result(made(kind, at + 1), x, np.zeros(shape, np.float32), bias)
    channels = bias.reshape(-1, 1, 1) if x.ndim == 4 else bias
    np.testing.assert_array_equal(added, np.broadcast_to(channels, added.shape))


def test_traits_of_unproven_nodes_are_empty() -> None:
    assert get_traits(parsed(made("Dropout", 1))) == OpTrait.NONE
    assert get_traits(parsed(made("Dropout", 1)), 6) == OpTrait.NONE
    assert get_traits(parsed(made("Dropout", 3)), OPSET) == OpTrait.NONE
    assert get_traits(parsed(made("Relu", 1, domain="mine"))) == OpTrait.NONE
    assert get_bias_index(parsed(made("Conv", 2, domain="mine"))) is None
    assert get_bias_index(parsed(made("Relu", 1))) is None


def test_op_traits_is_identity_accepts_identity_and_dropout() -> None:
    operators = named(~OpTrait.NONE)
    identities = [kind for kind in operators if is_identity(parsed(made(kind, 1)), OPSET)]
    assert identities == ["Dropout", "Identity"]


@pytest.mark.parametrize("kind", named(OpTrait.RESHAPE))
def test_op_traits_reshape_keeps_order(kind: str) -> None:
    node, (x, *rest) = case(kind, X)
    np.testing.assert_array_equal(result(node, x, *rest).ravel(), x.ravel())


@pytest.mark.parametrize("kind", named(OpTrait.STEP))
def test_op_traits_step_returns_whole_numbers(kind: str) -> None:
    node, (x, *rest) = case(kind, X)
    y = result(node, x, *(np.ones_like(operand) for operand in rest))
    np.testing.assert_array_equal(y, np.round(y))


@pytest.mark.parametrize("kind", named(OpTrait.NON_NEGATIVE))
def test_op_traits_non_negative_operators(kind: str) -> None:
    assert np.all(result(made(kind, 1), X) >= 0)


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Pow"])
def test_op_traits_neutral_operand_returns_other_input(kind: str) -> None:
    node = made(kind, 2)
    neutral = get_neutral_operand(parsed(node))
    np.testing.assert_array_equal(result(node, X, np.float32(neutral)), X)


@pytest.mark.parametrize("kind", named(OpTrait.KEEPS_SINGLE_ELEMENT))
def test_op_traits_reductions_keep_single_elements(kind: str) -> None:
    x = X[:1, :1, :1, :1]
    np.testing.assert_array_equal(result(made(kind, 1), x), x)


@pytest.mark.parametrize("kind", named(OpTrait.NOT_LARGER))
def test_op_traits_not_larger_operators_shrink_or_keep_size(kind: str) -> None:
    node, (x, *rest) = case(kind, X)
    assert result(node, x, *rest).size <= x.size


@pytest.mark.parametrize(
    ("attributes", "arguments", "axes"),
    [
        ({}, None, (0, 1, 2)),
        ({"axes": [-1, 1]}, None, (1, 2)),
        ({"noop_with_empty_axes": 1}, None, ()),
        ({"noop_with_empty_axes": 1}, [], ()),
        ({}, [2, -1], (2,)),
        ({}, [3], None),
        ({"axes": [-4]}, None, None),
        ({}, [0] * 9, None),
        ({}, [0.5], None),
        ({}, ..., None),
    ],
)
def test_op_traits_reduced_axes(
    attributes: dict[str, Any], arguments: Any, axes: tuple[int, ...] | None
) -> None:
    node = parsed(made("ReduceMean", 1 + (arguments is not None), **attributes))
    if arguments not in (None, ...):
        value = node.inputs[1]
        assert value is not None
        value.const_value = ir.tensor(
            np.asarray(arguments, np.float32 if 0.5 in arguments else np.int64)
        )
        ir.Graph([], [], nodes=[], initializers=[value])
    assert get_reduced_axes(node, 3) == axes
