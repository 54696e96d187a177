# SPDX-License-Identifier: Apache-2.0
"""Gemm as MatMul and Add: the same bits, and quantized weights stay quantized."""

from typing import Any

import numpy as np
import onnx
import pytest
from pass_checks import apply_passes, assert_same_outputs, random
from small_models import kinds, model, node

from anybit.onnx.passes import GemmToMatMul


def product(inputs: str = "x w c", **options: Any) -> onnx.ModelProto:
    transposed = options.get("transA"), options.get("transB")
    constants = {
        "w": random(3, 4) if transposed[1] else random(4, 3),
        "c": random(3, seed=1),
        "d": random(2, 1, seed=2),
    }
    shape = [4, 2] if transposed[0] else [2, 4]
    used = {name: array for name, array in constants.items() if name in inputs.split()}
    nodes = [node("Gemm", inputs, domain="", name="g", **options)]
    return model(nodes, used, inputs={"x": shape})


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (product(), ["MatMul", "Add"]),
        (product("x w"), ["MatMul"]),
        (product("x w d"), ["MatMul", "Add"]),
        (product(transB=1), ["MatMul", "Add"]),
        (product(transA=1), ["Transpose", "MatMul", "Add"]),
        (product(alpha=0.5), ["MatMul", "Mul", "Add"]),
        (product(beta=-2.0), ["MatMul", "Mul", "Add"]),
        (product(alpha=0.3), ["Gemm"]),
        (product(beta=0.0), ["Gemm"]),
    ],
)
def test_gemm_to_matmul_results_keep_their_bits(
    proto: onnx.ModelProto, expected: list[str]
) -> None:
    changed = apply_passes(proto, GemmToMatMul())
    assert kinds(changed) == expected
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    assert_same_outputs(proto, changed, random(*shape, seed=3))


def test_gemm_to_matmul_quantized_weight_is_transposed_with_its_quantizer() -> None:
    nodes = [
        node("IntQuant", "w s z b", "q", name="q"),
        node("Gemm", "x q", domain="", name="g", transB=1),
    ]
    scale = np.float32([[0.5], [0.25], [0.125]])
    proto = model(nodes, {"w": random(3, 4), "s": scale, "z": 0, "b": 4}, inputs={"x": [2, 4]})
    changed = apply_passes(proto, GemmToMatMul())
    assert kinds(changed) == ["IntQuant", "MatMul"]
    constants = changed.graph.initializers
    assert set(constants) == {"w", "s", "z", "b"}
    assert list(constants["w"].shape) == [4, 3]
    assert list(constants["s"].shape) == [1, 3]
    assert [item.name for item in changed.graph] == ["q", "g"]
    assert_same_outputs(proto, changed, random(2, 4, seed=3))


def test_gemm_to_matmul_weight_with_other_readers_stays() -> None:
    nodes = [
        node("Gemm", "x w", domain="", name="g", transB=1),
        node("Neg", "w", "z", domain="", name="n"),
    ]
    proto = model(nodes, {"w": random(3, 4)}, inputs={"x": [2, 4]}, outputs=["y", "z"])
    assert_same_outputs(proto, apply_passes(proto, GemmToMatMul()), random(2, 4, seed=3))


def test_gemm_to_matmul_exact_sums_of_any_length() -> None:
    """Use integers times a power of two: the order of the sum does not matter."""
    weight = np.rint(random(1000, 5) * 8)
    nodes = [node("Gemm", "x w c", domain="", name="g")]
    constants = {"w": weight, "c": np.rint(random(5) * 4)}
    proto = model(nodes, constants, inputs={"x": [3, 1000]})
    assert_same_outputs(
        proto, apply_passes(proto, GemmToMatMul()), np.rint(random(3, 1000, seed=2) * 8)
    )
