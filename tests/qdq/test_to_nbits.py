# SPDX-License-Identifier: Apache-2.0
"""MatMul and Gemm with constant codes become ONNX Runtime's MatMulNBits."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import anybit
from anybit.onnx.conversion import Conversion

FORM = "matmulnbits"
ORT = "com.microsoft"
RANDOM = np.random.default_rng(7)


def product(
    codes: np.ndarray,
    scale: np.ndarray,
    zeropt: np.ndarray | None = None,
    *,
    dtype: int = TensorProto.INT4,
    kind: str = "MatMul",
    bias: np.ndarray | None = None,
    dequantize: dict[str, Any] | None = None,
    shape: tuple[int | str, ...] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """x -> MatMul or Gemm with a DequantizeLinear of codes -> y."""
    constants = [
        helper.make_tensor("w", dtype, codes.shape, codes.ravel().tolist()),
        numpy_helper.from_array(scale.astype(np.float32), "scale"),
    ]
    inputs = ["w", "scale"]
    if zeropt is not None:
        constants.append(helper.make_tensor("zp", dtype, zeropt.shape, zeropt.ravel().tolist()))
        inputs.append("zp")
    operands = ["x", "weight"]
    if bias is not None:
        constants.append(numpy_helper.from_array(bias, "bias"))
        operands.append("bias")
    k = codes.shape[1] if attributes.get("transB") else codes.shape[0]
    nodes = [
        helper.make_node("DequantizeLinear", inputs, ["weight"], "dq", **(dequantize or {})),
        helper.make_node(kind, operands, ["y"], "product", **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or ("rows", k))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def make_integers(lowest: int, highest: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(lowest, highest + 1, shape)


def make_scales(*shape: int) -> np.ndarray:
    """Powers of two: every sum of products with small integers is exact."""
    return 2.0 ** RANDOM.integers(-3, 3, shape)


def list_kinds(converted: Conversion) -> list[str]:
    return [node.op_type for node in converted.model.graph]


def run_plain(converted: Conversion, x: np.ndarray) -> np.ndarray:
    """Run with ONNX Runtime's default options."""
    file = anybit.onnx.serialize(converted.model)[0]
    (y,) = ort.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    return np.asarray(y)


