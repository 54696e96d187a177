# SPDX-License-Identifier: Apache-2.0
"""What the table of standard operators says of each, tried on ONNX's own evaluator."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from anybit.onnx.analysis.rules.functions import FUNCTIONS
from anybit.onnx.graph import facts
from anybit.onnx.graph.curves import Curve, curve_of
from anybit.onnx.graph.facts import Effect, bias_input_of, effect_of, is_identity
from anybit.onnx.graph.reductions import reduced_axes

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
        found = ReferenceEvaluator(model).run(None, dict(zip(node.input, arrays, strict=True)))
    return np.asarray(found[0])


def case(kind: str, x: np.ndarray) -> tuple[onnx.NodeProto, list[np.ndarray]]:
    """A node of the operator, and what it takes besides x."""
    more = [np.array(each) for each in INTS.get(kind, [])]
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


def of(effect: Effect) -> list[str]:
    return sorted(name for name, each in facts._EFFECTS.items() if each is effect)


CURVES: list[tuple[str, int, list[float], dict[str, Any], Curve]] = [
    *((kind, 0, [], {}, Curve.RISES) for kind in ("Ceil", "Floor", "Relu", "Round", "Sign")),
    *((kind, 0, [0.7], {}, Curve.RISES) for kind in ("Add", "Max", "Min", "Mul", "Div", "Sub")),
    *((kind, 0, [-0.7], {}, Curve.FALLS) for kind in ("Mul", "Div")),
    ("Clip", 0, [-2, 3], {}, Curve.RISES),
    ("Cast", 0, [], {"to": 10}, Curve.RISES),
    ("Cast", 0, [], {"to": 9}, Curve.BENDS),
    ("Neg", 0, [], {}, Curve.FALLS),
    ("Sub", 1, [0.7], {}, Curve.FALLS),
    ("Div", 1, [0.7], {}, Curve.BENDS),
    ("Abs", 0, [], {}, Curve.BENDS),
    ("LeakyRelu", 0, [], {"alpha": 0.1}, Curve.RISES),
    ("LeakyRelu", 0, [], {"alpha": -0.1}, Curve.BENDS),
    ("HardSigmoid", 0, [], {"alpha": 0.1}, Curve.RISES),
    ("HardSigmoid", 0, [], {"alpha": -0.1}, Curve.FALLS),
]


@pytest.mark.parametrize(("kind", "at", "constants", "attributes", "curve"), CURVES)
def test_curves(
    kind: str, at: int, constants: list[float], attributes: dict[str, Any], curve: Curve
) -> None:
    x = np.linspace(-6, 6, 97, dtype=np.float32)
    arrays = [np.asarray(each, np.float32) for each in constants]
    arrays.insert(at, x)
    proto = made(kind, len(arrays), **attributes)
    y = np.diff(result(proto, *arrays).astype(np.float64))
    found = Curve.RISES if np.all(y >= 0) else Curve.FALLS if np.all(y <= 0) else Curve.BENDS
    assert found is curve
    node = parsed(proto)
    for value, array in zip(node.inputs, arrays, strict=True):
        if array is not x:
            assert value is not None
            value.const_value = ir.tensor(array)
            ir.Graph([], [], nodes=[], initializers=[value])
    assert node.inputs[at] is not None
    assert curve_of(node, node.inputs[at]) is curve


def test_curves_per_channel() -> None:
    """Factors of both signs: each channel goes one way."""
    node = parsed(made("Mul", 2))
    factors = node.inputs[1]
    assert factors is not None
    factors.const_value = ir.tensor(np.float32([1, -1]))
    ir.Graph([], [], nodes=[], initializers=[factors])
    assert curve_of(node, node.inputs[0]) is Curve.EITHER


def test_what_the_analysis_bounds_is_elementwise() -> None:
    assert FUNCTIONS.keys() <= set(of(Effect.ELEMENTWISE))


def parsed(node: onnx.NodeProto) -> ir.Node:
    return ir.from_proto(node)


@pytest.mark.parametrize("kind", of(Effect.MOVE))
def test_moves(kind: str) -> None:
    node, (x, *rest) = case(kind, X)
    table = np.random.default_rng(1).standard_normal(16, dtype=np.float32)
    after = table[result(node, x, *rest).astype(int) + 5]
    np.testing.assert_array_equal(result(node, table[x.astype(int) + 5], *rest), after)
    assert effect_of(parsed(node), OPSET) is Effect.MOVE


@pytest.mark.parametrize("kind", of(Effect.SELECT))
def test_selects(kind: str) -> None:
    node, (x,) = case(kind, X)
    np.testing.assert_array_equal(result(node, np.exp2(x)), np.exp2(result(node, x)))
    assert set(result(node, x).ravel()) < set(x.ravel())


@pytest.mark.parametrize("kind", of(Effect.RECTIFY))
def test_rectifies(kind: str) -> None:
    node, (x,) = case(kind, X)
    y = result(node, x)
    assert np.all((y == x) | (y == 0))


@pytest.mark.parametrize("kind", of(Effect.ELEMENTWISE))
def test_elementwise(kind: str) -> None:
    node, arrays = case(kind, np.abs(X) + 1)
    turned = result(node, *(each[..., ::-1].copy() for each in arrays))
    np.testing.assert_array_equal(turned, result(node, *arrays)[..., ::-1])


@pytest.mark.parametrize("kind", of(Effect.AVERAGE))
def test_averages(kind: str) -> None:
    node, (x,) = case(kind, X)
    y = result(node, x)
    assert np.all(y == (X.mean() if y.size == 1 else X.mean((2, 3), keepdims=True)))


@pytest.mark.parametrize("kind", of(Effect.REDUCE))
def test_reduces(kind: str) -> None:
    node, (x,) = case(kind, X)
    assert result(node, x).size == 1


SHAPES = {"Conv": (3, 4, 1, 1), "ConvTranspose": (4, 3, 1, 1), "Gemm": (4, 3), "MatMul": (4, 3)}


@pytest.mark.parametrize("kind", of(Effect.MULTIPLY))
def test_products(kind: str) -> None:
    """A bias is added to the channels of the result, whatever the weight."""
    shape = SHAPES[kind]
    x = X if len(shape) == 4 else X.reshape(4, 4)
    bias = np.array([0, 1, 0], np.float32)
    at = bias_input_of(parsed(made(kind, 2)))
    if at is None:
        assert kind == "MatMul"
        return
    added = result(made(kind, at + 1), x, np.zeros(shape, np.float32), bias)
    channels = bias.reshape(-1, 1, 1) if x.ndim == 4 else bias
    np.testing.assert_array_equal(added, np.broadcast_to(channels, added.shape))


def test_what_is_not_certain_is_not_said() -> None:
    assert effect_of(parsed(made("Dropout", 1))) is None
    assert effect_of(parsed(made("Dropout", 1)), 6) is None
    assert effect_of(parsed(made("Dropout", 3)), OPSET) is None
    assert effect_of(parsed(made("Relu", 1, domain="mine"))) is None
    assert bias_input_of(parsed(made("Conv", 2, domain="mine"))) is None
    assert bias_input_of(parsed(made("Relu", 1))) is None


def test_identities() -> None:
    found = [kind for kind in facts._EFFECTS if is_identity(parsed(made(kind, 1)), OPSET)]
    assert sorted(found) == ["Dropout", "Identity"]


@pytest.mark.parametrize(
    ("attributes", "given", "axes"),
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
def test_reduced_axes(attributes: dict[str, Any], given: Any, axes: tuple[int, ...] | None) -> None:
    node = parsed(made("ReduceMean", 1 + (given is not None), **attributes))
    if given not in (None, ...):
        value = node.inputs[1]
        assert value is not None
        value.const_value = ir.tensor(np.asarray(given, np.float32 if 0.5 in given else np.int64))
        ir.Graph([], [], nodes=[], initializers=[value])
    assert reduced_axes(node, 3) == axes
