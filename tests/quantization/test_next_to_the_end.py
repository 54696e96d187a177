# SPDX-License-Identifier: Apache-2.0
"""Data next to the end of float32: nothing that is computed of them overflows with a warning, which
these tests would end with."""

import numpy as np
import onnx
import pytest
from float_models import NETWORKS, OPSETS, data_for
from passes import random
from small_models import model, node

import anybit

LARGEST = np.finfo(np.float32).max


def up_to(reach: float, x: np.ndarray) -> np.ndarray:
    return x / np.abs(x).max() * np.float32(reach)


def layer() -> onnx.ModelProto:
    constants = {"w": random(16, 8, seed=3) / 100}
    nodes = [node("MatMul", "x w", "y", domain="", name="layer")]
    return model(nodes, constants, inputs={"x": ["rows", 16]}, opsets=OPSETS)


@pytest.mark.parametrize("reach", [1e30, 1e38, 3.3e38])
@pytest.mark.parametrize(
    ("words", "least"),
    [
        ({}, 35),
        ({"weights": "int4"}, 15),
        ({"activations": "uint8 power-of-two"}, 35),
        ({"weights": "mxfp4", "activations": "int16"}, 15),
        ({"effort": "fast"}, 35),
        ({"budget": "20dB"}, 20),
    ],
)
def test_a_layer_is_as_good_as_with_small_data(
    reach: float, words: dict[str, str], least: float
) -> None:
    x = up_to(reach, random(128, 16))
    found = anybit.quantize(layer(), x, **words)
    assert found.verdict.sqnr > least
    (reported,) = anybit.report(found, x).layers
    (activations,) = [each for each in reported.tensors if each.role == "activations"]
    assert activations.clipped < 0.1
    assert anybit.evaluate(layer(), found, data=x).models[1].sqnr > least
    # As it is found for small data.
    less = anybit.quantize(layer(), x * np.float32(2.0**-80), **words)
    assert found.verdict.sqnr == pytest.approx(less.verdict.sqnr, abs=0.01)


@pytest.mark.parametrize("words", [{"activations": "uint8 power-of-two"}, {"weights": "int4"}])
def test_what_is_infinite_once_it_is_quantized(words: dict[str, str]) -> None:
    """The end of a grid may lie beyond float32: weights are chosen by what does not become that."""
    data = [{"x": up_to(LARGEST, each["x"])} for each in data_for("recurrent")]
    found = anybit.quantize(NETWORKS["recurrent"](), data, **words)
    outputs = anybit.load(found.model).run(data[0])
    assert all(np.isfinite(each).all() for each in outputs.values())
