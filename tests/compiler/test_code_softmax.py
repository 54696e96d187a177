# SPDX-License-Identifier: Apache-2.0
"""Compiled QLinearSoftmax, next to ONNX Runtime's table of exponentials."""

from typing import Any

import numpy as np
import pytest
from code_networks import RUNTIME, CodeNetwork, make_feeds, run_plain

import anybit
from anybit.quant_types.layer_info import Guarantee

TOKENS = 7


def make_attention(
    seed: int, dtype: Any, scale: float, offset: int = 0, axis: int = -1
) -> tuple[CodeNetwork, str]:
    """Return products of queries, keys and values of codes, with a Softmax between them.

    Args:
        seed: A seed of the scales.
        dtype: The type of the codes.
        scale: The scale of the Softmax.
        offset: Its zero-point, from the least code on.
        axis: The axis of the Softmax.
    """
    network = CodeNetwork(seed, dtype)
    first, second, third = (
        network.input("n", 2, *sizes) for sizes in ((TOKENS, 4), (4, TOKENS), (TOKENS, 4))
    )
    scores = multiply(network, first, second, network.scale(0.05, 0.3))
    weights = f"QLinearSoftmax_{len(network.nodes)}"
    zeropt = np.iinfo(dtype).min + offset
    inputs = [*network.triple(scores), *network.add_parameters(weights, scale, zeropt)]
    network.node("QLinearSoftmax", inputs, RUNTIME, axis=axis, opset=17)
    return network, multiply(network, weights, third, 0.02)


def multiply(network: CodeNetwork, first: str, second: str, scale: Any) -> str:
    y = f"QLinearMatMul_{len(network.nodes)}"
    inputs = [*network.triple(first), *network.triple(second), *network.add_parameters(y, scale)]
    return network.node("QLinearMatMul", inputs)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("scale", [1 / 255, 1 / 256, 0.0037, 0.01])
@pytest.mark.parametrize("offset", [0, 20])
def test_softmax_has_the_codes_of_the_runtime(dtype: Any, scale: float, offset: int) -> None:
    """Multiply by floor(1 / scale), as the runtime does, which is another number than 1 / scale."""
    network, y = make_attention(offset, dtype, scale, offset)
    model = network.model(y, next(node.output[0] for node in network.nodes[1:2]))
    compiled = anybit.compile(model)
    assert len(compiled.report.programs) == 1
    layers = {layer.layer.operator: layer.guarantee for layer in compiled.report.layers}
    assert layers["QLinearSoftmax"] is Guarantee.BOUNDED
    for seed in range(3):
        feeds = make_feeds(model, seed)
        for name, expected in zip(compiled.run(feeds), run_plain(model, feeds), strict=True):
            actual = compiled.run(feeds)[name]
            assert np.abs(actual.astype(int) - expected).max() <= 1
            assert np.mean(actual != expected) < 0.002
            assert np.ptp(expected.astype(int)) > 5


def test_exact_guarantee_keeps_softmax() -> None:
    network, y = make_attention(3, np.uint8, 1 / 256)
    model = network.model(y)
    compiled = anybit.compile(model, guarantee="exact")
    assert "QLinearSoftmax" in [node.op_type for node in compiled.model.graph]
    feeds = make_feeds(model, 0)
    (actual,), (expected,) = compiled.run(feeds).values(), run_plain(model, feeds)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("scale", "axis"), [(1e-4, -1), (2.0, -1), (1 / 256, 2)])
def test_unusual_softmax_stays(scale: float, axis: int) -> None:
    """Leave scales beyond those of calibration, and other axes, to the runtime."""
    network, y = make_attention(4, np.uint8, scale, axis=axis)
    model = network.model(y)
    compiled = anybit.compile(model)
    assert "QLinearSoftmax" in [node.op_type for node in compiled.model.graph]
    feeds = make_feeds(model, 0)
    (actual,), (expected,) = compiled.run(feeds).values(), run_plain(model, feeds)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("scale", "is_compiled"), [(2.0**119, True), (2.0**121, False)])
def test_codes_times_scales_of_scores_are_finite(scale: float, is_compiled: bool) -> None:
    network = CodeNetwork(5)
    scores = network.input("n", 2, TOKENS, scale=scale)
    weights = f"QLinearSoftmax_{len(network.nodes)}"
    inputs = [*network.triple(scores), *network.add_parameters(weights, 1 / 256, 0)]
    network.node("QLinearSoftmax", inputs, RUNTIME, axis=-1, opset=17)
    values = network.constant(network.random.integers(-64, 64, (TOKENS, 4)).astype(np.int8))
    value = [values, network.constant(np.float32(0.01)), network.constant(np.int8(0))]
    parameters = network.add_parameters("y", 0.02)
    y = network.node("QLinearMatMul", [*network.triple(weights), *value, *parameters])
    model = network.model(y, weights)
    compiled = anybit.compile(model)
    kept = "QLinearSoftmax" in [node.op_type for node in compiled.model.graph]
    assert kept is not is_compiled
    feeds = make_feeds(model, 0)
    for actual, expected in zip(compiled.run(feeds).values(), run_plain(model, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)
