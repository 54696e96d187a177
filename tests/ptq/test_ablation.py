# SPDX-License-Identifier: Apache-2.0
"""Ablation: choices made layer by layer are dropped where the whole network is better without."""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest
from float_models import NETWORKS, attention, convolutions, data_for
from places import ROOT
from search_config import change_thresholds

import anybit
from anybit.data.splits import hash_index, is_held_out
from anybit.metrics.confidence import NoiseSpread
from anybit.metrics.quality import QualityMetrics
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.calibration.taps import TapSpec
from anybit.ptq.search.ablation import (
    AblationSet,
    VariantQuality,
    describe_ablation,
    make_variants,
    select_best_variant,
)

EXAMPLES = ROOT / "examples"
RANGES, PLAIN = LayerParams(None, np.ones(1)), LayerParams(None, np.ones(2))
ALL = LayerParams(None, fallbacks=(RANGES, PLAIN))


def make_verdict(sqnr: float | None, agreement: float | None = None) -> QualityMetrics:
    return QualityMetrics(sqnr, agreement, 40, seen=True)


def make_quality(sqnr: float | None, agreement: float | None = None) -> VariantQuality:
    return VariantQuality(make_verdict(sqnr, agreement))


def make_spread(noises: Sequence[float]) -> NoiseSpread:
    spread = NoiseSpread()
    for noise in noises:
        spread.add(noise, 1.0)
    return spread


def sqnr_on_new_data(result: anybit.QuantizationResult) -> float:
    """Return the SQNR in dB on data that `quantize` never saw."""
    floats, few = anybit.load(convolutions()), anybit.load(result.model)
    rows = np.concatenate([sample["x"] for sample in data_for("convolutions", 200)[100:]])
    a, b = (network.run(rows)["y"].astype(np.float64) for network in (floats, few))
    return float(10 * np.log10(np.square(a).sum() / np.square(a - b).sum()))


def test_ablation_drops_choices_that_harm_the_network() -> None:
    data = data_for("convolutions", 16)
    plain = anybit.quantize(convolutions(), data, weights="int4", effort="fast")
    result = anybit.quantize(convolutions(), data, weights="int4")
    assert any("were dropped: on 12 samples whole ranges" in remark for remark in result.remarks)
    assert sqnr_on_new_data(result) > sqnr_on_new_data(plain) - 0.1
    assert not any(layer.smoothed for layer in result.layers)
    # The error of each layer is that of the variant that was kept.
    assert all(layer.sqnr is not None for layer in result.layers if layer.weights)


@pytest.mark.parametrize("rows", [16, 48, 128])
def test_default_effort_is_not_worse_than_fast(rows: int) -> None:
    """Pixels that are rarely black reach further on new images than on calibration images."""
    digits, path = np.load(EXAMPLES / "digits.npz")["x"], EXAMPLES / "digits_float.onnx"
    floats = anybit.load(path)
    for draw in range(3):
        order = np.random.default_rng(draw).permutation(len(digits))
        samples, others = digits[order[:rows]], digits[order[rows:]]
        expected = next(iter(floats.run(others).values()))
        noises = []
        for effort in ("fast", "default"):
            few = anybit.load(anybit.quantize(path, samples, effort=effort).model)
            noises.append(float(np.square(next(iter(few.run(others).values())) - expected).sum()))
        assert noises[1] < 1.12 * noises[0]  # by half a decibel


@pytest.mark.parametrize("name", NETWORKS)
def test_last_variant_equals_effort_fast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = NETWORKS[name](), data_for(name, 32)
    fast = anybit.quantize(network, data, weights="int4", effort="fast")
    verdicts = iter(map(make_quality, (30, 31, 32)))
    monkeypatch.setattr(AblationSet, "evaluate", lambda *_: next(verdicts))
    result = anybit.quantize(network, data, weights="int4")
    a, b = (ir.to_proto(network.model).SerializeToString() for network in (result, fast))
    assert a == b
    assert "dB, and all choices 30.0 dB" in result.remarks[0]


