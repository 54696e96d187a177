# SPDX-License-Identifier: Apache-2.0
"""Data next to the end of float32: nothing that is computed of them overflows with a warning, which
these tests would end with."""

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


def up_to(reach: float, x: np.ndarray) -> np.ndarray:
    return x / np.abs(x).max() * np.float32(reach)


def layer() -> onnx.ModelProto:
    constants = {"w": random(16, 8, seed=3) / 100}
    nodes = [node("MatMul", "x w", "y", domain="", name="layer")]
    return model(nodes, constants, inputs={"x": ["rows", 16]}, opsets=OPSETS)


@pytest.mark.sample(6)
@pytest.mark.parametrize("reach", [1e30, 1e38, 3.3e38])
@pytest.mark.parametrize(
    ("words", "least"),
    [
        ({}, 35),
        ({"weights": "int4"}, 15),
        ({"activations": "uint8 power-of-two"}, 35),
        ({"weights": "mxfp4", "activations": "int16"}, 15),
        ({"effort": "fast"}, 35),
        ({"budget": "20dB"}, 20),
    ],
)
def test_a_layer_is_as_good_as_with_small_data(
    reach: float, words: dict[str, str], least: float
) -> None:
    x = up_to(reach, random(128, 16))
    found = anybit.quantize(layer(), x, **words)
    assert found.verdict.sqnr > least
    (reported,) = report_quantization(found, x).layers
    (activations,) = [each for each in reported.tensors if each.role == "activations"]
    assert activations.clipped < 0.1
    assert anybit.evaluate(layer(), found, data=x).models[1].sqnr > least
    # As it is found for small data.
    less = anybit.quantize(layer(), x * np.float32(2.0**-80), **words)
    assert found.verdict.sqnr == pytest.approx(less.verdict.sqnr, abs=0.01)


@pytest.mark.parametrize("words", [{"activations": "uint8 power-of-two"}, {"weights": "int4"}])
def test_what_is_infinite_once_it_is_quantized(words: dict[str, str]) -> None:
    """The end of a grid may lie beyond float32: weights are chosen by what does not become that."""
    data = [{"x": up_to(LARGEST, each["x"])} for each in data_for("recurrent")]
    found = anybit.quantize(NETWORKS["recurrent"](), data, **words)
    outputs = anybit.load(found.model).run(data[0])
    assert all(np.isfinite(each).all() for each in outputs.values())


def at_the_end() -> dict[str, np.ndarray]:
    x = up_to(LARGEST, random(128, 16))
    signs = np.where(x > 0, LARGEST, -LARGEST)
    return {"some": x, "positive": np.abs(x), "negative": -np.abs(x), "signs": signs}


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", at_the_end())
@pytest.mark.parametrize(
    ("words", "least"),
    [
        ({}, 35),
        ({"effort": "fast"}, 35),
        ({"activations": "uint8 power-of-two"}, 35),
        ({"activations": "int8 power-of-two"}, 35),
        # Numbers of both signs are cut off at half of what they go up to.
        ({"activations": "uint8 power-of-two", "effort": "fast"}, 5),
        ({"activations": "int8"}, 35),
        ({"activations": "int16"}, 35),
        ({"activations": "fp8_e4m3"}, 30),
        ({"activations": "fp8_e4m3 power-of-two"}, 15),
    ],
)
def test_nothing_becomes_infinite(name: str, words: dict[str, str], least: float) -> None:
    x = at_the_end()[name]
    found = anybit.quantize(layer(), x, **words)
    assert found.verdict is not None
    assert found.verdict.sqnr is not None
    assert found.verdict.sqnr > least
    (y,) = anybit.load(found.model).run({"x": x}).values()
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    "words",
    [
        *("int8", "uint8", "int8 narrow", "int2", "ternary", "bipolar", "int16", "fp8_e4m3"),
        *("int8 power-of-two", "uint8 power-of-two", "int2 power-of-two", "bipolar power-of-two"),
        *("fp8_e4m3 power-of-two", "e3m2 power-of-two", "int8 asymmetric power-of-two"),
    ],
)
@pytest.mark.parametrize("share", [1.0, 0.996, 0.75, 0.5, 0.1, 0.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ends_of_ranges_stay_finite(words: str, share: float, dtype: type) -> None:
    """Of several channels, next to others that have room; of scales a power of two stays one."""
    wanted = parse_quant_spec(words, "weights")
    reach = np.array([1.2, 1.0, 0.996, 1e-20]) * float(LARGEST)
    if dtype is np.float32:  # as weights have it
        reach = np.minimum(reach, float(LARGEST))
    for low, high in ((-share * reach, reach), (-reach, share * reach)):
        low, high = low.astype(dtype), high.astype(dtype)
        grid = make_grid(wanted, low, high)
        for end in (low, high):
            x = np.clip(end, -LARGEST, LARGEST).astype(np.float32)
            found = quantize_to_grid(x, grid)
            assert np.isfinite(found).all()
            # No worse than cut off at a quarter, where more than one value is to be had.
            assert (wanted.bits < 3) | (np.abs(x - found) <= 0.76 * np.abs(x).max()).all()
        if wanted.power_of_two:
            assert (np.frexp(grid.scale)[0] == 0.5).all()
        (alone,) = (make_grid(wanted, low[3:], high[3:]),)
        assert grid.scale[3] == alone.scale[0]


@pytest.mark.parametrize("words", ["int8", "uint8 asymmetric", "fp8_e4m3"])
def test_no_number_at_all_becomes_infinite(words: str) -> None:
    for reach in (0.98, 1.0, 1.1):
        high = np.array(reach * float(LARGEST))
        grid = make_grid(parse_quant_spec(words, "weights"), -high, high)
        assert np.isfinite(quantize_to_grid(np.array([-LARGEST, LARGEST]), grid)).all()
