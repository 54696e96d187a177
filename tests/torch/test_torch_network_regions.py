# SPDX-License-Identifier: Apache-2.0
"""Networks of PyTorch, quantized with integer_only, are one region each."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from places import ROOT
from scripts import load_module

import anybit

pytest.importorskip("torch")

# Between the two regions of a CRNN are its LSTMs, which stay float.
REGIONS = {
    **dict.fromkeys(("resnet", "mobilenet_v2", "mobilenet_v3", "efficientnet_lite"), 1),
    **dict.fromkeys(("yolo", "yolo_transposed", "unet"), 1),
    **dict.fromkeys(("efficientnet", "super_resolution", "ctc", "mixer"), 1),
    **dict.fromkeys(("encoder", "encoder_tokens_first"), 1),
    # A position embedding has a constant per token and channel; its sum stays float.
    "vit": 2,
    "crnn": 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_torch_network_is_one_region(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    networks = load_module(ROOT / "benchmarks" / "_torch_networks.py")
    path = tmp_path / "network.onnx"
    shape = networks.export(name, path)
    (source,) = onnx.load(path).graph.input
    random = np.random.default_rng(0)
    samples = [{source.name: random.normal(0, 1, shape).astype(np.float32)} for _ in range(2)]
    quantized = anybit.quantize(path, samples, integer_only=True, effort="fast")
    report = anybit.compile(quantized, shapes={source.name: shape}).report
    assert len(report.programs) == REGIONS[name]
    floats = {layer.layer.operator for layer in report.products if not layer.guarantee}
    assert floats == ({"LSTM"} if name == "crnn" else set())
