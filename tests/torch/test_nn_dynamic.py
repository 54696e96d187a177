# SPDX-License-Identifier: Apache-2.0
"""Dynamic scales in modules: the bits, nodes and gradients of `anybit.quantize`."""

import copy
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from dynamic_graphs import make_quantizer_graph
from pass_checks import random

import anybit
from anybit import ModelError
from anybit.ops.int_quant import get_codes
from anybit.ptq.specs.dynamic_grid import DynamicIntegerGrid
from anybit.ptq.specs.quantize import quantize_to_grid

torch = pytest.importorskip("torch")

from anybit.torch import calibrate, export, nn, quantize_model  # noqa: E402
from anybit.torch.nn._dynamic_scale import _find_largest_scale  # noqa: E402
from anybit.torch.nn._words import format_spec  # noqa: E402

SPECS = (
    *("int8 dynamic", "int8 dynamic per-tensor"),
    *("uint8 dynamic", "uint8 dynamic per-tensor"),
)
SHAPES = [((2, 5), (1,)), ((7,), (0,)), ((2, 3, 5), (2,)), ((2, 3, 4, 5), (3,)), ((0, 4), (1,))]


def make_rows() -> np.ndarray:
    """Return rows of all magnitudes, with zeros, subnormals, largest and special numbers."""
    generator = np.random.default_rng(0)
    rows = [generator.standard_normal(24) * 2.0**exponent for exponent in (-40, -3, 0, 5, 120)]
    rows += [np.zeros(24), np.full(24, -0.0), np.append(np.zeros(23), np.finfo(np.float32).max)]
    rows += [generator.integers(-40, 41, 24) * 2.0**exponent for exponent in (-149, -140, -133)]
    rows += [np.append(generator.integers(-127, 128, 23) / 2, 127.0)]
    rows += [np.append(rows[2][:23], special) for special in (np.nan, np.inf, -np.inf)]
    rows += [generator.standard_normal(24) for _ in range(40)]
    return np.stack(rows).astype(np.float32)


def equal_bits(result: Any, expected: np.ndarray) -> bool:
    """Return whether two arrays are equal, including the signs of zeros; any NaN is equal."""
    array = np.asarray(result.detach() if isinstance(result, torch.Tensor) else result)
    same = (array.view(np.int32) == expected.view(np.int32)) | (
        np.isnan(array) & np.isnan(expected)
    )
    return array.shape == expected.shape and bool(same.all())


def list_operators(network: ir.Model) -> list[str]:
    return [operation.op_type for operation in network.graph]


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 12, 16])
@pytest.mark.parametrize("sign", ["", "u"])
@pytest.mark.parametrize("narrow", ["", " narrow"])
@pytest.mark.parametrize("granularity", ["", " per-tensor"])
def test_dynamic_quantizer_has_the_bits_of_post_training_quantization(
    bits: int, sign: str, narrow: str, granularity: str
) -> None:
    x = make_rows()
    x = x[:5] if granularity else x
    axes = () if granularity else (1,)
    grid = DynamicIntegerGrid(get_codes(bits, not sign, bool(narrow)), bool(sign), axes)
    quantizer = nn.quantizer(f"{sign}int{bits} dynamic{narrow}{granularity}")
    expected = quantize_to_grid(x, grid)
    assert equal_bits(quantizer(torch.from_numpy(x)), expected)
    assert equal_bits(quantizer.eval()(torch.from_numpy(x)), expected)
    assert equal_bits(
        anybit.load(make_quantizer_graph(grid, [None] * x.ndim)).run(x)["y"], expected
    )


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_dynamic_quantizer_supports_all_shapes(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    x = random(*shape)
    grid = DynamicIntegerGrid(range(-128, 128), False, axes)
    result = nn.quantizer("int8 dynamic")(torch.from_numpy(x))
    assert equal_bits(result, quantize_to_grid(x, grid))


@pytest.mark.parametrize("spec", SPECS)
def test_exported_dynamic_quantizer_has_the_nodes_of_post_training_quantization(spec: str) -> None:
    x = make_rows()
    axes = () if "per-tensor" in spec else (1,)
    unsigned = spec.startswith("u")
    codes = range(256) if unsigned else range(-128, 128)
    expected = make_quantizer_graph(DynamicIntegerGrid(codes, unsigned, axes), [None] * x.ndim)
    quantizer = nn.quantizer(spec)
    exported = export(quantizer, torch.from_numpy(x)).model
    assert list_operators(exported) == list_operators(expected)[:-1]
    (output,) = anybit.load(exported).run(x).values()
    assert equal_bits(output, anybit.load(expected).run(x)["y"])
    assert equal_bits(quantizer(torch.from_numpy(x)), np.asarray(output))


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 127, 255, 32767, 65535])
def test_dynamic_scale_has_the_largest_scale_of_post_training_quantization(steps: int) -> None:
    expected = DynamicIntegerGrid(range(steps + 1), True, ()).largest_scale
    assert _find_largest_scale(steps, torch.float32) == expected


