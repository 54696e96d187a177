# SPDX-License-Identifier: Apache-2.0
"""Remarks on layers in front of a logarithm."""

import numpy as np
import onnx
import pytest
from pass_checks import random
from small_models import model, node

import anybit

_TIMES = np.arange(64)[:, None] * np.arange(33) * 2 * np.pi / 64


def _front_end(function: str) -> onnx.ModelProto:
    """Magnitudes of a spectrum, in bands, and a function of these."""
    constants = {
        "cosines": np.cos(_TIMES).astype(np.float32),
        "sines": np.sin(_TIMES).astype(np.float32),
        "bands": np.abs(random(33, 8, seed=1)),
        "least": np.float32(1e-9),
    }
    nodes = [
        node("MatMul", "x cosines", "real", domain="", name="cosine"),
        node("MatMul", "x sines", "imaginary", domain="", name="sine"),
        node("Mul", "real real", "first", domain=""),
        node("Mul", "imaginary imaginary", "second", domain=""),
        node("Add", "first second", "power", domain=""),
        node("MatMul", "power bands", "summed", domain="", name="bands"),
        node("Add", "summed least", "some", domain=""),
        node(function, "some", "features", domain=""),
        node("MatMul", "features head", "y", domain="", name="head"),
    ]
    constants["head"] = random(8, 4, seed=2)
    return model(nodes, constants, inputs={"x": ["rows", 64]}, opsets={"": 17})


def _sounds() -> np.ndarray:
    """Loud ones, and some that are hardly heard."""
    sizes = np.exp(np.random.default_rng(3).uniform(-9, 3, (80, 1))).astype(np.float32)
    return random(80, 64, seed=4) * sizes


def test_quantize_remarks_on_layers_before_a_logarithm() -> None:
    result = anybit.quantize(_front_end("Log"), _sounds())
    assert result.verdict is not None
    assert not result.verdict.passed
    (remark,) = [remark for remark in result.remarks if "logarithm" in remark]
    names = ["cosine", "sine", "bands"]
    for name in names:
        assert f"--keep '{name}'" in remark
    assert "head" not in remark
    better = anybit.quantize(_front_end("Log"), _sounds(), keep=names)
    assert better.verdict is not None
    assert better.verdict.passed
    assert not any("logarithm" in remark for remark in better.remarks)


@pytest.mark.parametrize("function", ["Sqrt", "Sigmoid"])
def test_quantize_has_no_remark_without_a_logarithm(function: str) -> None:
    result = anybit.quantize(
        _front_end(function), _sounds(), weights="bipolar", fail_below="10dB,90%"
    )
    assert result.verdict is not None
    assert not result.verdict.passed
    assert not any("logarithm" in remark for remark in result.remarks)
