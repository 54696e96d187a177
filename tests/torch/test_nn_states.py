# SPDX-License-Identifier: Apache-2.0
"""State dicts, copies and conversions of layers with quantizers."""

import copy
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch_layers import activations, all_quantizers, weights  # noqa: E402  needs torch

from anybit.torch import nn  # noqa: E402


@pytest.fixture
def trained() -> tuple[Any, Any]:
    """Return an initialized network in eval mode, and an input for it."""
    torch.manual_seed(0)
    x = torch.rand(5, 2, 6, 6)
    model = network()
    model(x)
    return model.eval(), x


def network() -> Any:
    return torch.nn.Sequential(
        nn.QuantConv2d(2, 4, 3, **all_quantizers(scale="ema")),
        torch.nn.ReLU(),
        nn.QuantConvTranspose2d(
            4,
            3,
            3,
            weight_quantizer=nn.FloatQuantizer("float4_e2m1fn", "per-channel", scale="absmax"),
            input_quantizer=activations(granularity="per-channel", power_of_two=True),
        ),
        torch.nn.Flatten(),
        nn.QuantLinear(
            108,
            2,
            weight_quantizer=nn.BipolarQuantizer("per-channel"),
            input_quantizer=nn.FloatQuantizer("float8_e4m3fn", scale=0.125),
            bias_quantizer=nn.IntQuantizer(8),
        ),
    )


@pytest.mark.parametrize("weights_only", [True, False])
def test_state_dict_loads_into_an_uninitialized_model(trained: Any, weights_only: bool) -> None:
    model, x = trained
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = network()
    fresh.load_state_dict(torch.load(file, weights_only=weights_only), strict=True)
    assert torch.equal(fresh.eval()(x), model(x))


def test_state_dict_loads_into_an_initialized_model(trained: Any) -> None:
    model, x = trained
    other = network()
    other(9 * x)
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(other.eval()(x), model(x))
    # A loaded scale is not started again by the next batch.
    other.train()
    other[2].input_quantizer(5 * torch.ones(1, 4, 4, 4))
    assert torch.equal(
        other[2].input_quantizer.scale.threshold, model[2].input_quantizer.scale.threshold
    )


def test_state_dict_of_an_uninitialized_model() -> None:
    fresh, other = network(), network()
    other(torch.rand(1, 2, 6, 6))
    other.load_state_dict(fresh.state_dict())
    with pytest.raises(RuntimeError, match="not known yet"):
        other.eval()(torch.rand(1, 2, 6, 6))
    other.train()(torch.rand(1, 2, 6, 6))
    assert not any(bool(value.isnan().any()) for value in other.state_dict().values())


def test_averaged_model_of_an_uninitialized_model(trained: Any) -> None:
    """Values that are written into the parameters, as ranks do too: no state dict is loaded."""
    model, x = trained
    for mode in (True, False):
        average = torch.optim.swa_utils.AveragedModel(network(), use_buffers=True)
        average.update_parameters(model)
        assert torch.equal(average.train(mode)(9 * x), model(9 * x)) == (not mode)
        name = "module.2.input_quantizer.scale.threshold"
        assert torch.equal(average.get_parameter(name), model[2].input_quantizer.scale.threshold)


def test_state_dict_loads_with_assign(trained: Any) -> None:
    model, x = trained
    with torch.device("meta"):
        empty = network()
    empty.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    assert torch.equal(empty.eval()(x), model(x))


def test_state_dict_of_a_float_model_initializes_weight_scales() -> None:
    """Scales that are missing are taken from the weights that have just been loaded."""
    quantizers = {"weight_quantizer": weights(), "input_quantizer": activations(scale=0.1)}
    layer = nn.QuantLinear(6, 5, **quantizers)
    source = torch.nn.Linear(6, 5)
    with torch.no_grad():
        source.weight.mul_(100)
    missing = layer.load_state_dict(source.state_dict(), strict=False).missing_keys
    assert sorted(missing) == ["input_quantizer.scale.value", "weight_quantizer.scale.threshold"]
    expected = nn.QuantLinear(6, 5, weight_quantizer=weights())
    expected.weight = source.weight
    expected.weight_quantizer.initialize(source.weight)
    assert torch.equal(
        layer.weight_quantizer(layer.weight), expected.weight_quantizer(source.weight)
    )
    # Fixed scales stay.
    assert layer.input_quantizer.scale(torch.ones(1)).item() == pytest.approx(0.1)
    with pytest.raises(RuntimeError, match=r"Missing key.*weight_quantizer\.scale\.threshold"):
        layer.load_state_dict(source.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_models_are_equal(trained: Any, copied: Any) -> None:
    model, x = trained
    twin = copied(model)
    assert torch.equal(twin(x), model(x))
    with torch.no_grad():
        twin[2].input_quantizer.scale.threshold.mul_(2)
    assert not torch.equal(twin(x), model(x))


def test_copies_of_uninitialized_models() -> None:
    x = torch.rand(3, 2, 6, 6)
    model = network()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))


def test_models_convert_to_other_dtypes(trained: Any) -> None:
    model, x = trained
    double = copy.deepcopy(model).double()
    result = double(x.double())
    assert result.dtype == torch.float64
    assert all(value.dtype == torch.float64 for value in double.state_dict().values())
    # In float32 some sums may round to another code of the next quantizer.
    assert (result.float() - model(x)).abs().max() < 1
    assert copy.deepcopy(model).bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16


def test_layers_in_float64_have_float64_scales() -> None:
    layer = nn.QuantLinear(3, 2, weight_quantizer=weights(), dtype=torch.float64)
    assert layer.weight_quantizer.scale.threshold.dtype == torch.float64


def test_layers_do_not_read_values_of_initialized_scales(trained: Any) -> None:
    """Use the meta device, which has no values."""
    model, x = trained
    for mode in (True, False):
        assert model.to("meta").train(mode)(x.to("meta")).shape == (5, 2)


def test_torch_export_of_a_model_equals_eager(trained: Any) -> None:
    model, x = trained
    batch = torch.export.Dim("batch")
    for strict in (False, True):
        program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},), strict=strict)
        assert torch.equal(program.module()(x), model(x))
        assert torch.equal(program.module()(x[:2]), model(x[:2]))
