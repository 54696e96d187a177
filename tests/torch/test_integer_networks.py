# SPDX-License-Identifier: Apache-2.0
"""Networks of PyTorch that are quantized for integers only are one integer region."""

from pathlib import Path

import numpy as np
import pytest
from places import ROOT
from scripts import load_module

import anybit

NETWORKS = (
    *("ctc", "efficientnet", "mixer", "mobilenet_v3"),
    *("resnet", "super_resolution", "unet", "yolo_transposed"),
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_integer_only_network_is_one_region(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "network.onnx"
    shape = load_module(ROOT / "benchmarks" / "_torch_networks.py").export(name, path)
    x = np.random.default_rng(0).standard_normal((16, *shape[1:]), np.float32)
    result = anybit.quantize(path, x, integer_only=True, effort="fast")
    result.save(tmp_path / "quantized.onnx")
    compiled = anybit.compile(tmp_path / "quantized.onnx")
    assert len(compiled.report.programs) == 1
    assert all(layer.guarantee is not None for layer in compiled.report.layers)
    expected = anybit.load(tmp_path / "quantized.onnx").run(x[:2])
    for output, array in compiled.run(x[:2]).items():
        np.testing.assert_allclose(array, expected[output], atol=0.02 * np.abs(array).max())
