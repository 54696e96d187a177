# SPDX-License-Identifier: Apache-2.0
"""Weights that several layers share: one spec, one rounding, one copy in the file."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from pass_checks import random
from shared_models import blocks, convolutions, tied
from small_models import model, node

import anybit

Array = np.ndarray

DATA = {
    "blocks": (blocks, lambda: random(96, 24, seed=7)),
    "tied": (tied, lambda: np.random.default_rng(3).integers(0, 32, 96)),
    "convolutions": (convolutions, lambda: random(48, 6, 8, 8, seed=7)),
}
# Number of quantized weights of each network; those with two layouts count twice.
COPIES = {"blocks": 3, "tied": 2, "convolutions": 2}


def find_weight_quantizers(model: ir.Model) -> list[ir.Node]:
    """Return the quantizer nodes of weights."""
    nodes = [node for node in model.graph if node.op_type in ("Quant", "IntQuant", "FloatQuant")]
    return [node for node in nodes if node.inputs[0].is_initializer() and node.inputs[0].shape]


def find_matrix_quantizers(model: ir.Model) -> list[ir.Node]:
    return [node for node in find_weight_quantizers(model) if len(node.inputs[0].shape) > 1]


@pytest.mark.parametrize("spec", ["int8", "int3 per-tensor", "mxfp4"])
@pytest.mark.parametrize("name", DATA)
def test_quantize_stores_shared_weights_once(name: str, spec: str) -> None:
    make, data = DATA[name]
    result = anybit.quantize(make(), data(), weights=spec)
    nodes = find_matrix_quantizers(result.model)
    assert len(nodes) == COPIES[name]
    stored = {node.inputs[0] for node in nodes}
    assert len(stored) <= COPIES[name]
    assert result.verdict is not None
    assert result.verdict.sqnr > {"int8": 20, "mxfp4": 8}.get(spec, 0)


def test_quantize_gives_shared_weights_the_widest_spec() -> None:
    make, data = DATA["blocks"]
    result = anybit.quantize(make(), data(), weights="int4", layers={"up1": "int6", "head": "int3"})
    widths = {layer.name: layer.weight_bits for layer in result.layers}
    assert widths == {
        **{f"up{at}": 6 for at in range(3)},
        **{f"down{at}": 4 for at in range(3)},
        "head": 3,
    }
    (remark,) = [remark for remark in result.remarks if remark.startswith("w gets int6")]
    assert "up0 asks for int4, up1 asks for int6" in remark
    assert len(find_matrix_quantizers(result.model)) == COPIES["blocks"]


def test_quantize_keeps_float_weights_for_a_skipped_layer() -> None:
    make, data = DATA["blocks"]
    result = anybit.quantize(make(), data(), weights="int8", keep="up1")
    (kept,) = [op for op in result.model.graph if op.name == "up1"]
    assert kept.inputs[1].name == "w"
    assert len(find_matrix_quantizers(result.model)) == COPIES["blocks"]
    whole = anybit.quantize(make(), data(), weights="int8")
    assert result.bytes_after == whole.bytes_after + 24 * 40 * 4


def count_qdq_bytes(result: anybit.QuantizationResult, original: onnx.ModelProto) -> int:
    """Return the bytes of codes, block scales and float constants in QDQ form."""
    graph = anybit.convert(result, to="qdq").model.graph
    originals = {tensor.name for tensor in original.graph.initializer}
    stored = {name for name in graph.initializers if name.removesuffix("_corrected") in originals}
    for op in graph:
        if op.op_type == "DequantizeLinear" and op.inputs[0].is_initializer():
            stored.add(op.inputs[0].name)
            if "block_size" in op.attributes:
                stored.add(op.inputs[1].name)
    return sum(graph.initializers[name].const_value.nbytes for name in stored)


@pytest.mark.parametrize("spec", ["int4", "int8 per-tensor", "int2 per-block 3"])
@pytest.mark.parametrize("name", DATA)
def test_result_bytes_of_shared_weights_match_the_qdq_model(name: str, spec: str) -> None:
    make, data = DATA[name]
    result = anybit.quantize(make(), data(), weights=spec)
    assert result.bytes_after == count_qdq_bytes(result, make())


def count_packed_bytes(result: anybit.QuantizationResult, original: onnx.ModelProto) -> int:
    """Return the bytes of all constants, quantized ones at their bit width."""
    graph = result.model.graph
    originals = {tensor.name for tensor in original.graph.initializer}
    stored = [name for name in graph.initializers if name.removesuffix("_corrected") in originals]
    sizes = {name: graph.initializers[name].const_value.nbytes for name in stored}
    quantized = find_matrix_quantizers(result.model)
    for quantizer in quantized:
        bits, value = int(quantizer.inputs[3].const_value.numpy()), quantizer.inputs[0]
        if not value.uses()[1:] or all(user.node in quantized for user in value.uses()):
            sizes.pop(value.name, None)
        sizes[quantizer.name] = -(-value.const_value.size * bits // 8)
    return sum(sizes.values())


@pytest.mark.parametrize("name", DATA)
def test_byte_budget_counts_shared_weights_once(name: str) -> None:
    make, data = DATA[name]
    narrow, wide = (
        anybit.quantize(make(), weights=weights, activations="float").bytes_after
        for weights in ("int4", "int8")
    )
    result = anybit.quantize(make(), data(), budget=f"{(narrow + wide) // 2}B")
    assert count_packed_bytes(result, make()) == result.bytes_after <= (narrow + wide) // 2
    assert len(find_matrix_quantizers(result.model)) == COPIES[name]
    assert max(layer.weight_bits for layer in result.layers) > 4


def test_sqnr_budget_gives_shared_weights_one_width() -> None:
    make, data = DATA["blocks"]
    result = anybit.quantize(make(), data(), budget="30dB")
    assert result.verdict is not None
    assert result.verdict.sqnr >= 30
    widths = {layer.name: layer.weight_bits for layer in result.layers}
    assert len({widths[f"up{at}"] for at in range(3)}) == 1
    assert len({widths[f"down{at}"] for at in range(3)}) == 1
    (chosen,) = [mix for mix in result.front if mix.chosen]
    assert chosen.bytes == result.bytes_after


def test_gptq_adds_the_moments_of_all_readers() -> None:
    """Compare the errors of all readers with those of rounding to nearest."""
    size, wide = 16, 12
    nodes = [
        node("MatMul", "x w", "a", domain="", name="one"),
        node("MatMul", "z w", "b", domain="", name="other"),
    ]
    proto = model(
        nodes,
        {"w": random(size, wide, seed=1)},
        inputs={"x": ["rows", size], "z": ["rows", size]},
        outputs=("a", "b"),
        opsets={"": 17},
    )
    data = {
        name: random(256, 3, seed=at) @ random(3, size, seed=at + 1) + random(256, size) / 5
        for at, name in ((3, "x"), (6, "z"))
    }
    together = anybit.quantize(proto, data, weights="int3", activations="float")
    nearest = anybit.quantize(proto, weights="int3", activations="float")
    errors = {}
    for label, result in (("together", together), ("nearest", nearest)):
        y, expected = anybit.load(result.model).run(data), anybit.load(proto).run(data)
        errors[label] = [np.square(y[output] - expected[output]).sum() for output in "ab"]
    assert sum(errors["together"]) < sum(errors["nearest"]) / 3
    assert all(
        gptq < plain for gptq, plain in zip(errors["together"], errors["nearest"], strict=True)
    )


def test_smoothquant_needs_one_input_for_shared_weights() -> None:
    sizes = np.float32([1, 300, 1, 1, 1, 1, 1, 1])
    w = random(8, 8, seed=1) / sizes[:, None]
    data = {"x": random(64, 8) * sizes, "z": random(64, 8, seed=2) * sizes}
    for inputs, smoothed in (("xx", True), ("xz", False)):
        nodes = [
            node("MatMul", f"{inputs[0]} w", "a", domain="", name="one"),
            node("MatMul", f"{inputs[1]} w", "b", domain="", name="other"),
        ]
        shapes = {name: ["rows", 8] for name in sorted(set(inputs))}
        proto = model(nodes, {"w": w}, inputs=shapes, outputs=("a", "b"), opsets={"": 17})
        result = anybit.quantize(proto, {name: data[name] for name in shapes}, weights="int8")
        assert [layer.smoothed for layer in result.layers] == [smoothed, smoothed]
        assert len(find_matrix_quantizers(result.model)) == 1
