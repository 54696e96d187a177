# SPDX-License-Identifier: Apache-2.0
"""Candidate ranges of activations, and scaling of channels with outliers."""

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


def make_head(channels: int) -> onnx.ModelProto:
    return model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(channels, 16, seed=1)},
        inputs={"x": ["rows", channels]},
        opsets={"": 17},
    )


@pytest.mark.parametrize(
    ("fraction", "low", "high", "expected"),
    [
        (1.0, -3.0, 2.0, (-3.0, 2.0)),
        (0.5, -3.0, 2.0, (-1.5, 1.5)),
        (0.5, -0.17, 24.0, (-0.17, 12.0)),
        (0.5, -8.0, 0.0, (-4.0, 0.0)),
        (0.5, 0.0, 0.0, (0.0, 0.0)),
    ],
)
def test_clip_range_clips_the_longer_side_first(
    fraction: float, low: float, high: float, expected: tuple[float, float]
) -> None:
    assert clip_range(fraction, low, high) == expected


def test_outlier_scaling_scales_only_the_outlier() -> None:
    """Quantize weights with irregular rows, for which equal channel ranges would lose."""
    sizes = np.exp2(np.random.default_rng(1).uniform(-3, 3, (64, 32))).astype(np.float32)
    x = random(400, 64, seed=3)
    x[::5, 5] = 200
    proto = model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(64, 32, seed=1) * sizes},
        inputs={"x": ["rows", 64]},
        opsets={"": 17},
    )
    result = anybit.quantize(proto, x, weights="int16")
    (factor,) = [op for op in result.model.graph if op.op_type == "Mul"]
    values = factor.inputs[1].const_value.numpy().ravel()
    assert np.flatnonzero(values != 1).tolist() == [5]


@pytest.mark.parametrize(("rows", "scaled"), [(12, False), (400, True)])
def test_smoothquant_needs_enough_rows(rows: int, scaled: bool) -> None:
    """Check that 9 values per channel do not suffice, because larger ones would be clipped."""
    x = random(400, 32, seed=4)
    x[:, ::2] *= 10
    result = anybit.quantize(make_head(32), x[:rows], weights="int4")
    assert result.layers[0].smoothed == scaled


def test_estimate_channel_ranges_widens_ranges_of_few_values() -> None:
    """Check that few values widen a range by a share of the whole range, and zeros fully."""
    statistics = TensorStatistics("x", -1)
    x = np.zeros((64, 4), np.float32)
    x[5] = [8, -4, 0.125, 0]
    statistics.add(x)
    expected = [[-1, -4, -0.5, -4], [8, 2, 0.625, 8]]
    np.testing.assert_array_equal(estimate_channel_ranges(statistics, DEFAULT.scaling), expected)
    few = TensorStatistics("x", -1)
    few.add(x[:16])
    expected = [[-4, -4, -2, -4], [8, 8, 2.125, 8]]
    np.testing.assert_array_equal(estimate_channel_ranges(few, DEFAULT.scaling), expected)


@pytest.mark.parametrize("rank", [3, 2])
def test_range_search_halves_candidates_on_few_samples(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check for less work and a like result, also if samples are joined to batches."""
    proto = model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(64, 32, seed=1)},
        inputs={"x": ["rows", *["words"] * (rank - 2), 64]},
        opsets={"": 17},
    )
    data = [random(1, 3 + at, 64, seed=at) for at in range(40)]
    if rank == 2:
        data = [np.concatenate([sample[0] for sample in data])]
    powers, sizes = LayerRunner.measure_powers, []

    def measure_and_count(
        runner: LayerRunner, grid: object, smoothing: object, samples: list, *others: object
    ):
        sizes.append(sum(array.size for sample in samples for array in sample.values()))
        return powers(runner, grid, smoothing, samples, *others)

    monkeypatch.setattr(LayerRunner, "measure_powers", measure_and_count)
    results = []
    for count in (4, 1):
        change_thresholds(monkeypatch, "ranges", halving=count)
        (layer,) = anybit.quantize(proto, data).layers
        results.append((sum(sizes), layer.sqnr))
        sizes.clear()
    assert results[0][0] < 0.5 * results[1][0]
    assert results[0][1] == pytest.approx(results[1][1], abs=0.5)
