# SPDX-License-Identifier: Apache-2.0
"""Scales from data: the least error of layers, and nothing else changes."""

import copy
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_modules import random, sqnr  # noqa: E402  needs torch

import anybit  # noqa: E402
from anybit.torch import calibrate, export, nn, quantize_model  # noqa: E402
from anybit.torch.nn._calibrate import Samples  # noqa: E402

SPEC = {"weight": "int4 per-channel narrow", "activation": "uint4", "first/last": "int8"}

pytestmark = pytest.mark.usefixtures("one_thread")


class Network(torch.nn.Module):
    """Convolutions with normalization and dropout, a layer that is called twice, two inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Dropout()
        )
        self.body = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: Any, more: Any = None) -> Any:
        x = self.stem(x)
        x = torch.relu(self.body(torch.relu(self.body(x))))
        x = self.head(x.mean((2, 3)))
        return x if more is None else x + more


def batches(count: int = 4, size: int = 8) -> list[Any]:
    return [random(size, 3, 8, 8, seed=seed) for seed in range(count)]


@pytest.mark.parametrize("seed", [1, 2])
def test_calibrate_beats_initial_scales(seed: int) -> None:
    """Inputs with a few large elements, as many layers have them; here by 3 to 4 dB."""
    torch.manual_seed(seed)
    floats = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU(),
        torch.nn.Linear(32, 4),
    )  # fmt: skip
    data = [random(64, 16, seed=100 * seed + index) ** 3 for index in range(4)]
    spec = SPEC | {"weight": "int8 per-channel narrow", "layers": {"0": {"activation": "int8"}}}
    started = quantize_model(floats, spec)
    for batch in data:
        started(batch)
    model = calibrate(quantize_model(floats, spec), data)
    x = random(2000, 16, seed=9) ** 3
    assert sqnr(floats(x), model.eval()(x)) > sqnr(floats(x), started.eval()(x)) + 2


@pytest.mark.parametrize(("bits", "count", "rows"), [(8, 1, 2), (8, 2, 8), (8, 5, 51), (4, 3, 5)])
def test_calibrate_with_few_rows_is_not_worse_than_full_ranges(
    bits: int, count: int, rows: int
) -> None:
    """Do not clip with fewer values per channel than codes, which miss rare values."""
    floats = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU(),
        torch.nn.Linear(32, 4),
    )  # fmt: skip
    spec = {"weight": "int8 per-channel narrow", "activation": f"uint{bits}"}
    spec["layers"] = {"0": {"activation": f"int{bits}"}}
    for seed in range(6):
        data = [random(rows, 16, seed=100 * seed + index) for index in range(count)]
        model = calibrate(quantize_model(floats, spec), data).eval()
        ranges, x = copy.deepcopy(model), torch.cat(data)
        for layer, quantized in zip(floats, ranges, strict=True):
            if quantizer := getattr(quantized, "input_quantizer", None):
                largest = 2 ** (bits - quantizer.signed) - 1
                below = -x.min() / (largest + 1) if quantizer.signed else torch.tensor(0.0)
                least = torch.maximum(x.max() / largest, below)
                quantizer.scale.set(least * (1 + x.numel() ** -0.5))
            x = layer(x)
        others = random(1000, 16, seed=9)
        expected = floats(others)
        assert sqnr(expected, model(others)) > sqnr(expected, ranges(others)) - 0.01


@pytest.mark.parametrize(("rows", "cut"), [(15, False), (16, True)])
def test_calibrate_clips_if_there_are_as_many_rows_as_codes(rows: int, cut: bool) -> None:
    """Clip one channel with outliers and little effect."""
    floats = torch.nn.Linear(8, 8)
    with torch.no_grad():
        floats.weight[:, 7] = 1e-3
    x = random(16, 8) * torch.cat([torch.ones(7), torch.tensor([30.0])])
    layer = quantize_model(floats, {"weight": "int8", "activation": "int4"})
    calibrate(layer, [x[:rows]])
    assert bool(layer.input_quantizer.scale.threshold < x[:rows].abs().max()) == cut


def test_calibrate_changes_scales_only() -> None:
    model = quantize_model(Network(), SPEC)
    model.body.eval()
    model.head.weight.grad = torch.ones(4, 8)
    dataset = torch.utils.data.TensorDataset(random(16, 3, 8, 8), torch.zeros(16))
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True)
    before = copy.deepcopy(model)
    modes = [module.training for module in model.modules()]
    numbers = torch.get_rng_state()
    assert calibrate(model, loader) is model
    assert torch.equal(torch.get_rng_state(), numbers)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model.head.weight.grad, torch.ones(4, 8))
    assert not any("forward" in vars(module) for module in model.modules())
    changed = {
        name
        for (name, new), old in zip(
            model.state_dict().items(), before.state_dict().values(), strict=True
        )
        if not torch.equal(new, old)
    }
    assert "body.input_quantizer.scale.threshold" in changed
    assert all(name.endswith("_quantizer.scale.threshold") for name in changed)


def test_calibrate_matches_brute_force() -> None:
    """Compare with a range of scales: none is better by more than 0.5 dB."""
    torch.manual_seed(0)
    x = random(64, 16) * torch.cat([torch.ones(15), torch.tensor([30.0])])
    floats = torch.nn.Linear(16, 8)
    with torch.no_grad():
        floats.weight[:, 15] = 1e-3
    layer = quantize_model(floats, {"weight": "int8 absmax", "activation": "int4"})
    calibrate(layer, [x])
    expected = floats(x)
    result = sqnr(expected, layer.eval()(x))
    scale, scores = layer.input_quantizer.scale, {}
    for share in np.linspace(0.02, 1, 200):
        scale.set(x.abs().max() * share / 7)
        scores[share] = sqnr(expected, layer(x))
    best = max(scores, key=scores.__getitem__)
    assert result > scores[best] - 0.5
    # The error of the layer, not of x, whose error is mostly that of the outlier.
    assert best < 0.3
    assert result > scores[1.0] + 6


def test_calibrate_minimizes_squared_error_of_weights() -> None:
    """Per channel, of all ranges in steps of a twentieth."""
    weight = random(6, 50) ** 3
    layer = torch.nn.Linear(50, 6)
    layer.weight = torch.nn.Parameter(weight)
    layer = quantize_model(layer, {"weight": "int4 per-channel narrow", "activation": "int8"})
    calibrate(layer, [random(4, 50)])
    result = layer.weight_quantizer.scale.stored().detach()
    for channel, scale in zip(weight, result, strict=True):
        errors = {}
        for step in range(14):
            tried = channel.abs().max() / 7 * (1 - step / 20)
            rounded = torch.clamp(torch.round(channel / tried), -7, 7) * tried
            errors[float(tried)] = float((rounded - channel).double().square().sum())
        assert float(scale) == pytest.approx(min(errors, key=errors.__getitem__), rel=1e-5)


KINDS = (
    "int8", "int4 narrow", "uint8", "int8 per-channel", "int4 power-of-two", "int8 ema",
    "fp8_e4m3", "fp4_e2m1 ema", "e3m2 power-of-two", "ternary", "bipolar", "int16", "uint1",
)  # fmt: skip


@pytest.mark.parametrize("words", KINDS)
def test_calibrate_supports_every_quantizer(words: str) -> None:
    """Weights, inputs and outputs; as good as what training starts with, or nearly so.

    Wide integers have bits to spare for twice the range.
    """
    floats = torch.nn.Linear(12, 6).eval()
    roles = {"weight": words, "activation": words, "output": words, "bias": "int8"}
    if "u" in words:
        roles["weight"] = "int8"
    x = random(64, 12).abs() if "u" in words else random(64, 12)
    started = quantize_model(floats.train(), roles)
    started(x)
    model = calibrate(quantize_model(floats, roles), [x[:32], x[32:]])
    states = {name: value for name, value in model.state_dict().items() if "quantizer" in name}
    assert len(states) == 4
    assert all(bool((value > 0).all()) for value in states.values())
    expected = floats.eval()(x)
    assert sqnr(expected, model.eval()(x)) > sqnr(expected, started.eval()(x)) - (
        4 if words == "int16" else 1
    )


def test_calibrate_accepts_batches_of_all_kinds() -> None:
    x = random(8, 3, 8, 8)
    scales = []
    for batches in (
        [x],
        x,
        {"x": x},
        [{"x": x, "labels": x}],
        [(x, torch.zeros(8))],
        [[x, torch.zeros(8)]],
        [((x, torch.zeros(8, 4)), torch.zeros(8))],
        [({"x": x, "more": None}, 0)],
        [x.numpy()],
        (item for item in [x]),
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x), batch_size=8),
    ):
        model = calibrate(quantize_model(Network(), SPEC), batches)
        scales.append(model.body.input_quantizer.scale.threshold.item())
    assert len(set(scales)) == 1


def test_calibrate_refuses_nonfinite_tensors_by_name() -> None:
    model = quantize_model(Network(), SPEC)
    before = copy.deepcopy(model.state_dict())
    bad = random(2, 3, 8, 8)
    bad[0, 0, 0, 0] = torch.inf
    with pytest.raises(anybit.ModelError, match=r"'stem.0.input_quantizer' gets NaN.*batch 1"):
        calibrate(model, [random(2, 3, 8, 8), bad])
    assert all(
        torch.equal(new, old) or (new.isnan().all() and old.isnan().all())
        for new, old in zip(model.state_dict().values(), before.values(), strict=True)
    )
    assert not any("forward" in vars(module) for module in model.modules())
    with torch.no_grad():
        model.head.weight[0, 0] = torch.nan
    with pytest.raises(anybit.ModelError, match=r"'head.weight_quantizer' gets NaN"):
        calibrate(model, batches(1))


def test_calibrate_refuses_empty_batches() -> None:
    model = quantize_model(Network(), SPEC)
    with pytest.raises(anybit.ModelError, match="have no rows: pass some data"):
        calibrate(model, [random(0, 3, 8, 8)])


@pytest.mark.parametrize(
    ("model", "batches", "message"),
    [
        (lambda: Network(), [random(2, 3, 8, 8)], "no quantizers with scales to set"),
        (lambda: quantize_model(Network(), SPEC), [], "no batches"),
        (lambda: quantize_model(Network(), SPEC), [()], "a batch is an empty tuple"),
        (lambda: nn.IntQuantizer(4, granularity="per-channel"), [random(2, 3)], "pass channels="),
    ],
)
def test_calibrate_refuses_models_and_data_without_work(
    model: Any, batches: Any, message: str
) -> None:
    with pytest.raises(anybit.ModelError, match=message):
        calibrate(model(), batches)


def test_calibrate_of_degenerate_data_sets_positive_scales() -> None:
    """Zeros, one row, no rows: scales are positive, and eval mode runs."""
    for inputs in (
        [torch.zeros(2, 3, 8, 8)],
        [random(1, 3, 8, 8)],
        [*batches(2, 1), *batches(1, 0)],
    ):
        model = calibrate(quantize_model(Network(), SPEC), inputs).eval()
        assert bool(model(inputs[0]).isfinite().all())


def test_calibrate_supports_standalone_and_shared_quantizers() -> None:
    shared = nn.IntQuantizer(4)
    model = torch.nn.Sequential(
        nn.IntQuantizer(8), nn.QuantLinear(4, 4, input_quantizer=shared), torch.nn.ReLU(),
        nn.QuantLinear(4, 4, input_quantizer=shared),
        nn.IntQuantizer(8, granularity="per-channel", axis=-1, channels=4),
    )  # fmt: skip
    calibrate(model, [random(16, 4)])
    assert model[4].scale.stored().shape == (4,)
    assert bool(model.eval()(random(2, 4)).isfinite().all())


def test_calibrate_keeps_fixed_and_absmax_scales() -> None:
    words = {"weight": "int4 absmax", "activation": "int4 scale=0.5", "output": "int8"}
    model = calibrate(quantize_model(torch.nn.Linear(4, 4), words), [random(8, 4)])
    assert model.input_quantizer.scale.stored() == 0.5


@pytest.mark.parametrize("rows", [True, False])
def test_samples_use_bounded_memory(rows: bool) -> None:
    samples = Samples(memory=4000)
    for index in range(100):
        x = torch.full((10, 20), float(index))
        x[3] *= 2 if index in (41, 73) else 1
        samples.add(x, rows)
    assert samples.nbytes <= 4000
    first, second = samples.split()
    assert first
    assert second
    seen = sorted({float(item[0, 0]) for item in (*first[:-1], *second[:-1])})
    assert seen[0] == 0
    assert seen[-1] > 60
    assert float(first[-1].max()) == 146


def test_samples_split_the_rows_of_one_batch() -> None:
    samples = Samples(memory=2**20)
    samples.add(torch.arange(6.0)[:, None], has_rows=True)
    first, second = samples.split()
    assert [item[:, 0].tolist() for item in first] == [[0, 3], [2, 5], [5]]
    assert [entry[:, 0].tolist() for entry in second] == [[1, 4], [4]]


def test_calibrate_reads_data_once() -> None:
    alive: list[Any] = []

    def stream() -> Iterator[Any]:
        for seed in range(30):
            x = random(4, 3, 8, 8, seed=seed)
            alive.append(weakref.ref(x))
            yield x
            del x
            assert sum(item() is not None for item in itertools.islice(alive, seed)) <= 1

    calibrate(quantize_model(Network(), SPEC), stream())
    assert len(alive) == 30


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_calibrate_supports_other_precisions(dtype: Any) -> None:
    floats = torch.nn.Linear(8, 4).to(dtype)
    model = quantize_model(floats, {"weight": "int4", "activation": "int8"})
    calibrate(model, [random(32, 8).to(dtype)])
    x = random(32, 8, seed=2).to(dtype)
    assert sqnr(floats(x), model.eval()(x)) > 15


def test_calibrate_then_train_and_export() -> None:
    spec = {
        "weight": "int4 per-channel narrow power-of-two",
        "activation": "int8 power-of-two",
        "bias": "int16 accumulator",
    }
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    model = calibrate(quantize_model(model, spec), [random(32, 6)]).train()
    before = model[0].input_quantizer.scale.threshold.item()
    model(random(32, 6)).square().sum().backward()
    assert model[0].input_quantizer.scale.threshold.item() == before
    assert model[0].input_quantizer.scale.threshold.grad is not None
    torch.optim.SGD(model.parameters(), 0.01).step()
    assert export(model, random(8, 6, seed=5)).equal
