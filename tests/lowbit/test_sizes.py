# SPDX-License-Identifier: Apache-2.0
"""Compiled files take little more than the bits of their weights."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import anybit
from anybit.lowbit import planning

CHANNELS, PIXELS, LAYERS = 64, 6, 4


def network(kernel: int, activation: str) -> onnx.ModelProto:
    """A chain of convolutions with 8-bit codes between them."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for layer in range(LAYERS):
        shape = (CHANNELS, CHANNELS, kernel, kernel)
        scale = np.float32(1 / np.sqrt(CHANNELS * kernel * kernel))
        values = random.standard_normal(shape, dtype=np.float32) * scale
        bias = random.standard_normal(CHANNELS, dtype=np.float32) * np.float32(0.1)
        weights += [
            numpy_helper.from_array(values, f"w{layer}"),
            numpy_helper.from_array(bias, f"b{layer}"),
        ]
        pads = [kernel // 2] * 4
        inputs = [last, f"w{layer}", f"b{layer}"]
        nodes.append(helper.make_node("Conv", inputs, [f"sum{layer}"], pads=pads))
        source = f"sum{layer}"
        if activation == "hard swish":
            nodes.append(helper.make_node("HardSigmoid", [source], [f"gate{layer}"], alpha=1 / 6))
            nodes.append(helper.make_node("Mul", [source, f"gate{layer}"], [f"y{layer}"]))
        else:
            nodes.append(helper.make_node("Relu", [source], [f"y{layer}"]))
        last = f"y{layer}"
    declared = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", CHANNELS, PIXELS, PIXELS])
        for name in ("x", last)
    ]
    graph = helper.make_graph(nodes, "network", declared[:1], declared[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("activation", ["relu", "hard swish"])
def test_compiled_files_take_a_tenth_more_than_weights_and_keep_codes(
    kernel: int, activation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(kernel, activation)
    shape = (8, CHANNELS, PIXELS, PIXELS)
    data = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    quantized = anybit.quantize(model, data, effort="fast", integer_only=True)
    compiled = anybit.compile(quantized)
    assert compiled.report.share == 1
    compiled.save(tmp_path / "compiled.onnx")
    of_weights = LAYERS * CHANNELS * CHANNELS * kernel * kernel
    of_graph = 2**14  # names, shapes, a few numbers per channel
    assert (tmp_path / "compiled.onnx").stat().st_size <= 1.1 * of_weights + of_graph

    monkeypatch.setattr(planning, "_MANY_LEVELS", 256)
    thresholds = anybit.compile(quantized)
    tails = [[layer.tail for layer in each.report.layers] for each in (compiled, thresholds)]
    assert "Thresholds" not in tails[0]
    assert "Thresholds" in tails[1]
    (mine,), (its,) = (each.run(data).values() for each in (compiled, thresholds))
    assert mine.tobytes() == its.tobytes()
