# SPDX-License-Identifier: Apache-2.0
"""Quantization by other tools, with the settings recommended by their documentation.

A tool reads the float model and the calibration split, and writes a quantized model.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import onnx
from _tasks import Feeds, Task

Tool = Callable[[Task, Path], None]


class Reader:
    """Calibration data reader of ONNX Runtime and Quark."""

    def __init__(self, feeds: list[Feeds]) -> None:
        self._feeds = feeds
        self.rewind()

    def rewind(self) -> None:
        self._batches: Iterator[Feeds] = iter(self._feeds)

    def get_next(self) -> Feeds | None:
        return next(self._batches, None)


def runtime_static(task: Task, result: Path) -> None:
    """Quantize per-channel with min-max calibration, after preprocessing."""
    from onnxruntime.quantization import quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = result.with_suffix(".prepared.onnx")
    quant_pre_process(str(task.model), str(prepared), skip_symbolic_shape=True)
    quantize_static(str(prepared), str(result), Reader(task.calibration), per_channel=True)


def runtime_dynamic(task: Task, result: Path) -> None:
    """Quantize weights; activations get their scales at run time."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(task.model), str(result), weight_type=QuantType.QInt8)


def nncf_recommended(task: Task, result: Path) -> None:
    """Quantize with the preset for networks without ReLU, and the model type."""
    import nncf

    options = {"model_type": nncf.ModelType.TRANSFORMER} if task.transformer else {}
    options["preset"] = nncf.QuantizationPreset.MIXED
    options["subset_size"] = len(task.calibration)
    data = nncf.Dataset(task.calibration, dict)
    onnx.save(nncf.quantize(onnx.load(task.model), data, **options), result)


def quark(task: Task, result: Path) -> None:
    """Quantize with Quark's default int8 configuration for the model type."""
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config import Config
    from quark.onnx.quantization.config.custom_config import get_default_config

    name = "INT8_TRANSFORMER_DEFAULT" if task.transformer else "INT8_CNN_DEFAULT"
    quantizer = ModelQuantizer(Config(global_quant_config=get_default_config(name)))
    quantizer.quantize_model(str(task.model), str(result), Reader(task.calibration))


TOOLS: Mapping[str, Tool] = {
    "ONNX Runtime static": runtime_static,
    "ONNX Runtime dynamic": runtime_dynamic,
    "NNCF, mixed preset": nncf_recommended,
    "Quark": quark,
}
