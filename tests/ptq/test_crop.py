# SPDX-License-Identifier: Apache-2.0
"""Parts of large tensors by which their quantizers are chosen."""

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


def test_a_strip_has_so_many_bytes_and_the_largest_magnitude() -> None:
    x = np.random.default_rng(1).standard_normal((1, 2, 100, 5)).astype(np.float32)
    x[0, 1, 71, 3] = -9
    crop = Crop(2, 3, 10 * 2 * 5 * 4)
    around = crop(x, 1, 0, around_largest=True)
    assert around.shape == (1, 2, 10, 5)
    assert around.min() == -9
    starts = {crop(x, 1, number, around_largest=False)[0, 0, 0, 0] for number in range(20)}
    assert len(starts) > 10


def test_what_is_small_stays_and_layers_get_what_they_need() -> None:
    x = np.ones((1, 2, 100, 5), np.float32)
    assert Crop(2, 3, x.nbytes)(x, 1, 0, around_largest=True) is x
    assert Crop(2, 3, 1)(x, 1, 0, around_largest=True).shape == (1, 2, 3, 5)
    two = np.concatenate([x, x])
    assert Crop(2, 3, x.nbytes)(two, 2, 0, around_largest=False) is two


@pytest.mark.parametrize("name", NETWORKS)
def test_quantizers_that_are_chosen_by_parts_are_good(
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
    first, second = (ir.to_proto(each.model).SerializeToString() for each in (parts, again))
    assert first == second


def test_a_tensor_that_cannot_be_cut_for_all_its_readers_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them multiplies it with itself, in integers, and another one in floats."""
    change_thresholds(monkeypatch, "calibration", crop_bytes=2**10)
    nodes = [
        node("Transpose", "x", "turned", domain="", perm=[0, 2, 1]),
        node("MatMul", "turned x", "gram", domain="", name="gram"),
        node("MatMul", "x w", "a", domain="", name="layer"),
        node("MatMul", "a gram", "y", domain="", name="last"),
    ]
    constants = {"w": random(8, 8, seed=1)}
    proto = model(nodes, constants, inputs={"x": ["rows", 200, 8]}, opsets={"": 17})
    data = [{"x": random(1, 200, 8, seed=each)} for each in range(4)]
    found = anybit.quantize(proto, data, layers={"layer": "int4/float"})
    assert found.verdict is not None
    assert found.verdict.sqnr > 10
