# SPDX-License-Identifier: Apache-2.0
"""Choices that were made layer by layer are dropped where the whole network is better without."""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest
from float_models import NETWORKS, attention, convolutions, data_for
from places import ROOT

import anybit
from anybit.quantization import attempts, judging
from anybit.quantization.certainty import is_surely_less
from anybit.quantization.choices import Choice
from anybit.quantization.judging import FewVerdict
from anybit.quantization.shards import is_held, scattered
from anybit.quantization.simpler import best, outdone
from anybit.quantization.verdict import Judge, Verdict, compared

EXAMPLES = ROOT / "examples"
RANGES, PLAIN = Choice(None, np.ones(1)), Choice(None, np.ones(2))
ALL = Choice(None, simpler=(RANGES, PLAIN))


def sqnr_on_others(found: anybit.Quantized) -> float:
    """On data that `quantize` never saw."""
    floats, few = anybit.load(convolutions()), anybit.load(found.model)
    rows = np.concatenate([each["x"] for each in data_for("convolutions", 200)[100:]])
    a, b = (each.run(rows)["y"].astype(np.float64) for each in (floats, few))
    return float(10 * np.log10(np.square(a).sum() / np.square(a - b).sum()))


def test_choices_that_harm_the_network_are_dropped() -> None:
    data = data_for("convolutions", 16)
    plain = anybit.quantize(convolutions(), data, weights="int4", effort="fast")
    found = anybit.quantize(convolutions(), data, weights="int4")
    assert any("were dropped: on 12 samples whole ranges" in each for each in found.remarks)
    assert sqnr_on_others(found) > sqnr_on_others(plain) - 0.1
    assert not any(layer.smoothed for layer in found.layers)
    # What layers do by themselves is known of what became of them.
    assert all(layer.sqnr is not None for layer in found.layers if layer.weights)


@pytest.mark.parametrize("rows", [16, 48, 128])
def test_no_worse_than_without_choices(rows: int) -> None:
    """Pixels that are rarely black go further on other images than on few."""
    digits, path = np.load(EXAMPLES / "digits.npz")["x"], EXAMPLES / "digits_float.onnx"
    floats = anybit.load(path)
    for draw in range(3):
        order = np.random.default_rng(draw).permutation(len(digits))
        given, others = digits[order[:rows]], digits[order[rows:]]
        wanted = next(iter(floats.run(others).values()))
        noises = []
        for effort in ("fast", "default"):
            few = anybit.load(anybit.quantize(path, given, effort=effort).model)
            noises.append(float(np.square(next(iter(few.run(others).values())) - wanted).sum()))
        assert noises[1] < 1.12 * noises[0]  # by half a decibel


