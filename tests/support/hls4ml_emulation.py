# SPDX-License-Identifier: Apache-2.0
"""Models in hls4ml's C++ emulation."""

from pathlib import Path

import hls4ml
import numpy as np
import onnx

import anybit
from anybit.onnx.checks.checking import check
from anybit.onnx.checks.finding import Finding

BACKEND = "Vitis"


def hls_model(cleaned: onnx.ModelProto, folder: Path) -> "hls4ml.model.ModelGraph":
    """Convert and compile a model with types that follow from its quantizers.

    The configuration is the one that `config_from_onnx_model` makes: by name and for the backend,
    all types are inferred, so that sums have the width they need.
    """
    config = hls4ml.utils.config_from_onnx_model(cleaned, granularity="name", backend=BACKEND)
    converted = hls4ml.converters.convert_from_onnx_model(
        cleaned, hls_config=config, output_dir=str(folder), backend=BACKEND
    )
    converted.compile()
    return converted


def random_inputs(cleaned: onnx.ModelProto, rows: int = 100) -> np.ndarray:
    """Random inputs that hls4ml's default type of inputs, fixed<16,6>, holds exactly."""
    sizes = [size.dim_value for size in cleaned.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).normal(size=(rows, *sizes[1:])) * 1.5
    return np.clip(np.rint(x * 2**10) / 2**10, -16, 16).astype(np.float32)


def run_both(
    path: Path, folder: Path, x: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, list[Finding]]:
    """Clean a model for hls4ml; return what `anybit.load` and hls4ml compute, and the findings."""
    cleaned_path = folder / "cleaned.onnx"
    anybit.clean(path, target="hls4ml").save(cleaned_path)
    cleaned = onnx.load(cleaned_path)
    findings = list(check(cleaned, "hls4ml"))
    x = random_inputs(cleaned) if x is None else x
    model = anybit.load(cleaned_path)
    expected = np.concatenate([next(iter(model.run(row[None]).values())) for row in x])
    got = hls_model(cleaned, folder / "hls").predict(np.ascontiguousarray(x))
    return expected, got.reshape(expected.shape), findings
