# SPDX-License-Identifier: Apache-2.0
"""The bias of a convolution as an Add after it."""

import numpy as np
import pytest
from pass_checks import apply_passes, assert_same_outputs, random
from small_models import kinds, model, node

from anybit.onnx.passes import ExtractConvBias


@pytest.mark.parametrize(
    ("kind", "weight", "shape", "options"),
    [
        ("Conv", (6, 4, 3, 3), (2, 4, 7, 7), {}),
        ("Conv", (6, 64, 1, 1), (1, 64, 3, 3), {}),
        ("Conv", (6, 1, 3), (2, 6, 9), {"group": 6, "pads": [1, 1]}),
        ("Conv", (6, 2, 3, 3, 3), (1, 2, 5, 5, 5), {}),
        ("ConvTranspose", (4, 6, 3, 3), (1, 4, 5, 5), {"strides": [2, 2]}),
    ],
)
def test_extract_conv_bias_results_keep_their_bits(
    kind: str, weight: tuple[int, ...], shape: tuple[int, ...], options: dict[str, object]
) -> None:
    nodes = [node(kind, "x w b", "c", domain="", name="c", **options)]
    nodes += [node("Relu", "c", domain="", name="r")]
    proto = model(nodes, {"w": random(*weight), "b": random(6, seed=1)}, inputs={"x": shape})
    changed = apply_passes(proto, ExtractConvBias())
    assert kinds(changed) == [kind, "Add", "Relu"]
    assert list(changed.graph.initializers["b"].shape) == [1, 6] + [1] * (len(shape) - 2)
    assert_same_outputs(proto, changed, random(*shape, seed=2))


@pytest.mark.parametrize("scale", [np.float32(0.5), np.float32([0.5, 0.25, 1, 2, 4, 8])])
def test_a_quantized_bias_stays_quantized(scale: np.ndarray) -> None:
    nodes = [
        node("IntQuant", "b s z n", "q", name="q"),
        node("Conv", "x w q", domain="", name="c"),
    ]
    constants = {"w": random(6, 2, 3, 3), "b": random(6, seed=1), "s": scale, "z": 0, "n": 5}
    proto = model(nodes, constants, inputs={"x": [1, 2, 5, 5]})
    changed = apply_passes(proto, ExtractConvBias())
    assert sorted(kinds(changed)) == ["Add", "Conv", "IntQuant"]
    assert set(changed.graph.initializers) == set(constants)
    assert_same_outputs(proto, changed, random(1, 2, 5, 5, seed=2))


def test_a_computed_bias_stays() -> None:
    nodes = [node("Conv", "x w b", domain="", name="c")]
    inputs = {"x": [1, 2, 5, 5], "b": [6]}
    proto = model(nodes, {"w": random(6, 2, 3, 3)}, inputs=inputs)
    assert kinds(apply_passes(proto, ExtractConvBias())) == ["Conv"]