@pytest.mark.parametrize("name", NETWORKS)
def test_the_simplest_is_what_no_effort_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no choice is worse than none on the samples that are set apart."""
    network, data = NETWORKS[name](), data_for(name, 32)
    wanted = anybit.quantize(network, data, weights="int4", effort="fast")
    better = (Verdict(float(each), None, 40, seen=True) for each in (30, 31, 32))
    monkeypatch.setattr(judging.Few, "verdict", lambda *_: next(better))
    found = anybit.quantize(network, data, weights="int4")
    a, b = (ir.to_proto(each.model).SerializeToString() for each in (found, wanted))
    assert a == b


def test_choices_that_help_are_kept() -> None:
    found = anybit.quantize(attention(), data_for("attention", 48), weights="int4")
    assert found.remarks == ()


@pytest.mark.parametrize(
    ("decibels", "samples", "kept"),
    [
        ((30, 20, 20), 40, 0),
        ((30, 30, 30), 40, 0),
        ((30, 31, 29), 40, 1),
        ((30, 31, 32), 40, 2),
        ((30, 29, 31), 40, 2),
        ((30, 29.8, 29), 12, 1),
        ((30, 29.8, 29.7), 12, 2),
        ((30, 29.5, 29.7), 12, 2),
        ((30, 29, 29), 12, 0),
        ((30, 29, 29), 6, 2),
        ((30, 27, 27), 1, 0),
    ],
)
def test_what_adds_the_least_noise(decibels: tuple[float, ...], samples: int, kept: int) -> None:
    verdicts = iter(Verdict(each, None, samples, True) for each in decibels)
    found, said = best({"x": ALL}, lambda choices: next(verdicts))  # type: ignore[dict-item]
    assert found["x"].smoothing is (ALL, RANGES, PLAIN)[kept].smoothing  # type: ignore[index]
    assert (said is not None) == bool(kept)
    if kept:
        assert f"give {decibels[kept]:.1f} dB, and they 30.0 dB" in str(said)


@pytest.mark.parametrize(
    ("samples", "loud", "gain", "kept"),
    [
        (40, (1,) * 8, 2.0, 1),
        (40, (8,) + (0,) * 7, 2.0, 0),
        (40, (8,) + (0,) * 7, 4.0, 1),
        (12, (8, 0, 0), 2.0, 1),
    ],
)
def test_one_that_is_loud_does_not_decide(
    samples: int, loud: tuple[int, ...], gain: float, kept: int
) -> None:
    """Unless there are few in all, or what it shows is far more than all others do."""
    noises = tuple(map(float, loud))
    verdicts = [
        FewVerdict(each, None, samples, True, noises=tuple(share * noise for noise in noises))
        for each, share in ((30.0, 1.0), (30.0 + gain, 0.5), (20.0, 10.0))
    ]
    given = iter(verdicts)
    found, said = best({"x": ALL}, lambda choices: next(given))  # type: ignore[dict-item]
    assert found["x"].smoothing is (ALL, RANGES, PLAIN)[kept].smoothing  # type: ignore[index]
    assert (said is not None) == bool(kept)


def test_one_that_is_loud_does_not_decide_between_simpler_ones() -> None:
    parts = ((10.0,) * 8, (1.0,) * 7 + (23.0,), (1.9,) * 8)
    verdicts = iter(
        FewVerdict(each, None, 40, True, noises=noises)
        for each, noises in zip((30.0, 34.3, 36.9), parts, strict=True)
    )
    found, _ = best({"x": ALL}, lambda choices: next(verdicts))  # type: ignore[dict-item]
    assert found["x"].smoothing is RANGES.smoothing  # type: ignore[union-attr]


def test_outputs_of_other_sizes_are_compared_by_their_signals() -> None:
    verdicts = []
    for worst, share in (("large", 0.09), ("small", 0.01)):
        judge = Judge()
        for _ in range(8):
            y = {"large": np.full(4, 1e3, np.float32), "small": np.full(4, 1e-3, np.float32)}
            q = {name: x * np.float32(1 - share * (name == worst)) for name, x in y.items()}
            judge.add(compared(y, q))
        verdicts.append(judge.noises)
    assert is_surely_less(verdicts[1], verdicts[0])


@pytest.mark.parametrize(
    ("few", "decibels", "kept"),
    [
        (36, (26, 27, 37), 2),
        (36, (26, 36, 37), 1),
        (36, (26, 28, 28.9), 0),
        (36, (33.5, 60, 60), 0),
        (20, (26, 60, 60), 0),
    ],
)
def test_what_is_held_back_shows_far_more_noise(
    few: float, decibels: tuple[float, ...], kept: int
) -> None:
    held, *others = (Verdict(each, None, 75, False) for each in decibels)
    simpler = iter(others)
    given = {"x": ALL}, Verdict(few, None, 40, True), held
    found, said = outdone(*given, lambda choices: next(simpler))  # type: ignore[arg-type]
    if not kept:
        assert (found, said) == (None, None)
        return
    assert found["x"].smoothing is (ALL, RANGES, PLAIN)[kept].smoothing  # type: ignore[index]
    assert "were dropped: on the 75 samples held back" in str(said)
    assert f"give {decibels[kept]:.1f} dB, and they 26.0 dB" in str(said)


def test_what_is_rare_need_not_be_among_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = convolutions(), data_for("convolutions", 32)
    wanted = anybit.quantize(network, data, weights="int4", effort="fast")
    by_few = (Verdict(float(each), None, 40, seen=True) for each in (30, 20, 21))
    by_held = (Verdict(float(each), None, 8, seen=False) for each in (10, 10, 25))
    monkeypatch.setattr(judging.Few, "verdict", lambda *_: next(by_few))
    monkeypatch.setattr(attempts, "judged", lambda *_: next(by_held))
    made = []
    attempt = attempts.Attempts.attempt
    monkeypatch.setattr(
        attempts.Attempts, "attempt", lambda *given: made.append(attempt(*given)) or made[-1]
    )
    found = anybit.quantize(network, data, weights="int4")
    a, b = (ir.to_proto(each.model).SerializeToString() for each in (found, wanted))
    assert a == b
    assert found.verdict is not None
    assert found.verdict.sqnr == 25
    assert "on the 8 samples held back whole ranges" in found.remarks[0]
    # Those few say of it what they said of it, and not of what it is instead of.
    assert [each.few.sqnr for each in made] == [21]


def test_where_outputs_are_large_those_set_apart_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no more samples are spoken of than were run."""
    verdicts = []

    class Noted(judging.Few):
        def verdict(self, quantized: ir.Model) -> Verdict:
            verdicts.append((super().verdict(quantized).samples, self._samples))
            return super().verdict(quantized)

    monkeypatch.setattr(judging, "Few", Noted)
    data = data_for("attention", 32)
    anybit.quantize(attention(), data, weights="int4")
    assert {count for count, _ in verdicts} == {24}
    verdicts.clear()
    monkeypatch.setattr(judging, "_MEMORY", 0)
    anybit.quantize(attention(), data, weights="int4")
    held = {number for number in range(32) if is_held(number)}
    apart = sorted(set(range(32)) - held, key=scattered)[-4:]
    for count, samples in verdicts:
        given = [row.tobytes() for sample in samples for row in sample["x"]]
        assert count == len(given) <= len(apart)
        assert set(given) <= {data[number]["x"][0].tobytes() for number in apart}


def test_outputs_that_become_infinite() -> None:
    verdicts = iter(Verdict(each, None, 40, True) for each in (-math.inf, 20.0, 10.0))
    _, said = best({"x": ALL}, lambda choices: next(verdicts))  # type: ignore[dict-item]
    assert "give 20.0 dB, and they nothing finite" in str(said)


def test_outputs_that_are_no_floats() -> None:
    def judged(choices: Mapping[object, Choice]) -> Verdict:
        return Verdict(None, 0.5 if choices["x"] is ALL else 0.75, 5, False)

    _, said = best({"x": ALL}, judged)  # type: ignore[dict-item,arg-type]
    assert "75.0 % agreement" in str(said)
    nothing = Verdict(None, None, 5, False)
    found, said = best({"x": ALL}, lambda choices: nothing)  # type: ignore[dict-item]
    assert found["x"] is ALL  # type: ignore[index]
    assert said is None
