# SPDX-License-Identifier: Apache-2.0
"""Sums of products: accumulators, bits, and whether float32 computes them exactly."""

from typing import Any

import numpy as np
import onnx
import pytest
from analysis_checks import analyze_and_compare
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_models import plain, qdq, tensor
from small_models import model, node

from anybit.onnx.analysis.products import ProductAnalysis, count_bits


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 2


def built(
    kind: str,
    x: tuple[int, ...],
    weight: np.ndarray,
    *,
    scale: Any = 0.5,
    weight_scale: Any = 0.25,
    zeropt: Any = 0,
    bias: np.ndarray | None = None,
    swapped: bool = False,
    **options: Any,
) -> onnx.ModelProto:
    """x with 4 bits, times a weight of 3."""
    constants = {
        "w": weight,
        "xs": scale,
        "ws": weight_scale,
        "z": zeropt,
        "zero": 0,
        "four": 4,
        "three": 3,
    }
    inputs = "wq q" if swapped else "q wq"
    if bias is not None:
        constants["b"] = bias
        inputs += " b"
    nodes = [
        node("Quant", "x xs z four", "q", name="q"),
        node("Quant", "w ws zero three", "wq", name="wq"),
        node(kind, inputs, domain="", **options),
    ]
    return model(nodes, constants, inputs={"x": x})


def one(proto: onnx.ModelProto, *, fold: bool = False, seed: int = 0) -> ProductAnalysis:
    shape = [size.dim_value for size in proto.graph.input[0].type.tensor_type.shape.dim]
    x = values(*shape, seed=seed) * 4
    (actual,) = analyze_and_compare(proto, {"x": x}, fold=fold).products
    return actual


