# SPDX-License-Identifier: Apache-2.0
"""The operators that stretches of networks are run with in PyTorch, beside ONNX Runtime."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

torch = pytest.importorskip("torch")

from passes import random  # noqa: E402
from small_models import model, node  # noqa: E402

import anybit  # noqa: E402
from anybit.quantization.learned import operators  # noqa: E402

X = random(2, 6, 5, 4, seed=1)
POSITIVE = np.abs(X) + np.float32(0.1)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


PLAIN = """
    Abs Elu Erf Exp GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish Identity LeakyRelu Mish
    Neg Relu Sigmoid Softplus Softmax Tanh Flatten Transpose
    ReduceMean ReduceMax ReduceMin ReduceSum
"""

# The operator, what it reads beside x, its attributes, x, and the opset.
CASES: list[tuple[str, list[np.ndarray | None], dict[str, Any], np.ndarray, int]] = [
    *((name, [], {}, X, 18) for name in PLAIN.split()),
    *((name, [], {}, POSITIVE, 18) for name in ("Sqrt", "Reciprocal")),
    *((name, [random(5, 1, seed=2)], {}, X, 18) for name in ("Add", "Sub", "Mul", "Div")),
    *((name, [random(4, seed=3)], {}, X, 18) for name in ("Max", "Min", "PRelu")),
    ("Pow", [np.float32(2)], {}, X, 18),
    ("Pow", [np.float32(0.5)], {}, POSITIVE, 18),
    ("Clip", [np.float32(-0.5), np.float32(0.7)], {}, X, 18),
    ("Clip", [None, np.float32(0.7)], {}, X, 18),
    ("Clip", [], {"min": -0.1, "max": 0.2}, X, 10),
    ("Elu", [], {"alpha": 0.3}, X, 18),
    ("LeakyRelu", [], {"alpha": 0.3}, X, 18),
    ("HardSigmoid", [], {"alpha": 0.3, "beta": 0.4}, X, 18),
    ("Gelu", [], {}, X, 20),
    ("Gelu", [], {"approximate": "tanh"}, X, 20),
    ("Softmax", [], {"axis": 1}, X, 13),
    ("Softmax", [], {}, X, 11),
    ("Softmax", [], {"axis": 2}, X, 11),
    ("LayerNormalization", [random(4, seed=4), random(4, seed=5)], {"axis": -1}, X, 17),
    ("LayerNormalization", [random(5, 4, seed=4)], {"axis": 2, "epsilon": 0.1}, X, 17),
    ("Conv", [random(8, 6, 3, 3), random(8)], {"pads": [1, 0, 2, 1]}, X, 18),
    ("Conv", [random(6, 1, 2, 3)], {"group": 6, "strides": [2, 1], "dilations": [2, 1]}, X, 18),
    ("Conv", [random(4, 5, 3)], {"auto_pad": "VALID"}, X[:, 0], 18),
    ("ConvTranspose", [random(6, 3, 2, 2), random(3)], {"strides": [2, 2]}, X, 18),
    (
        "ConvTranspose",
        [random(6, 2, 3, 3)],
        {"group": 2, "pads": [1, 0, 0, 2], "output_padding": [1, 0], "strides": [2, 1]},
        X,
        18,
    ),
    ("MatMul", [random(4, 3)], {}, X, 18),
    ("Gemm", [random(3, 4), random(3)], {"transB": 1}, X[0, 0], 18),
    ("Gemm", [random(5, 3)], {"transA": 1, "alpha": 0.5}, X[0, 0], 18),
    ("Gemm", [random(4, 3), random(5, 1)], {"beta": 0.5}, X[0, 0], 18),
    ("MaxPool", [], {"kernel_shape": [2, 3], "pads": [1, 0, 0, 1], "strides": [1, 2]}, X, 18),
    ("MaxPool", [], {"kernel_shape": [2, 2], "dilations": [2, 1]}, X, 18),
    ("AveragePool", [], {"kernel_shape": [2, 3], "pads": [1, 0, 0, 1]}, X, 18),
    ("AveragePool", [], {"kernel_shape": [2, 2], "pads": [1] * 4, "count_include_pad": 1}, X, 18),
    ("ReduceMean", [ints(-1, 1)], {"keepdims": 0}, X, 18),
    ("ReduceMean", [], {"axes": [2, 3]}, X, 13),
    ("ReduceSum", [], {"noop_with_empty_axes": 1}, X, 18),
    ("ReduceL2", [ints(1)], {}, X, 18),
    ("Reshape", [ints(0, -1, 2)], {}, X, 18),
    ("Flatten", [], {"axis": -1}, X, 18),
    ("Transpose", [], {"perm": [0, 2, 3, 1]}, X, 18),
    ("Unsqueeze", [ints(0, -1)], {}, X, 18),
    ("Unsqueeze", [], {"axes": [1, 3]}, X, 11),
    ("Squeeze", [ints(1)], {}, X[:, :1], 18),
    ("Squeeze", [], {}, X[:1, :1], 18),
    ("Concat", [random(2, 3, 5, 4)], {"axis": 1}, X, 18),
    ("Slice", [ints(4, 1), ints(-100, 3), ints(2, 3), ints(-2, 1)], {}, X, 18),
    ("Slice", [], {"starts": [1], "ends": [-1], "axes": [1]}, X, 9),
    ("Gather", [ints(2, -1).reshape(1, 2)], {"axis": 1}, X, 18),
    ("Split", [ints(2, 4)], {"axis": 1}, X, 18),
    ("Split", [], {"axis": 2, "num_outputs": 2}, X, 18),
    ("Expand", [ints(3, 1, 1, 5, 1)], {}, X, 18),
    ("Where", [random(4, seed=9), X[:, :, :1]], {}, X > 0, 18),
]


@pytest.mark.parametrize("case", CASES, ids=lambda each: f"{each[0]}-{each[4]}-{len(each[1])}")
def test_as_the_runtime(case: tuple[Any, ...]) -> None:
    kind, others, attributes, x, opset = case
    names = ["x", *("_" if each is None else f"c{at}" for at, each in enumerate(others))]
    constants = {name: each for name, each in zip(names[1:], others, strict=True) if name != "_"}
    outputs = "y z" if kind == "Split" else "y"
    made = node(kind, " ".join(names), outputs, domain="", **attributes)
    made.input[:] = ["" if each == "_" else each for each in made.input]
    proto = model([made], constants, inputs={"x": list(x.shape)}, opsets={"": opset})
    if x.dtype == bool:
        proto.graph.input[0].type.tensor_type.elem_type = 9
    wanted = anybit.load(proto).run(x)["y"]
    (graph_node,) = ir.from_proto(proto).graph
    operator = operators.operator_for(graph_node, opset)
    assert operator is not None
    given = [None if each is None else torch.from_numpy(np.array(each)) for each in (x, *others)]
    found = operator(graph_node, given)
    found = found[0] if isinstance(found, list | tuple) else found
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-5, atol=2e-6)


def test_every_operator_has_a_case() -> None:
    assert set(operators._OPERATORS) == {each[0] for each in CASES}


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("Conv", {"auto_pad": "SAME_UPPER"}),
        ("MaxPool", {"ceil_mode": 1}),
        ("LSTM", {}),
        ("Relu", {"domain": "other"}),
    ],
)
def test_what_is_not_known_is_left(kind: str, attributes: dict[str, Any]) -> None:
    made = node(kind, "x", "y", **{"domain": "", **attributes})
    assert operators.operator_for(ir.from_proto(made), 18) is None
