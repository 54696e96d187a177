# SPDX-License-Identifier: Apache-2.0
"""What the constants of a file take, beside what was said when it was made."""

from pathlib import Path

import numpy as np
import pytest
from float_models import NETWORKS, data_for
from small_models import model, node

import anybit


@pytest.mark.parametrize("words", [{}, {"scales": "power-of-two"}, {"weights": "uint4"}])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_takes_what_was_said_when_it_was_made(
    name: str, words: dict[str, str], tmp_path: Path
) -> None:
    """But for biases that were added."""
    quantized = anybit.quantize(NETWORKS[name](), data_for(name), **words)
    quantized.save(tmp_path / "q.onnx")
    found = anybit.report(tmp_path / "q.onnx")
    assert (found.bytes_before, found.bytes_after) == (
        quantized.bytes_before,
        quantized.bytes_after,
    )
    for one, other in zip(found.layers, anybit.report(quantized).layers, strict=True):
        assert one.bytes == other.bytes


@pytest.mark.parametrize(
    "words", ["int4 per-block 32", "uint4 per-block 16", "mxfp8", "mxint8", "nvfp4"]
)
def test_scales_of_blocks_are_counted(words: str, tmp_path: Path) -> None:
    constants = {
        "w": np.random.default_rng(1).normal(size=(96, 24)).astype("f"),
        "b": np.ones(24, "f"),
    }
    nodes = [node("MatMul", "x w", "m", domain=""), node("Add", "m b", domain="")]
    proto = model(nodes, constants, inputs={"x": ["n", 96]})
    quantized = anybit.quantize(proto, weights=words, activations=None)
    quantized.save(tmp_path / "q.onnx", to="qonnx")
    found = anybit.report(tmp_path / "q.onnx")
    assert (found.bytes_before, found.bytes_after) == (
        quantized.bytes_before,
        quantized.bytes_after,
    )
    assert found.layers[0].bytes == quantized.layers[0].bytes