KINDS = {
    "Conv": ("Conv", (2, 4, 5, 5), (3, 4, 3, 3), {}),
    "Conv with pads": ("Conv", (2, 4, 5, 5), (3, 4, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    "Conv, same": ("Conv", (1, 4, 5, 5), (3, 4, 3, 3), {"auto_pad": "SAME_UPPER"}),
    "Conv of groups": ("Conv", (1, 4, 5, 5), (6, 2, 3, 3), {"group": 2}),
    "depthwise Conv": ("Conv", (1, 4, 5, 5), (4, 1, 3, 3), {"group": 4, "dilations": [2, 2]}),
    "Conv in one dimension": ("Conv", (1, 4, 9), (3, 4, 3), {"pads": [2, 0]}),
    "ConvTranspose": ("ConvTranspose", (1, 4, 5, 5), (4, 3, 3, 3), {"strides": [2, 2]}),
    "ConvTranspose of groups": ("ConvTranspose", (1, 4, 5, 5), (4, 3, 3, 3), {"group": 2}),
    "Gemm": ("Gemm", (2, 4), (4, 3), {}),
    "Gemm, transposed weight": ("Gemm", (2, 4), (3, 4), {"transB": 1}),
    "Gemm, transposed x": ("Gemm", (4, 2), (4, 3), {"transA": 1}),
    "MatMul": ("MatMul", (2, 4), (4, 3), {}),
    "MatMul of a vector": ("MatMul", (2, 4), (4,), {}),
    "MatMul of many": ("MatMul", (2, 3, 4), (2, 4, 3), {}),
    "MatMul, weight first": ("MatMul", (4, 2), (3, 4), {"swapped": True}),
    "MatMul, weight first, vector": ("MatMul", (4,), (3, 4), {"swapped": True}),
}


@pytest.mark.parametrize("fold", [False, True], ids=["quantized", "folded"])
@pytest.mark.parametrize("name", KINDS)
def test_product_analysis_exact(name: str, fold: bool) -> None:
    kind, x, weight, options = KINDS[name]
    actual = one(built(kind, x, values(*weight, seed=1), **options), fold=fold)
    assert actual.exact
    assert actual.reason == ""
    assert actual.accumulator is not None
    assert actual.accumulator.bits <= actual.accumulator.any_bits
    assert actual.codes is not None
    assert actual.codes.shape == weight
    assert actual.x_bits == 4
    assert fold or actual.weight_bits == 3
    assert actual.macs


@pytest.mark.parametrize("name", KINDS)
def test_product_analysis_any_scales_and_biases(name: str) -> None:
    """Whatever the scales and zero-points, per tensor or channel: sums stay in their bounds."""
    kind, x, weight, options = KINDS[name]
    scales = st.sampled_from([0.1, 1 / 3, 0.75, 0.5, 2.0**-20, 1.0, -0.5])
    axis = {"Conv": 0, "ConvTranspose": 1}.get(kind, len(weight) - 1)
    if options.get("transB") or options.get("swapped"):
        axis = 0
    shape = [weight[axis] if index == axis else 1 for index in range(len(weight))]
    several = st.lists(scales, min_size=weight[axis], max_size=weight[axis])
    per_channel = several.map(lambda item: np.float32(item).reshape(shape))
    x_axis = len(x) - 1 if "Conv" not in kind else 1
    x_shape = [x[x_axis] if index == x_axis else 1 for index in range(len(x))]
    x_several = st.lists(scales, min_size=x[x_axis], max_size=x[x_axis])
    per_x = x_several.map(lambda item: np.float32(item).reshape(x_shape))
    channels = weight[axis] * (options.get("group", 1) if kind == "ConvTranspose" else 1)
    biases = st.none() if kind == "MatMul" else st.none() | st.sampled_from([0.3, 0.125, 1e-3])

    @settings(max_examples=12, deadline=None)
    @given(
        scales | per_x, scales | per_channel, st.sampled_from([0, 3, 0.5]), biases, st.booleans()
    )
    def check(scale: Any, weight_scale: Any, zeropt: Any, bias: Any, fold: bool) -> None:
        proto = built(
            kind,
            x,
            values(*weight, seed=2),
            scale=scale,
            weight_scale=weight_scale,
            zeropt=zeropt,
            bias=None if bias is None else bias * np.arange(channels, dtype=np.float32),
            **options,
        )
        one(proto, fold=fold, seed=3)

    check()


def test_product_analysis_accumulators_by_hand() -> None:
    """x is -8 .. 7 steps of 0.5; the weight's codes are 1, -2 and 0, 3."""
    weight = np.float32([[0.25, 0], [-0.5, 0.75]])
    actual = one(built("MatMul", (1, 2), weight))
    assert actual.codes.tolist() == [[1, 0], [-2, 3]]
    assert actual.accumulator.lowest.tolist() == [-8 - 14, -24]
    assert actual.accumulator.highest.tolist() == [7 + 16, 21]
    assert actual.accumulator.bits == 6
    assert (actual.accumulator.any_lowest, actual.accumulator.any_highest) == (-56, 64)
    assert actual.accumulator.any_bits == 8
    assert (actual.macs, actual.x_bits, actual.weight_bits) == (4, 4, 3)
    assert actual.sparsity == 0.25


def test_product_analysis_bits() -> None:
    assert [count_bits(0, 0), count_bits(0, 1), count_bits(0, 255), count_bits(-1, 0)] == [
        1,
        1,
        8,
        1,
    ]
    assert [count_bits(-128, 127), count_bits(-128, 128), count_bits(-129, 0)] == [8, 9, 9]


REASONS = {
    "a step of 0.1 is not a power of two": {"scale": 0.1},
    "the bias 0.1 is not a multiple": {"bias": np.float32([0.1, 0, 0])},
    "more than the 2^24": {"scale": 0.5, "weight_scale": np.float32([[1e-6, 1, 1]])},
}


@pytest.mark.parametrize("reason", REASONS)
def test_product_analysis_reasons(reason: str) -> None:
    options = REASONS[reason]
    if reason.startswith("more"):
        options = {"weight_scale": 2.0**-3}
        proto = built("Gemm", (1, 4), values(4, 3), **options)
        proto.graph.initializer[[t.name for t in proto.graph.initializer].index("four")].CopyFrom(
            onnx.numpy_helper.from_array(np.float32(24), "four")
        )
    else:
        proto = built("Gemm", (1, 4), values(4, 3), **options)
    assert reason in one(proto).reason


def test_product_analysis_unknown_values() -> None:
    nodes = [node("MatMul", "x w", domain="")]
    floats = one(model(nodes, {"w": values(4, 3)}))
    assert not floats.exact
    assert floats.reason == "nothing is known of its input"
    both = model([node("MatMul", "x x", domain="")], inputs={"x": [2, 2]})
    assert one(both).reason == "the weight is computed when the model runs"
    scaled = one(built("Gemm", (1, 4), values(4, 3), alpha=2.0))
    assert scaled.reason == "Gemm with alpha=2.0: only 1 is supported"


def test_product_analysis_stored_codes() -> None:
    """Analyze a DequantizeLinear of stored codes after a pair."""
    codes = np.random.default_rng(0).integers(-128, 128, (4, 3))
    tensors = [
        tensor("s", 0.5),
        tensor("z", 7, onnx.TensorProto.UINT8),
        tensor("w", codes, onnx.TensorProto.INT8),
        tensor("ws", [0.5, 1, 2]),
    ]
    nodes = [
        plain("QuantizeLinear", "x s z", "c"),
        plain("DequantizeLinear", "c s z", "q"),
        plain("DequantizeLinear", "w ws", "wq", axis=1),
        plain("MatMul", "q wq"),
    ]
    actual = one(qdq(nodes, tensors, shape=(2, 4), output=(2, 3)))
    assert actual.exact
    assert np.array_equal(actual.codes, codes)
    assert (actual.x_bits, actual.weight_bits) == (8, 8)
    assert actual.x.codes.hull == range(256)


def test_product_analysis_zeros_times_unbounded_values() -> None:
    """0 times infinity is NaN: the result has no bound."""
    names = "exponent mantissa bias largest"
    constants = dict(zip(names.split(), (5, 2, 15, 57344), strict=True)) | {"s": 0.3}
    nodes = [
        node("FloatQuant", f"x s {names}", "q", name="q"),
        node("MatMul", "q w", domain=""),
    ]
    actual = one(model(nodes, constants | {"w": np.zeros((4, 1), np.float32)}))
    assert not actual.exact
    assert np.isinf(actual.error).all()
