# SPDX-License-Identifier: Apache-2.0
"""Products of constants are folded where no order of their sums changes a bit; Split always."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from anybit.onnx import prepare

NORMAL = np.random.default_rng(0).normal(0, 1, (5, 4)).astype(np.float32)
ZEROS = np.zeros((2, 5), np.float32)
CODES = np.random.default_rng(1).integers(-128, 128, (2, 5)).astype(np.float32)
WEIGHTS = np.random.default_rng(2).integers(-8, 8, (5, 4)).astype(np.float32)
BIAS = np.float32([0.1, -0.0, 3e38, 1e-42])


def fold(
    kind: str, arrays: list[np.ndarray], outputs: int = 1, **options: Any
) -> list[np.ndarray] | None:
    """Return the outputs of a node with constant inputs as constants; None if it stays."""
    names = [f"v{at}" for at in range(len(arrays))]
    results = [f"y{at}" for at in range(outputs)]
    constants = [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)]
    kinds = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    ports = [helper.make_tensor_value_info(name, kinds, None) for name in results]
    nodes = [helper.make_node(kind, names, results, **options)]
    graph = helper.make_graph(nodes, "g", [], ports, constants)
    made = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    if list(made.graph):
        return None
    return [value.const_value.numpy() for value in made.graph.outputs]


@pytest.mark.parametrize("options", [{}, {"alpha": 1.0, "beta": 1.0}])
def test_gemm_of_zeros_is_its_bias(options: dict[str, float]) -> None:
    (y,) = fold("Gemm", [ZEROS, NORMAL, BIAS], **options)
    assert y.tobytes() == np.broadcast_to(BIAS + np.float32(0), (2, 4)).tobytes()
    (y,) = fold("Gemm", [ZEROS.T, NORMAL.T], transA=1, transB=1)
    assert y.tobytes() == bytes(2 * 4 * 4)
    (y,) = fold("MatMul", [ZEROS, -NORMAL])
    assert y.tobytes() == bytes(2 * 4 * 4)


@pytest.mark.parametrize("x_scale", [1, 2.0**-7, 2.0**40])
def test_products_of_integers_and_powers_of_two_are_exact(x_scale: float) -> None:
    x, w = CODES * np.float32(x_scale), WEIGHTS * np.float32(2.0**-9)
    bias = np.float32([1, -7, 1000, 0]) * np.float32(x_scale * 2.0**-9)
    expected = (CODES @ WEIGHTS + np.float32([1, -7, 1000, 0])) * np.float32(x_scale * 2.0**-9)
    (y,) = fold("Gemm", [x, w, bias])
    np.testing.assert_array_equal(y, expected)
    (y,) = fold("MatMul", [np.stack([x] * 3), w])
    np.testing.assert_array_equal(y, [CODES @ WEIGHTS * np.float32(x_scale * 2.0**-9)] * 3)
    (y,) = fold("MatMul", [x[0], w[:, 0]])
    assert y == CODES[0] @ WEIGHTS[:, 0] * np.float32(x_scale * 2.0**-9)


INEXACT = {
    "sums of random numbers": ("Gemm", [CODES, NORMAL], {}),
    "bias of another unit": ("Gemm", [CODES, WEIGHTS, np.float32([0.1])], {}),
    "sums over 2^24": ("MatMul", [np.full((1, 2), 2.0**12 + 1, np.float32)] * 2, {"shape": (2, 1)}),
    "subnormal sums": ("MatMul", [CODES * np.float32(2.0**-80), WEIGHTS * 2.0**-80], {}),
    "infinite sums": ("MatMul", [CODES * np.float32(2.0**90), WEIGHTS * 2.0**30], {}),
    "infinity times zero": ("MatMul", [ZEROS, NORMAL * np.float32(np.inf)], {}),
    "a factor": ("Gemm", [ZEROS, NORMAL, BIAS], {"beta": 0.3}),
    "another type": ("MatMul", [ZEROS.astype(np.float64), NORMAL.astype(np.float64)], {}),
}


@pytest.mark.parametrize("case", INEXACT)
def test_products_that_depend_on_the_order_of_sums_stay(case: str) -> None:
    kind, arrays, options = INEXACT[case]
    arrays = [array.astype(arrays[0].dtype) for array in arrays]
    if shape := options.pop("shape", None):
        arrays[1] = arrays[1].reshape(shape)
    assert fold(kind, arrays, **options) is None


def test_large_products_stay() -> None:
    """Leave a product of 2^32 multiplications, and one whose result has 4 GB, to the session."""
    column, row = np.zeros((2**15, 4), np.float32), np.zeros((4, 2**15), np.float32)
    assert fold("MatMul", [column, row]) is None
    assert (
        fold("MatMul", [np.zeros((2, 2**16), np.float32), np.zeros((2**16, 64), np.float32)])
        is None
    )


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8])
def test_split_of_a_constant_is_folded(dtype: type) -> None:
    x = np.arange(24).reshape(2, 12).astype(dtype)
    parts = fold("Split", [x, np.int64([3, 9])], 2, axis=-1)
    assert parts is not None
    assert [part.tolist() for part in parts] == [x[:, :3].tolist(), x[:, 3:].tolist()]
    assert all(part.dtype == dtype for part in parts)
    parts = fold("Split", [x], 5, axis=1, num_outputs=5)
    assert [part.shape for part in parts] == [(2, 3)] * 4 + [(2, 0)]


@pytest.mark.parametrize(
    ("count", "options"),
    [(5, {}), (5, {"num_outputs": 4}), (8, {}), (2, {"split": [3, 9]})],
)
def test_invalid_splits_stay(count: int, options: dict[str, Any]) -> None:
    """Leave parts of unequal sizes that nothing declares, for the runtime to refuse.

    Sizes are an input from opset 13 on, no attribute.
    """
    x = np.arange(24, dtype=np.float32).reshape(2, 12)
    assert fold("Split", [x], count, axis=1, **options) is None


def test_folded_products_are_constants_of_later_nodes() -> None:
    """Fold the first step of a cell: Gemm of a zero state, Split, and an activation."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        cell (float[1, 2] x) => (float[1, 2] y)
        <float[1, 3] h = {0, 0, 0}, int64[2] halves = {2, 2},
         float[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[4] b = {1, -2, 3, -4}> {
          g = Gemm(h, w, b)
          p, q = Split<axis = 1>(g, halves)
          r = Relu(p)
          s = Mul(r, q)
          y = Add(x, s)
        }"""
    made = prepare(onnx.parser.parse_model(text))
    assert [node.op_type for node in made.graph] == ["Add"]
    (constant,) = (value.const_value.numpy() for value in made.graph.initializers.values())
    assert constant.tolist() == [[3, 0]]