def test_ablation_keeps_choices_that_help() -> None:
    result = anybit.quantize(attention(), data_for("attention", 48), weights="int4")
    assert result.remarks == ()


def test_make_variants_drops_more_and_more_choices() -> None:
    others = LayerParams(None)
    variants = make_variants({"x": ALL, "y": others})  # type: ignore[dict-item]
    left = [variant.choices["x"].smoothing for variant in variants]  # type: ignore[index]
    assert left == [ALL.smoothing, RANGES.smoothing, PLAIN.smoothing]
    assert all(variant.choices["y"] is others for variant in variants)  # type: ignore[index]
    assert len(make_variants({"y": others})) == 1  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("decibels", "best"),
    [
        ((30, 20, 20), 0),
        ((30, 30, 30), 0),
        ((30, 31, 29), 1),
        ((30, 31, 32), 2),
        ((30, 29, 31), 2),
        ((30, 31, 31), 1),
        ((-math.inf, 20, 10), 1),
        ((math.inf, 20, 10), 0),
        ((None, None, None), 0),
    ],
)
def test_select_best_variant_compares_sqnr(decibels: Sequence[float | None], best: int) -> None:
    assert select_best_variant([*map(make_quality, decibels)]) == best


def test_select_best_variant_ignores_a_difference_of_single_samples() -> None:
    """Test less noise in all samples but one, and more in all."""
    plain = [0.010, 0.012, 0.009, 0.011] * 10
    for noises, best in (
        ([*(0.9 * noise for noise in plain[1:]), 0.5], 0),
        ([1.1 * noise for noise in plain], 1),
    ):
        qualities = [
            VariantQuality(make_verdict(-10 * math.log10(sum(some) / 40)), make_spread(some))
            for some in (noises, plain)
        ]
        assert select_best_variant(qualities) == best


def test_select_best_variant_compares_agreement_without_float_outputs() -> None:
    qualities = [make_quality(None, share) for share in (0.5, 0.75, 0.6)]
    assert select_best_variant(qualities) == 1
    variant = make_variants({"x": ALL})[1]  # type: ignore[dict-item]
    text = describe_ablation(variant, qualities[1].metrics, qualities[0].metrics)
    assert text == (
        "Weight rounding and bias correction were dropped: on 40 samples weights rounded to "
        "nearest give 75.0 % agreement, and all choices 50.0 % agreement."
    )


def test_describe_ablation_names_outputs_that_are_not_finite() -> None:
    variant = make_variants({"x": ALL})[2]  # type: ignore[dict-item]
    assert "all choices nothing finite" in describe_ablation(
        variant, make_verdict(20), make_verdict(-math.inf)
    )


def test_ablation_set_starts_with_samples_set_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test also with little memory, where only samples set apart remain, and are counted."""
    verdicts = []

    class Noted(AblationSet):
        def evaluate(self, quantized: TapSpec) -> VariantQuality:
            quality = super().evaluate(quantized)
            verdicts.append((quality.metrics.samples, self._batches))
            return quality

    monkeypatch.setattr("anybit.ptq.search.candidates.AblationSet", Noted)
    data = data_for("attention", 32)
    anybit.quantize(attention(), data, weights="int4")
    assert {count for count, _ in verdicts} == {24}
    verdicts.clear()
    change_thresholds(monkeypatch, "ablation", output_bytes=0)
    anybit.quantize(attention(), data, weights="int4")
    held = {number for number in range(32) if is_held_out(number)}
    apart = sorted(set(range(32)) - held, key=hash_index)[-4:]
    for count, batches in verdicts:
        rows = [row.tobytes() for batch in batches for row in batch["x"]]
        assert count == len(rows) <= len(apart)
        assert set(rows) <= {data[number]["x"][0].tobytes() for number in apart}