CASES = {
    "per channel": product(
        make_integers(-8, 7, 40, 6), make_scales(6), make_integers(0, 0, 6), dequantize={"axis": 1}
    ),
    "per tensor": product(make_integers(-7, 7, 300, 5), make_scales()),
    "blocks": product(
        make_integers(-8, 7, 64, 6), make_scales(2, 6), dequantize={"axis": 0, "block_size": 32}
    ),
    "blocks of 48": product(
        make_integers(-8, 7, 96, 3), make_scales(2, 3), dequantize={"axis": 0, "block_size": 48}
    ),
    "short last block": product(
        make_integers(-8, 7, 40, 3), make_scales(3, 3), dequantize={"axis": 0, "block_size": 16}
    ),
    "zero-points per block": product(
        make_integers(0, 15, 48, 5),
        make_scales(3, 5),
        make_integers(0, 15, 3, 5),
        dtype=TensorProto.UINT4,
        dequantize={"axis": 0, "block_size": 16},
    ),
    "4 bits in 8": product(
        make_integers(100, 115, 32, 4),
        make_scales(4),
        make_integers(103, 111, 4),
        dtype=TensorProto.UINT8,
    ),
    "2 bits": product(make_integers(-2, 1, 24, 4), make_scales(4), dtype=TensorProto.INT2),
    "Gemm": product(
        make_integers(-8, 7, 6, 40),
        make_scales(6),
        kind="Gemm",
        bias=np.arange(6, dtype=np.float32),
        dequantize={"axis": 0},
        transB=1,
    ),
    "Gemm without bias": product(
        make_integers(-8, 7, 40, 6), make_scales(6), kind="Gemm", beta=3.0
    ),
    "one element": product(make_integers(-8, 7, 1, 1), make_scales(1)),
    "three axes": product(
        make_integers(-8, 7, 16, 6), make_scales(6), shape=("batch", "tokens", 16)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_to_nbits_values(name: str) -> None:
    """Integers times powers of two have exact sums, in any order."""
    proto = CASES[name]
    converted = anybit.convert(proto, to=FORM)
    assert converted.exact
    assert list_kinds(converted) == ["MatMulNBits"] + ["Add"] * (name == "Gemm")
    (node,) = (node for node in converted.model.graph if node.domain == ORT)
    assert node.attributes["accuracy_level"].value == 1
    sizes = [3 if isinstance(size, str) else size for size in node.inputs[0].shape or ()]
    sizes = [3 if isinstance(size, ir.SymbolicDim) else int(size) for size in sizes]
    x = RANDOM.integers(-9, 10, sizes).astype(np.float32)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(run_plain(converted, x), expected)
    np.testing.assert_array_equal(anybit.load(converted.model).run(x)["y"], expected)


@pytest.mark.parametrize("name", CASES)
def test_to_nbits_back(name: str) -> None:
    proto = CASES[name]
    weight = anybit.convert(proto, to=FORM).model
    back = anybit.convert(weight, to="qonnx")
    assert back.exact
    k = weight.graph.inputs[0].shape[-1]
    x = np.eye(k, dtype=np.float32).reshape(*[1] * (len(weight.graph.inputs[0].shape) - 2), k, k)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(anybit.load(back.model).run(x)["y"], expected)


def test_to_nbits_default_zero_point_is_left_out() -> None:
    (node,) = anybit.convert(CASES["per channel"], to=FORM).model.graph
    assert len(node.inputs) == 3
    assert node.attributes["block_size"].value == 64


KEPT = {
    "its codes lie in -9..7, more than 4 bits; --allow-approximate packs 8 bits": product(
        np.array([[-9, 7]]), make_scales(2), dtype=TensorProto.INT8
    ),
    "it has blocks of 8; those of MatMulNBits are multiples of 16": product(
        make_integers(-8, 7, 32, 2), make_scales(4, 2), dequantize={"axis": 0, "block_size": 8}
    ),
    "its scales vary along K within 32 elements": product(
        make_integers(-8, 7, 32, 2), np.arange(1.0, 33.0), dequantize={"axis": 0}
    ),
    "its alpha is 2.0, not 1.0": product(
        make_integers(-8, 7, 8, 2), make_scales(2), kind="Gemm", alpha=2.0
    ),
    "its beta is 0.5, not 1.0": product(
        make_integers(-8, 7, 8, 2),
        make_scales(2),
        kind="Gemm",
        beta=0.5,
        bias=np.ones(2, np.float32),
    ),
    "its input is transposed (transA)": product(
        make_integers(-8, 7, 8, 2), make_scales(2), kind="Gemm", transA=1, shape=(8, "rows")
    ),
    "its input is not known to have two axes or more": product(
        make_integers(-8, 7, 8, 2), make_scales(2), shape=(8,)
    ),
}


@pytest.mark.parametrize("reason", KEPT)
def test_to_nbits_kept(reason: str) -> None:
    converted = anybit.convert(KEPT[reason], to=FORM)
    (step,) = [step for step in converted.steps if step.node == "product"]
    assert (step.action, step.reason) == ("kept", reason)
    assert "MatMulNBits" not in list_kinds(converted)


def test_to_nbits_eight_bits_round_the_input() -> None:
    proto = product(make_integers(-127, 127, 64, 8), make_scales(8), dtype=TensorProto.INT8)
    converted = anybit.convert(proto, to=FORM, allow_approximate=True)
    assert not converted.exact
    (node,) = converted.model.graph
    assert node.attributes["accuracy_level"].value == 4
    assert node.attributes["bits"].value == 8
    x = RANDOM.normal(size=(4, 64)).astype(np.float32)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    # An input is rounded by half of 1 / 127 of the largest in its block.
    largest = np.abs(x).max() / 254 * np.abs(run_weights(proto)).sum(0).max()
    assert np.abs(run_plain(converted, x) - expected).max() <= largest


def run_weights(proto: onnx.ModelProto) -> np.ndarray:
    (weights,) = ReferenceEvaluator(proto).run(None, {"x": np.eye(64, dtype=np.float32)})
    return np.asarray(weights)


def test_to_nbits_shared_weight_stays_for_others() -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(CASES["per channel"])
    proto.graph.output.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, None))
    converted = anybit.convert(proto, to=FORM)
    assert {"MatMulNBits", "DequantizeLinear"} <= set(list_kinds(converted))


def test_to_nbits_of_quantized_models() -> None:
    weights = [RANDOM.normal(size=size).astype(np.float32) for size in ((48, 64), (64, 16))]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w1"], ["y"]),
        ],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 16])],
        [numpy_helper.from_array(weight, f"w{index}") for index, weight in enumerate(weights)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    for weights_spec in ("int4 per-block 32", "int3", "ternary"):
        quantized = anybit.quantize(proto, weights=weights_spec, activations="float")
        converted = anybit.convert(quantized.model, to=FORM)
        assert list_kinds(converted) == ["MatMulNBits", "Relu", "MatMulNBits"]
        assert "tried with ONNX Runtime" in converted.remarks[-1]
        back = anybit.convert(converted.model, to="qonnx").model
        x = RANDOM.normal(size=(5, 48)).astype(np.float32)
        expected = anybit.load(quantized.model).run(x)["y"]
        np.testing.assert_array_equal(anybit.load(back).run(x)["y"], expected)


@pytest.mark.parametrize(("highest", "words"), [(1, "codes of 2 bits are stored in 4"), (7, "")])
@pytest.mark.parametrize("allowed", [False, True])
def test_to_nbits_reports_codes_that_need_fewer_bits(
    allowed: bool, highest: int, words: str
) -> None:
    """Name what ONNX Runtime lacks: its kernels for 2 bits are slower than those for 4."""
    codes = RANDOM.integers(-highest - 1, highest + 1, (64, 8))
    codes[0, :2] = -highest - 1, highest
    converted = anybit.convert(product(codes, np.ones(())), to=FORM, allow_approximate=allowed)
    (step,) = (step for step in converted.steps if step.action.startswith("MatMulNBits"))
    assert step.action == "MatMulNBits, 4 bits"
    assert step.exact != allowed
    assert ("are stored in" in step.reason) == bool(words)
    assert words in step.reason
