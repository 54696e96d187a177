# SPDX-License-Identifier: Apache-2.0
"""Constants that several layers multiply: one scheme, one rounding, one copy in the file."""

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
# How many constants of each network are quantized; those that are read in two ways count twice.
COPIES = {"blocks": 3, "tied": 2, "convolutions": 2}


def quantizers(model: ir.Model) -> list[ir.Node]:
    """Those of weights."""
    found = [node for node in model.graph if node.op_type in ("Quant", "IntQuant", "FloatQuant")]
    return [node for node in found if node.inputs[0].is_initializer() and node.inputs[0].shape]


def of_matrices(model: ir.Model) -> list[ir.Node]:
    return [node for node in quantizers(model) if len(node.inputs[0].shape) > 1]


@pytest.mark.parametrize("words", ["int8", "int3 per-tensor", "mxfp4"])
@pytest.mark.parametrize("name", DATA)
def test_each_constant_is_in_the_file_once(name: str, words: str) -> None:
    make, data = DATA[name]
    found = anybit.quantize(make(), data(), weights=words)
    nodes = of_matrices(found.model)
    assert len(nodes) == COPIES[name]
    stored = {node.inputs[0] for node in nodes}
    assert len(stored) <= COPIES[name]
    assert found.verdict is not None
    assert found.verdict.sqnr > {"int8": 20, "mxfp4": 8}.get(words, 0)


def test_the_widest_words_win() -> None:
    make, data = DATA["blocks"]
    found = anybit.quantize(make(), data(), weights="int4", layers={"up1": "int6", "head": "int3"})
    widths = {each.name: each.weight_bits for each in found.layers}
    assert widths == {
        **{f"up{at}": 6 for at in range(3)},
        **{f"down{at}": 4 for at in range(3)},
        "head": 3,
    }
    (remark,) = [each for each in found.remarks if each.startswith("w gets int6")]
    assert "up0 asks for int4, up1 asks for int6" in remark
    assert len(of_matrices(found.model)) == COPIES["blocks"]


def test_a_layer_that_is_kept_reads_the_floats() -> None:
    make, data = DATA["blocks"]
    found = anybit.quantize(make(), data(), weights="int8", keep="up1")
    (node,) = [each for each in found.model.graph if each.name == "up1"]
    assert node.inputs[1].name == "w"
    assert len(of_matrices(found.model)) == COPIES["blocks"]
    whole = anybit.quantize(make(), data(), weights="int8")
    assert found.bytes_after == whole.bytes_after + 24 * 40 * 4


def in_file(found: anybit.QuantizationResult, before: onnx.ModelProto) -> int:
    """What codes, the scales of blocks, and what stays float take in QuantizeLinear's form."""
    graph = anybit.convert(found, to="qdq").model.graph
    named = {each.name for each in before.graph.initializer}
    stored = {each for each in graph.initializers if each.removesuffix("_corrected") in named}
    for each in graph:
        if each.op_type == "DequantizeLinear" and each.inputs[0].is_initializer():
            stored.add(each.inputs[0].name)
            if "block_size" in each.attributes:
                stored.add(each.inputs[1].name)
    return sum(graph.initializers[name].const_value.nbytes for name in stored)


@pytest.mark.parametrize("words", ["int4", "int8 per-tensor", "int2 per-block 3"])
@pytest.mark.parametrize("name", DATA)
def test_sizes_are_those_of_the_file(name: str, words: str) -> None:
    make, data = DATA[name]
    found = anybit.quantize(make(), data(), weights=words)
    assert found.bytes_after == in_file(found, make())


def in_bits(found: anybit.QuantizationResult, before: onnx.ModelProto) -> int:
    """What all constants take, each once, those behind quantizers in as many bits as these say."""
    graph = found.model.graph
    named = {each.name for each in before.graph.initializer}
    stored = [each for each in graph.initializers if each.removesuffix("_corrected") in named]
    sizes = {name: graph.initializers[name].const_value.nbytes for name in stored}
    quantized = of_matrices(found.model)
    for each in quantized:
        bits, value = int(each.inputs[3].const_value.numpy()), each.inputs[0]
        if not value.uses()[1:] or all(user.node in quantized for user in value.uses()):
            sizes.pop(value.name, None)
        sizes[each.name] = -(-value.const_value.size * bits // 8)
    return sum(sizes.values())


@pytest.mark.parametrize("name", DATA)
def test_byte_budgets_hold_in_the_file(name: str) -> None:
    make, data = DATA[name]
    narrow, wide = (
        anybit.quantize(make(), weights=each, activations=None).bytes_after
        for each in ("int4", "int8")
    )
    found = anybit.quantize(make(), data(), budget=f"{(narrow + wide) // 2}B")
    assert in_bits(found, make()) == found.bytes_after <= (narrow + wide) // 2
    assert len(of_matrices(found.model)) == COPIES[name]
    assert max(each.weight_bits for each in found.layers) > 4


def test_decibels_are_reached_with_one_width_per_constant() -> None:
    make, data = DATA["blocks"]
    found = anybit.quantize(make(), data(), budget="30dB")
    assert found.verdict is not None
    assert found.verdict.sqnr >= 30
    widths = {each.name: each.weight_bits for each in found.layers}
    assert len({widths[f"up{at}"] for at in range(3)}) == 1
    assert len({widths[f"down{at}"] for at in range(3)}) == 1
    (chosen,) = [each for each in found.front if each.chosen]
    assert chosen.bytes == found.bytes_after


def test_moments_of_all_readers_are_added() -> None:
    """GPTQ for one reader alone is worse for the sum of the errors of all."""
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
    together = anybit.quantize(proto, data, weights="int3", activations=None)
    nearest = anybit.quantize(proto, weights="int3", activations=None)
    errors = {}
    for said, found in (("together", together), ("nearest", nearest)):
        y, wanted = anybit.load(found.model).run(data), anybit.load(proto).run(data)
        errors[said] = [np.square(y[each] - wanted[each]).sum() for each in "ab"]
    assert sum(errors["together"]) < sum(errors["nearest"]) / 3
    assert all(
        mine < plain for mine, plain in zip(errors["together"], errors["nearest"], strict=True)
    )


def test_channels_are_scaled_for_readers_of_one_tensor_only() -> None:
    sizes = np.float32([1, 300, 1, 1, 1, 1, 1, 1])
    w = random(8, 8, seed=1) / sizes[:, None]
    data = {"x": random(64, 8) * sizes, "z": random(64, 8, seed=2) * sizes}
    for inputs, smoothed in (("xx", True), ("xz", False)):
        nodes = [
            node("MatMul", f"{inputs[0]} w", "a", domain="", name="one"),
            node("MatMul", f"{inputs[1]} w", "b", domain="", name="other"),
        ]
        given = {name: ["rows", 8] for name in sorted(set(inputs))}
        proto = model(nodes, {"w": w}, inputs=given, outputs=("a", "b"), opsets={"": 17})
        found = anybit.quantize(proto, {name: data[name] for name in given}, weights="int8")
        assert [each.smoothed for each in found.layers] == [smoothed, smoothed]
        assert len(of_matrices(found.model)) == 1
