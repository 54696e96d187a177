# SPDX-License-Identifier: Apache-2.0
"""Quantized networks of others in C: the bytes of `anybit run`."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from c_batches import Case, run_batch
from onnx.utils import Extractor
from places import MODELS, needs_models

import anybit
from anybit.errors import ModelError

CHECKED = ("gcc", "-std=c99", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ROWS = 2

pytestmark = [needs_models, pytest.mark.slow]


def compare_bytes(compiled: anybit.CompiledModel, x: np.ndarray, folder: Path) -> None:
    """Run C code and the compiled model, row by row, and compare their outputs."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    y = np.concatenate([next(iter(compiled.run(row[None]).values())) for row in x])
    source = compiled.to_c(folder, name="net")
    case = Case(source, [x.reshape(len(x), -1)], [y.reshape(len(y), -1)])
    assert run_batch([case], CHECKED, folder) == []


def read_rows(name: str) -> np.ndarray:
    return np.load(MODELS / f"{name}.npz")["x"][:ROWS].astype(np.float32)


def test_tfc_in_c_has_the_bytes_of_the_model(tmp_path: Path) -> None:
    compare_bytes(anybit.compile(MODELS / "TFC_2W2A.onnx"), read_rows("TFC_2W2A"), tmp_path)


def test_mobilenet_in_c_has_the_bytes_of_the_model(tmp_path: Path) -> None:
    """Leave out the last layer, whose input has no quantizer."""
    proto = onnx.load(MODELS / "mobilenet_w4a4.onnx")
    compiled = anybit.compile(Extractor(proto).extract_model(["x"], ["mean"]))
    compare_bytes(compiled, read_rows("mobilenet_w4a4"), tmp_path)


def test_mobilenet_with_a_float_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="node_linear: its input 'view' is not quantized"):
        anybit.compile(MODELS / "mobilenet_w4a4.onnx").to_c(tmp_path)
