# SPDX-License-Identifier: Apache-2.0
"""Which ranges are tried."""

import numpy as np
import onnx
import pytest
from pass_checks import random
from search_config import change_thresholds
from small_models import model, node

import anybit
from anybit.ptq.algorithms.layer_runner import LayerRunner
from anybit.ptq.algorithms.range_clipping import clip_range
from anybit.ptq.algorithms.smoothquant import estimate_channel_ranges
from anybit.ptq.calibration.tensor_statistics import TensorStatistics
from anybit.ptq.config import DEFAULT


def head(channels: int) -> onnx.ModelProto:
    return model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(channels, 16, seed=1)},
        inputs={"x": ["rows", channels]},
        opsets={"": 17},
    )


@pytest.mark.parametrize(
    ("fraction", "low", "high", "wanted"),
    [
        (1.0, -3.0, 2.0, (-3.0, 2.0)),
        (0.5, -3.0, 2.0, (-1.5, 1.5)),
        (0.5, -0.17, 24.0, (-0.17, 12.0)),
        (0.5, -8.0, 0.0, (-4.0, 0.0)),
        (0.5, 0.0, 0.0, (0.0, 0.0)),
    ],
)
def test_the_longer_side_is_cut_first(
    fraction: float, low: float, high: float, wanted: tuple[float, float]
) -> None:
    assert clip_range(fraction, low, high) == wanted


def test_an_outlier_is_brought_back_and_nothing_else_is_scaled() -> None:
    """Weights whose rows differ in no regular way would lose by what makes all channels alike."""
    sizes = np.exp2(np.random.default_rng(1).uniform(-3, 3, (64, 32))).astype(np.float32)
    x = random(400, 64, seed=3)
    x[::5, 5] = 200
    proto = model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(64, 32, seed=1) * sizes},
        inputs={"x": ["rows", 64]},
        opsets={"": 17},
    )
    found = anybit.quantize(proto, x, weights="int16")
    (factor,) = [each for each in found.model.graph if each.op_type == "Mul"]
    values = factor.inputs[1].const_value.numpy().ravel()
    assert np.flatnonzero(values != 1).tolist() == [5]


@pytest.mark.parametrize(("rows", "smoothed"), [(12, False), (400, True)])
def test_channels_of_which_little_is_known_are_not_scaled(rows: int, smoothed: bool) -> None:
    """The largest of 9 values says little; what goes further would be cut off."""
    x = random(400, 32, seed=4)
    x[:, ::2] *= 10
    found = anybit.quantize(head(32), x[:rows], weights="int4")
    assert found.layers[0].smoothed == smoothed


def test_how_far_channels_go() -> None:
    """Few values leave a share of the whole range open, or of a multiple; and zeros all of it."""
    statistics = TensorStatistics("x", -1)
    x = np.zeros((64, 4), np.float32)
    x[5] = [8, -4, 0.125, 0]
    statistics.add(x)
    wanted = [[-1, -4, -0.5, -4], [8, 2, 0.625, 8]]
    np.testing.assert_array_equal(estimate_channel_ranges(statistics, DEFAULT.scaling), wanted)
    few = TensorStatistics("x", -1)
    few.add(x[:16])
    expected = [[-4, -4, -2, -4], [8, 8, 2.125, 8]]
    np.testing.assert_array_equal(estimate_channel_ranges(few, DEFAULT.scaling), expected)


@pytest.mark.parametrize("rank", [3, 2])
def test_few_samples_show_which_candidates_are_tried_on_all(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best is among those; with less work, also where samples are joined for a run."""
    proto = model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(64, 32, seed=1)},
        inputs={"x": ["rows", *["words"] * (rank - 2), 64]},
        opsets={"": 17},
    )
    data = [random(1, 3 + at, 64, seed=at) for at in range(40)]
    if rank == 2:
        data = [np.concatenate([each[0] for each in data])]
    powers, seen = LayerRunner.measure_powers, []

    def counted(
        piece: LayerRunner, grid: object, smoothing: object, samples: list, *others: object
    ):
        seen.append(sum(array.size for each in samples for array in each.values()))
        return powers(piece, grid, smoothing, samples, *others)

    monkeypatch.setattr(LayerRunner, "measure_powers", counted)
    found = []
    for few in (4, 1):
        change_thresholds(monkeypatch, "ranges", halving=few)
        (layer,) = anybit.quantize(proto, data).layers
        found.append((sum(seen), layer.sqnr))
        seen.clear()
    assert found[0][0] < 0.5 * found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=0.5)
