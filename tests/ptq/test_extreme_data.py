# SPDX-License-Identifier: Apache-2.0
"""Data near the largest float32, without overflow.

Warnings of NumPy are errors in these tests.
"""

import numpy as np
import onnx
import pytest
from float_models import NETWORKS, OPSETS, data_for
from pass_checks import random
from small_models import model, node

import anybit
from anybit.inspection import report_quantization
from anybit.ptq.specs.quantize import quantize_to_grid
from anybit.ptq.specs.spec_grid import make_grid
from anybit.quant_types.spec import parse_quant_spec

LARGEST = np.finfo(np.float32).max


def scale_to_reach(reach: float, x: np.ndarray) -> np.ndarray:
    return x / np.abs(x).max() * np.float32(reach)


def make_layer() -> onnx.ModelProto:
    constants = {"w": random(16, 8, seed=3) / 100}
    nodes = [node("MatMul", "x w", "y", domain="", name="layer")]
    return model(nodes, constants, inputs={"x": ["rows", 16]}, opsets=OPSETS)


@pytest.mark.sample(6)
@pytest.mark.parametrize("reach", [1e30, 1e38, 3.3e38])
@pytest.mark.parametrize(
    ("options", "least_sqnr"),
    [
        ({}, 35),
        ({"weights": "int4"}, 15),
        ({"activations": "uint8 power-of-two"}, 35),
        ({"weights": "mxfp4", "activations": "int16"}, 15),
        ({"effort": "fast"}, 35),
        ({"budget": "20dB"}, 20),
    ],
)
def test_quantize_is_as_accurate_for_large_data_as_for_small(
    reach: float, options: dict[str, str], least_sqnr: float
) -> None:
    x = scale_to_reach(reach, random(128, 16))
    result = anybit.quantize(make_layer(), x, **options)
    assert result.verdict.sqnr > least_sqnr
    (reported,) = report_quantization(result, x).layers
    (activations,) = [tensor for tensor in reported.tensors if tensor.role == "activations"]
    assert activations.clipped < 0.1
    assert anybit.evaluate(make_layer(), result, data=x).models[1].sqnr > least_sqnr
    small = anybit.quantize(make_layer(), x * np.float32(2.0**-80), **options)
    assert result.verdict.sqnr == pytest.approx(small.verdict.sqnr, abs=0.01)


@pytest.mark.parametrize("options", [{"activations": "uint8 power-of-two"}, {"weights": "int4"}])
def test_quantize_keeps_recurrent_outputs_of_extreme_data_finite(options: dict[str, str]) -> None:
    """Quantize data for which the end of a grid may exceed float32."""
    data = [{"x": scale_to_reach(LARGEST, sample["x"])} for sample in data_for("recurrent")]
    result = anybit.quantize(NETWORKS["recurrent"](), data, **options)
    outputs = anybit.load(result.model).run(data[0])
    assert all(np.isfinite(output).all() for output in outputs.values())


def make_extreme_data() -> dict[str, np.ndarray]:
    x = scale_to_reach(LARGEST, random(128, 16))
    signs = np.where(x > 0, LARGEST, -LARGEST)
    return {"some": x, "positive": np.abs(x), "negative": -np.abs(x), "signs": signs}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", make_extreme_data())
@pytest.mark.parametrize(
    ("options", "least_sqnr"),
    [
        ({}, 35),
        ({"effort": "fast"}, 35),
        ({"activations": "uint8 power-of-two"}, 35),
        ({"activations": "int8 power-of-two"}, 35),
        # Values of both signs are clipped at half of their range.
        ({"activations": "uint8 power-of-two", "effort": "fast"}, 5),
        ({"activations": "int8"}, 35),
        ({"activations": "int16"}, 35),
        ({"activations": "fp8_e4m3"}, 30),
        ({"activations": "fp8_e4m3 power-of-two"}, 15),
    ],
)
def test_quantize_keeps_outputs_of_extreme_data_finite(
    name: str, options: dict[str, str], least_sqnr: float
) -> None:
    x = make_extreme_data()[name]
    result = anybit.quantize(make_layer(), x, **options)
    assert result.verdict is not None
    assert result.verdict.sqnr is not None
    assert result.verdict.sqnr > least_sqnr
    (y,) = anybit.load(result.model).run({"x": x}).values()
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    "text",
    [
        *("int8", "uint8", "int8 narrow", "int2", "ternary", "bipolar", "int16", "fp8_e4m3"),
        *("int8 power-of-two", "uint8 power-of-two", "int2 power-of-two", "bipolar power-of-two"),
        *("fp8_e4m3 power-of-two", "e3m2 power-of-two", "int8 asymmetric power-of-two"),
    ],
)
@pytest.mark.parametrize("share", [1.0, 0.996, 0.75, 0.5, 0.1, 0.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_make_grid_keeps_the_ends_of_ranges_finite(text: str, share: float, dtype: type) -> None:
    """Check several channels at once; scales that are powers of two stay so."""
    spec = parse_quant_spec(text, "weights")
    reach = np.array([1.2, 1.0, 0.996, 1e-20]) * float(LARGEST)
    if dtype is np.float32:  # the dtype of weights
        reach = np.minimum(reach, float(LARGEST))
    for low, high in ((-share * reach, reach), (-reach, share * reach)):
        low, high = low.astype(dtype), high.astype(dtype)
        grid = make_grid(spec, low, high)
        for end in (low, high):
            x = np.clip(end, -LARGEST, LARGEST).astype(np.float32)
            rounded = quantize_to_grid(x, grid)
            assert np.isfinite(rounded).all()
            # From 3 bits on, at most three quarters of the largest value are clipped.
            assert (spec.bits < 3) | (np.abs(x - rounded) <= 0.76 * np.abs(x).max()).all()
        if spec.power_of_two:
            assert (np.frexp(grid.scale)[0] == 0.5).all()
        (alone,) = (make_grid(spec, low[3:], high[3:]),)
        assert grid.scale[3] == alone.scale[0]


@pytest.mark.parametrize("spec", ["int8", "uint8 asymmetric", "fp8_e4m3"])
def test_make_grid_keeps_the_largest_numbers_finite(spec: str) -> None:
    for reach in (0.98, 1.0, 1.1):
        high = np.array(reach * float(LARGEST))
        grid = make_grid(parse_quant_spec(spec, "weights"), -high, high)
        assert np.isfinite(quantize_to_grid(np.array([-LARGEST, LARGEST]), grid)).all()
