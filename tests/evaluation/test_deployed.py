# SPDX-License-Identifier: Apache-2.0
"""What was evaluated is what runs: as QONNX, compiled, and as QuantizeLinear in plain ONNX Runtime.

Three cases are listed in which float outputs differ, and no others:

* sums of products whose scales are not powers of two are rounded after each addition by float
  kernels, and once, or not at all, by a compiled layer: last bits differ;
* where such a sum lies on the border of two codes of the next layer, these get one each: a few
  rows differ by what one step of a code makes of the outputs;
* ONNX Runtime without its optimizer multiplies weights from a DequantizeLinear with another kernel
  than constants, which adds in another order.
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
"""Of the largest element: a few roundings of float32."""
_ONE_STEP, _FEW = 0.01, 0.02
"""Of the largest element, what a step of a code inside is worth; and the share of such rows."""

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
    """All formats for the digits, the first two for the others; most of them are slow."""
    found = []
    for name in NAMES:
        for at, (weights, activations) in enumerate(formats):
            if name == "digits" or at < 2:
                slow = () if (name == "digits" and at < 2) or at == 0 else pytest.mark.slow
                found.append(pytest.param(name, weights, activations, marks=slow))
    return found


def source(name: str) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """A float model, data to calibrate with, and what to run."""
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
) -> dict[str, np.ndarray]:
    model, data, feeds = source(name)
    options = {"weights": weights, "activations": activations, "budget": budget}
    found = anybit.quantize(model, data, **options)
    if budget is not None:
        assert min(each.activation_bits for each in found.layers) < 8
    conversion = anybit.convert(found, to="qdq")
    assert conversion.exact
    conversion.save(folder / "qdq.onnx")
    found.save(folder / "q.onnx")
    compiled = anybit.compile(found)
    (evaluated,) = anybit.load(folder / "q.onnx").run(feeds).values()
    (integers,) = compiled.run(feeds).values()
    (native,) = without_optimizer(folder / "qdq.onnx", feeds)
    return {"evaluated": evaluated, "compiled": integers, "qdq": native}


@pytest.mark.parametrize(("name", "weights", "activations"), cases(POWERS))
def test_sums_that_are_exact_are_the_same_bits(
    name: str, weights: str, activations: str, tmp_path: Path
) -> None:
    found = deployed(name, weights, activations, tmp_path)
    for each in ("compiled", "qdq"):
        np.testing.assert_array_equal(found[each], found["evaluated"], strict=True)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", ["25%bops", pytest.param("60%bops", marks=pytest.mark.slow)])
def test_mixes_of_few_bits_are_the_same_bits(name: str, budget: str, tmp_path: Path) -> None:
    found = deployed(name, *POWERS[0], tmp_path, budget)
    for each in ("compiled", "qdq"):
        np.testing.assert_array_equal(found[each], found["evaluated"], strict=True)


@pytest.mark.parametrize(("name", "weights", "activations"), cases(OTHERS))
def test_sums_that_floats_round(name: str, weights: str, activations: str, tmp_path: Path) -> None:
    found = deployed(name, weights, activations, tmp_path)
    largest = np.abs(found["evaluated"]).max()
    for each in ("compiled", "qdq"):
        difference = np.abs(found[each] - found["evaluated"]).max(axis=-1)
        assert difference.max() <= _ONE_STEP * largest, each
        assert np.count_nonzero(difference > _LAST_BITS * largest) <= _FEW * difference.size, each
    if name != "convolutions":  # which ends with a Gemm of one row
        np.testing.assert_array_equal(found["qdq"], found["evaluated"], strict=True)


def test_evaluate_runs_a_float_reference_beside_compiled_models() -> None:
    model, data, _ = source("digits")
    found = anybit.quantize(model, data, effort="fast")
    compiled, plain = (
        anybit.evaluate(model, found, data=data, metric="sqnr", engine=engine).models[1].sqnr
        for engine in ("compiled", "onnxruntime")
    )
    assert compiled is not None
    assert plain is not None
    assert compiled == pytest.approx(plain, abs=0.1)
