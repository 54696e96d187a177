# SPDX-License-Identifier: Apache-2.0
"""Training with quantizers, eager and compiled."""

import copy
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from anybit.torch import nn, quantize_model  # noqa: E402  after the check for torch

functional = torch.nn.functional

# What weights and activations are, and by which factor training has to reduce the loss.
WORDS = [
    ("int8 per-channel", "uint8", 20),
    ("int4 per-channel narrow", "uint4", 20),
    ("int4 per-channel narrow power-of-two", "uint4 power-of-two", 20),
    ("int4 absmax", "uint4 ema", 20),
    ("ternary per-channel", "uint2", 15),
    ("bipolar per-channel", "uint2", 10),
    ("bipolar absmean", "uint1", 3),
    ("float8_e4m3fn absmax", "float8_e4m3fn absmax", 20),
    ("float4_e2m1fn per-channel", "float4_e2m1fn", 15),
]

pytestmark = pytest.mark.usefixtures("one_thread")


def blobs() -> tuple[Any, Any]:
    """Points in the plane that belong to four classes, as a lattice has them."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(256, 2, generator=generator) * 2 - 1
    return points, (points[:, 0] > 0).long() * 2 + (points[:, 1] > 0).long()


def network(weight: str, activation: str) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(2, 32),
        torch.nn.ReLU(),
        nn.QuantLinear(
            32, 32,
            weight_quantizer=nn.quantizer(weight),
            input_quantizer=nn.quantizer(activation),
        ),
        torch.nn.ReLU(),
        nn.QuantLinear(
            32, 4,
            weight_quantizer=nn.quantizer(weight),
            input_quantizer=nn.quantizer(activation),
        ),
    )  # fmt: skip


def train(model: Any, steps: int, learning_rate: float = 0.01) -> list[float]:
    points, classes = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    losses = []
    for _ in range(steps):
        loss = functional.cross_entropy(model(points), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("weight", "activation", "factor"), WORDS)
def test_training_reduces_the_loss(weight: str, activation: str, factor: float) -> None:
    model = network(weight, activation)
    model(blobs()[0])
    scales = {
        name: value.clone() for name, value in model.named_parameters() if "quantizer" in name
    }
    first, *_, last = train(model, 100)
    assert last < first / factor, (first, last)
    for name, before in scales.items():
        assert not torch.equal(model.get_parameter(name), before), name
    points, classes = blobs()
    accuracy = (model.eval()(points).argmax(1) == classes).float().mean().item()
    assert accuracy > 0.75


@pytest.mark.parametrize("learning_rate", [0.01, 0.001])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_training_with_one_learning_rate_for_weights_and_scales(
    bits: int, learning_rate: float
) -> None:
    """Adam steps by the learning rate: much for a scale in 8 bits, were it the parameter."""
    model = network(f"int{bits} per-channel", f"uint{bits}")
    train(model, 60, learning_rate)
    for layer in (model[2], model[4]):
        threshold = layer.weight_quantizer.scale.threshold
        reached = layer.weight.abs().amax(1) / threshold.abs()
        assert bool(((reached > 0.4) & (reached < 4)).all()), reached


@pytest.mark.parametrize(("weight", "activation", "_factor"), WORDS)
def test_training_compiled_equals_eager(weight: str, activation: str, _factor: float) -> None:
    """Compile one graph, from the first batch on, which initializes scales."""
    eager = network(weight, activation)
    compiled = copy.deepcopy(eager)
    torch._dynamo.reset()
    losses = train(torch.compile(compiled, fullgraph=True, backend="aot_eager"), 4)
    assert losses == train(eager, 4)
    for name, value in eager.state_dict().items():
        assert torch.equal(value, compiled.state_dict()[name]), name
    assert all(math.isfinite(loss) for loss in losses)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_training_compiled_by_inductor() -> None:
    eager = network("int4 per-channel narrow", "uint4 ema")
    compiled = copy.deepcopy(eager)
    torch._dynamo.reset()
    # Inductor may sum in another order.
    assert train(torch.compile(compiled, fullgraph=True), 3) == pytest.approx(
        train(eager, 3), rel=1e-4
    )


def test_training_compiled_with_other_batches() -> None:
    torch._dynamo.reset()
    model = network("int4 per-channel", "uint4")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    points, _ = blobs()
    for size in (256, 100, 7):
        assert torch.equal(compiled(points[:size]), model(points[:size]))


def test_training_with_activation_checkpointing_equals_without() -> None:
    from torch.utils.checkpoint import checkpoint

    points, classes = blobs()
    gradients = []
    for wrapped in (False, True):
        model = network("int4 per-channel", "uint4")
        model(points)
        result = checkpoint(model, points, use_reentrant=False) if wrapped else model(points)
        functional.cross_entropy(result, classes).backward()
        gradients.append([value.grad for value in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_training_with_checkpointing_counts_a_batch_once(use_reentrant: bool) -> None:
    """Use the scale of the first pass in the repeated one, with the same gradients."""
    from torch.utils.checkpoint import checkpoint

    def trained(repeat: bool) -> tuple[Any, list[Any]]:
        torch.manual_seed(0)
        model = quantize_model(
            torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)),
            {"weight": "int4", "activation": "int8 ema"},
        )
        gradients = []
        for step in range(3):
            x = torch.randn(8, 4, requires_grad=True) * (step + 1)
            y = checkpoint(model, x, use_reentrant=use_reentrant) if repeat else model(x)
            model.zero_grad()
            y.square().sum().backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        return [item.input_quantizer.scale.value for item in (model[0], model[2])], gradients

    (expected, wanted_gradients), (got, gradients) = trained(False), trained(True)
    assert all(torch.equal(one, other) for one, other in zip(expected, got, strict=True))
    for one, other in zip(wanted_gradients, gradients, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
