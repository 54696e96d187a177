# SPDX-License-Identifier: Apache-2.0
"""Evaluated models have the same outputs in all runtimes: `anybit`, compiled, and ONNX Runtime.

Three cases are listed in which float outputs differ, and no others:

* sums of products whose scales are not powers of two, or whose codes have 16 bits, are rounded
  after each addition by float kernels, and once, or not at all, by a compiled layer: last bits
  differ;
* where such a sum lies on the border of two codes of the next layer, the runtimes take one each: a
  few rows differ by the effect of one step on the outputs;
* ONNX Runtime without its optimizer multiplies weights from a DequantizeLinear with another kernel
  than constants. It adds in another order.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from float_models import NETWORKS, data_for
from places import ROOT

import anybit

_LAST_BITS = 3e-6
"""A few roundings of float32, relative to the largest element."""
_ONE_STEP, _FEW = 0.01, 0.02
"""The effect of one step, relative to the largest element; and the share of such rows."""
_EXACT_BITS = 16
"""Bits of products whose sums float32 holds exactly: 8 of its 24 bits remain for the sum."""

NAMES = ["digits", *NETWORKS]
POWERS = [
    ("int8 power-of-two", "uint8 power-of-two"),
    ("int4 per-tensor power-of-two", "int8 power-of-two"),
    ("ternary power-of-two", "uint4 power-of-two"),
]
OTHERS = [
    ("int8", "uint8"),
    ("fp8_e4m3", "fp8_e4m3"),
    ("int4 per-block 32", "uint8"),
    ("e3m2", "e3m2"),
]


def cases(formats: list[tuple[str, str]]) -> list[Any]:
    """Return all formats for the digits, the first two for other networks; most are slow."""
    parameters = []
    for name in NAMES:
        for at, (weights, activations) in enumerate(formats):
            if name == "digits" or at < 2:
                slow = () if (name == "digits" and at < 2) or at == 0 else pytest.mark.slow
                parameters.append(pytest.param(name, weights, activations, marks=slow))
    return parameters


def source(name: str) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Return a float model, calibration data and inputs."""
    if name == "digits":
        with np.load(ROOT / "examples" / "digits.npz") as arrays:
            rows = arrays["x"]
        return ROOT / "examples" / "digits_float.onnx", rows[:40], {"x": rows}
    return NETWORKS[name](), data_for(name, 12), data_for(name)[20]


def without_optimizer(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def deployed(
    name: str, weights: str, activations: str, folder: Path, budget: str | None = None
) -> tuple[dict[str, np.ndarray], bool]:
    """Return the outputs of each runtime, and whether all products of codes have few bits."""
    model, data, feeds = source(name)
    options = {"weights": weights, "activations": activations, "budget": budget}
    quantized = anybit.quantize(model, data, **options)
    if budget is not None:
        assert min(layer.activation_bits for layer in quantized.layers) < 8
    conversion = anybit.convert(quantized, to="qdq")
    assert conversion.exact
    conversion.save(folder / "qdq.onnx")
    quantized.save(folder / "q.onnx")
    compiled = anybit.compile(quantized)
    (evaluated,) = anybit.load(folder / "q.onnx").run(feeds).values()
    (integers,) = compiled.run(feeds).values()
    (native,) = without_optimizer(folder / "qdq.onnx", feeds)
    products = [layer.weight_bits + layer.activation_bits for layer in quantized.layers]
    outputs = {"evaluated": evaluated, "compiled": integers, "qdq": native}
    return outputs, max(products) <= _EXACT_BITS


def assert_equal(outputs: dict[str, np.ndarray]) -> None:
    for runtime in ("compiled", "qdq"):
        np.testing.assert_array_equal(outputs[runtime], outputs["evaluated"], strict=True)


def assert_close(outputs: dict[str, np.ndarray]) -> None:
    largest = np.abs(outputs["evaluated"]).max()
    for runtime in ("compiled", "qdq"):
        difference = np.abs(outputs[runtime] - outputs["evaluated"]).max(axis=-1)
        assert difference.max() <= _ONE_STEP * largest, runtime
        assert np.count_nonzero(difference > _LAST_BITS * largest) <= _FEW * difference.size


@pytest.mark.parametrize(("name", "weights", "activations"), cases(POWERS))
def test_exact_sums_have_the_same_bits_in_all_runtimes(
    name: str, weights: str, activations: str, tmp_path: Path
) -> None:
    outputs, _ = deployed(name, weights, activations, tmp_path)
    assert_equal(outputs)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", ["25%bops", pytest.param("60%bops", marks=pytest.mark.slow)])
def test_mixed_precision_has_the_same_bits_in_all_runtimes(
    name: str, budget: str, tmp_path: Path
) -> None:
    outputs, is_exact = deployed(name, *POWERS[0], tmp_path, budget)
    (assert_equal if is_exact else assert_close)(outputs)


@pytest.mark.parametrize(("name", "weights", "activations"), cases(OTHERS))
def test_rounded_sums_differ_by_last_bits_or_one_step(
    name: str, weights: str, activations: str, tmp_path: Path
) -> None:
    outputs, _ = deployed(name, weights, activations, tmp_path)
    assert_close(outputs)
    if name != "convolutions":  # which ends with a Gemm of one row
        np.testing.assert_array_equal(outputs["qdq"], outputs["evaluated"], strict=True)


def test_evaluate_compares_compiled_models_with_a_float_reference() -> None:
    model, data, _ = source("digits")
    quantized = anybit.quantize(model, data, effort="fast")
    compiled, plain = (
        anybit.evaluate(model, quantized, data=data, metric="sqnr", engine=engine).models[1].sqnr
        for engine in ("compiled", "onnxruntime")
    )
    assert compiled is not None
    assert plain is not None
    assert compiled == pytest.approx(plain, abs=0.1)
