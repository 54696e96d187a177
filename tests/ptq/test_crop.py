# SPDX-License-Identifier: Apache-2.0
"""Crops of large activations for the choice of quantizers."""

import numpy as np
import onnx_ir as ir
import parallel_tasks
import pytest
from float_models import NETWORKS, data_for
from pass_checks import random
from search_config import change_thresholds
from small_models import model, node

import anybit
from anybit.ptq.calibration.crop import Crop


def test_crop_has_the_byte_size_and_the_largest_magnitude() -> None:
    x = np.random.default_rng(1).standard_normal((1, 2, 100, 5)).astype(np.float32)
    x[0, 1, 71, 3] = -9
    crop = Crop(2, 3, 10 * 2 * 5 * 4)
    around = crop(x, 1, 0, around_largest=True)
    assert around.shape == (1, 2, 10, 5)
    assert around.min() == -9
    starts = {crop(x, 1, number, around_largest=False)[0, 0, 0, 0] for number in range(20)}
    assert len(starts) > 10


def test_crop_keeps_small_tensors_and_the_least_length() -> None:
    x = np.ones((1, 2, 100, 5), np.float32)
    assert Crop(2, 3, x.nbytes)(x, 1, 0, around_largest=True) is x
    assert Crop(2, 3, 1)(x, 1, 0, around_largest=True).shape == (1, 2, 3, 5)
    two = np.concatenate([x, x])
    assert Crop(2, 3, x.nbytes)(two, 2, 0, around_largest=False) is two


@pytest.mark.parametrize("name", NETWORKS)
def test_quantize_with_crops_is_accurate_and_deterministic(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, data = NETWORKS[name](), data_for(name, 40)
    whole = anybit.quantize(network, data)
    change_thresholds(monkeypatch, "calibration", crop_bytes=256, memory_bytes=2**14)
    parts = anybit.quantize(network, data)
    with parallel_tasks.num_threads(1):
        again = anybit.quantize(network, data)
    assert parts.verdict is not None
    assert parts.verdict.sqnr is not None
    assert whole.verdict is not None
    assert whole.verdict.sqnr is not None
    assert parts.verdict.sqnr > whole.verdict.sqnr - 3
    first, second = (ir.to_proto(result.model).SerializeToString() for result in (parts, again))
    assert first == second


def test_crop_skips_tensors_that_a_reader_cannot_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Quantize a tensor with a reader that multiplies it by itself, and a float reader."""
    change_thresholds(monkeypatch, "calibration", crop_bytes=2**10)
    nodes = [
        node("Transpose", "x", "turned", domain="", perm=[0, 2, 1]),
        node("MatMul", "turned x", "gram", domain="", name="gram"),
        node("MatMul", "x w", "a", domain="", name="layer"),
        node("MatMul", "a gram", "y", domain="", name="last"),
    ]
    constants = {"w": random(8, 8, seed=1)}
    proto = model(nodes, constants, inputs={"x": ["rows", 200, 8]}, opsets={"": 17})
    data = [{"x": random(1, 200, 8, seed=seed)} for seed in range(4)]
    result = anybit.quantize(proto, data, layers={"layer": "int4/float"})
    assert result.verdict is not None
    assert result.verdict.sqnr > 10
