# SPDX-License-Identifier: Apache-2.0
"""Scales stop to change, and go on."""

import copy
import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from anybit.torch import calibrate, export, quantize_model  # noqa: E402
from anybit.torch.nn import freeze_scales, unfreeze_scales  # noqa: E402


def random(*shape: int, seed: int = 1) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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
    return {name: each.clone() for name, each in model.state_dict().items() if ".scale." in name}


def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(torch.equal(each, second[name]) for name, each in first.items())


def test_they_stop_and_go_on() -> None:
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


def test_the_function_the_state_and_the_file_are_the_same() -> None:
    model = network()
    train(model, torch.optim.SGD(model.parameters(), 0.001))
    x, frozen = random(4, 6), copy.deepcopy(model)
    freeze_scales(frozen)
    assert torch.equal(frozen(x), copy.deepcopy(model).eval()(x))
    assert list(frozen.state_dict()) == list(model.state_dict())
    fresh = network()
    fresh.load_state_dict(frozen.state_dict())
    assert all(each.requires_grad for each in fresh.parameters())
    files = [export(each, x).model.graph for each in (model, frozen)]
    assert [str(node) for node in files[0]] == [str(node) for node in files[1]]


def test_what_was_not_learned_is_not_learned_afterwards() -> None:
    model = network()
    model[0].weight_quantizer.scale.threshold.requires_grad_(False)
    for _ in range(2):
        freeze_scales(model)
    assert not any(each.requires_grad for name, each in model.named_parameters() if "scale" in name)
    for _ in range(2):
        unfreeze_scales(model)
    learned = [name for name, each in model.named_parameters() if each.requires_grad]
    assert "0.weight_quantizer.scale.threshold" not in learned
    assert "2.weight_quantizer.scale.threshold" in learned


def test_parts_copies_and_calibration() -> None:
    model = calibrate(network(), [random(16, 6)])
    freeze_scales(model[0])
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for each in (copy.deepcopy(model), torch.load(stored, weights_only=False)):
        before = scales(each)
        calibrate(each, [random(16, 6) * 5])
        after = scales(each)
        same = {name for name in before if torch.equal(before[name], after[name])}
        assert {"0.weight_quantizer.scale.threshold", "0.input_quantizer.scale.threshold"} <= same
        assert "2.input_quantizer.scale.value" not in same


def test_a_frozen_scale_does_not_start() -> None:
    model = network()
    freeze_scales(model)
    with pytest.raises(RuntimeError, match="input_quantizer of layer '0' is not known yet"):
        model.train()(random(4, 6))
