# SPDX-License-Identifier: Apache-2.0
"""Scales stop to change, and go on."""

import copy
import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch_modules import random  # noqa: E402  needs torch

from anybit.torch import calibrate, export, quantize_model  # noqa: E402
from anybit.torch.nn import freeze_scales, unfreeze_scales  # noqa: E402


def network() -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    spec = {"weight": "int4", "activation": "int8", "layers": {"2": {"activation": "uint4 ema"}}}
    return quantize_model(model, spec)


def train(model: Any, optimizer: Any, steps: int = 3) -> None:
    for step in range(steps):
        optimizer.zero_grad(set_to_none=False)
        model.train()(random(16, 6, seed=step) * 3).square().sum().backward()
        optimizer.step()


def scales(model: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.state_dict().items() if ".scale." in name}


def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_freeze_scales_stops_and_resumes() -> None:
    """Behind steps with momentum, and with gradients of 0 instead of none."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=0.1)
    train(model, optimizer)
    freeze_scales(model)
    before, weight = scales(model), model[0].weight.detach().clone()
    train(model, optimizer)
    assert equal(before, scales(model))
    assert not torch.equal(weight, model[0].weight)
    unfreeze_scales(model)
    train(model, optimizer)
    after = scales(model)
    assert len(after) == 4
    assert not any(torch.equal(before[name], after[name]) for name in after)


def test_freeze_scales_keeps_function_state_and_export() -> None:
    model = network()
    train(model, torch.optim.SGD(model.parameters(), 0.001))
    x, frozen = random(4, 6), copy.deepcopy(model)
    freeze_scales(frozen)
    assert torch.equal(frozen(x), copy.deepcopy(model).eval()(x))
    assert list(frozen.state_dict()) == list(model.state_dict())
    fresh = network()
    fresh.load_state_dict(frozen.state_dict())
    assert all(parameter.requires_grad for parameter in fresh.parameters())
    files = [export(item, x).model.graph for item in (model, frozen)]
    assert [str(node) for node in files[0]] == [str(node) for node in files[1]]


def test_unfreeze_scales_keeps_requires_grad() -> None:
    model = network()
    model[0].weight_quantizer.scale.threshold.requires_grad_(False)
    for _ in range(2):
        freeze_scales(model)
    assert not any(
        parameter.requires_grad for name, parameter in model.named_parameters() if "scale" in name
    )
    for _ in range(2):
        unfreeze_scales(model)
    learned = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert "0.weight_quantizer.scale.threshold" not in learned
    assert "2.weight_quantizer.scale.threshold" in learned


def test_freeze_scales_of_parts_copies_and_calibration() -> None:
    model = calibrate(network(), [random(16, 6)])
    freeze_scales(model[0])
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for item in (copy.deepcopy(model), torch.load(stored, weights_only=False)):
        before = scales(item)
        calibrate(item, [random(16, 6) * 5])
        after = scales(item)
        same = {name for name in before if torch.equal(before[name], after[name])}
        assert {"0.weight_quantizer.scale.threshold", "0.input_quantizer.scale.threshold"} <= same
        assert "2.input_quantizer.scale.value" not in same


def test_freeze_scales_prevents_initialization() -> None:
    model = network()
    freeze_scales(model)
    with pytest.raises(RuntimeError, match="input_quantizer of layer '0' is not known yet"):
        model.train()(random(4, 6))