def make_identity(layer: Any) -> Any:
    """Give a layer weights whose outputs are its inputs, so that sums are exact."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        size = layer.weight.shape[0]
        layer.weight.reshape(size, size, -1)[:, :, 0] = torch.eye(size)
    return layer


LAYERS = [
    (torch.nn.Linear(6, 6), (4, 6)),
    (torch.nn.Linear(6, 6), (2, 4, 6)),
    (torch.nn.Conv1d(3, 3, 1), (4, 3, 7)),
    (torch.nn.Conv2d(3, 3, 1), (4, 3, 5, 6)),
    (torch.nn.ConvTranspose2d(3, 3, 1), (4, 3, 5, 6)),
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_layers_with_dynamic_inputs_equal_post_training_quantization(
    layer: Any, shape: tuple[int, ...], spec: str
) -> None:
    network = torch.nn.Sequential(make_identity(copy.deepcopy(layer)))
    x = torch.from_numpy(random(*shape))
    quantized = quantize_model(network, {"activation": spec})
    expected = quantized(x)
    assert torch.equal(quantized.eval()(x), expected)
    assert not torch.equal(expected, x)
    floats = export(network, x).model
    reference = anybit.quantize(floats, weights="float", activations=spec).model
    exported = export(quantized, x).model
    for form in (reference, exported):
        (output,) = anybit.load(form).run(x.numpy()).values()
        assert np.array_equal(output, expected.detach().numpy())
    assert list_operators(exported) == list_operators(reference)


@pytest.mark.parametrize("spec", SPECS)
def test_dynamic_quantizer_passes_gradients_through(spec: str) -> None:
    """Differences over whole steps, with the scale of the row, have the slope 1."""
    x = torch.from_numpy(random(40, 24)).requires_grad_()
    quantizer, lowest = nn.quantizer(spec), 0 if spec.startswith("u") else -128
    upstream = torch.from_numpy(random(40, 24))
    (gradient,) = torch.autograd.grad(quantizer(x), x, upstream)
    assert torch.equal(gradient, upstream)
    with torch.no_grad():
        wide = x.double()
        scale, zeropt = quantizer.scale.fit(x)
        zeropt = torch.zeros(()) if zeropt is None else zeropt
        scale, zeropt = scale.double(), zeropt.double()
        codes = torch.round(wide / scale + zeropt)
        inside = (codes > lowest + 10) & (codes < lowest + 246)
        step = 8 * scale
        above, below = (
            quantizer._quantize(shifted, scale, zeropt) for shifted in (wide + step, wide - step)
        )
        slope = ((above - below) / (2 * step))[inside]
    assert torch.allclose(slope, torch.ones_like(slope), rtol=0, atol=1e-9)


def test_model_with_dynamic_activations_trains_without_calibration() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    spec = {"weight": "int8 per-channel narrow", "activation": "int8 dynamic"}
    quantized = quantize_model(network, spec)
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)
    optimizer = torch.optim.Adam(quantized.parameters(), 0.01)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.mse_loss(quantized(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 10
    assert torch.equal(quantized.eval()(x), quantized.train()(x))
    assert not [name for name in quantized.state_dict() if "input_quantizer" in name]
    other = quantize_model(network, spec)
    other.load_state_dict(quantized.state_dict())
    assert torch.equal(other(x), quantized(x))


def test_calibrate_skips_dynamic_scales() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(8, 4))
    x = torch.from_numpy(random(16, 8))
    quantized = quantize_model(network, {"weight": "int8", "activation": "int8 dynamic"})
    inputs = quantized[0].input_quantizer
    expected = inputs(x)
    calibrate(quantized, [x])
    assert torch.equal(inputs(x), expected)
    alone = quantize_model(network, {"activation": "int8 dynamic"})
    with pytest.raises(ModelError, match="no quantizers with scales to set"):
        calibrate(alone, [x])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", SPECS[::2])
def test_compiled_dynamic_quantizer_has_the_same_bits(spec: str, backend: str) -> None:
    x = torch.from_numpy(make_rows())
    quantizer = nn.quantizer(spec)
    expected = quantizer(x).numpy()
    compiled = torch.compile(quantizer, backend=backend, fullgraph=True)
    assert equal_bits(compiled(x), expected)
    program = torch.export.export(quantizer.eval(), (x,))
    assert equal_bits(program.module()(x), expected)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dynamic_quantizer_keeps_the_dtype(dtype: str) -> None:
    x = torch.from_numpy(random(4, 9)).to(getattr(torch, dtype))
    result = nn.quantizer("int8 dynamic")(x)
    assert result.dtype == x.dtype
    error = (result - x).double().abs().amax(1)
    assert bool((error <= x.double().abs().amax(1) / 127 * 0.75).all())


def test_dynamic_products_reduce_rows_and_columns() -> None:
    x, y = torch.from_numpy(random(2, 3, 5)), torch.from_numpy(random(2, 5, 4))
    product = nn.QuantMatMul(nn.quantizer("int8 dynamic"))
    quantizer = nn.quantizer("int8 dynamic")
    rows, columns = quantizer(x), quantizer(y.transpose(1, 2)).transpose(1, 2)
    assert torch.equal(product(x, y), rows @ columns)
    other = nn.QuantMatMul(quantizer, other_quantizer=nn.quantizer("int8 dynamic"))
    assert torch.equal(other(x, y), rows @ columns)


@pytest.mark.parametrize("spec", SPECS)
def test_attention_and_recurrent_layers_take_dynamic_inputs(spec: str) -> None:
    torch.manual_seed(0)
    attention = quantize_model(
        torch.nn.MultiheadAttention(8, 2, batch_first=True), {"activation": spec}
    )
    x = torch.from_numpy(random(2, 5, 8))
    assert attention.probability_quantizer.signed == spec.startswith("int8")
    output = attention.eval()(x, x, x)[0]
    assert torch.equal(attention.train()(x, x, x)[0], output)
    recurrent = quantize_model(torch.nn.LSTM(8, 4, batch_first=True), {"activation": spec})
    plain = torch.nn.LSTM(8, 4, batch_first=True)
    plain.load_state_dict(recurrent.state_dict())
    assert torch.equal(recurrent(x)[0], plain(nn.quantizer(spec)(x))[0])
    total = nn.QuantAdd(nn.quantizer("int8 dynamic per-tensor"))(x, x)
    assert torch.equal(total, 2 * nn.quantizer("int8 dynamic per-tensor")(x))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("int1 dynamic", "BipolarQuantizer"),
        ("int17 dynamic", "2 to 16 bits, got 17"),
        ("int8 dynamic per-channel", "need one scale"),
        ("int8 dynamic power-of-two", "not powers of two"),
        ("fp8_e4m3 dynamic", "dynamic is for integers"),
        ("bipolar dynamic", "dynamic is for integers"),
        ("int8 dynamic learned", "sets scale twice"),
    ],
)
def test_quantizer_rejects_dynamic_specs(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nn.quantizer(spec)


def test_layers_reject_dynamic_parameters_and_shared_rows() -> None:
    dynamic = nn.quantizer("int8 dynamic")
    with pytest.raises(ValueError, match="not for weight_quantizer"):
        nn.QuantLinear(4, 4, weight_quantizer=dynamic)
    with pytest.raises(ValueError, match="not for bias_quantizer"):
        nn.QuantLinear(4, 4, bias_quantizer=dynamic)
    with pytest.raises(ValueError, match=r"accumulator.*per-tensor"):
        nn.QuantLinear(
            4,
            4,
            weight_quantizer=nn.quantizer("int8"),
            input_quantizer=dynamic,
            bias_quantizer=nn.quantizer("int32 accumulator"),
        )
    with pytest.raises(ValueError, match="int8 dynamic per-tensor"):
        nn.QuantAdd(dynamic)
    unsigned = nn.quantizer("uint8 dynamic per-tensor")
    with pytest.raises(ValueError, match="zero-point"):
        nn.QuantAdd(unsigned)
    with pytest.raises(ValueError, match="leave the scale out"):
        unsigned(torch.ones(3), torch.ones(()))
    with pytest.raises(ValueError, match="inputs without a zero-point"):
        nn.QuantLinear(
            4,
            4,
            weight_quantizer=nn.quantizer("int8"),
            input_quantizer=unsigned,
            bias_quantizer=nn.quantizer("int32 accumulator"),
        )
    with pytest.raises(ValueError, match='needs scale="dynamic"'):
        nn.IntQuantizer(8, granularity="per-row")
    with pytest.raises(ValueError, match="zeropt=1"):
        nn.IntQuantizer(8, scale="dynamic", zeropt=1)


def test_describe_reports_dynamic_specs() -> None:
    assert format_spec(nn.quantizer("int8 dynamic")) == "int8 dynamic"
    assert format_spec(nn.quantizer("int4 narrow dynamic")) == "int4 narrow dynamic"
    assert format_spec(nn.quantizer("int8 dynamic per-tensor")) == "int8 per-tensor dynamic"
