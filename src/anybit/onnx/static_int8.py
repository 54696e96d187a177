# SPDX-License-Identifier: Apache-2.0
"""Static 8-bit quantization by ONNX Runtime, as a baseline for measurements."""

import logging
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]

from anybit.onnx.files.writer import save
from anybit.onnx.graph.constants import Array

_LARGEST_BYTES = 2**30
"""Larger float models take minutes."""


def quantize_static_int8(model: ir.Model, feeds: Mapping[str, Array]) -> ir.Model | None:
    """Return the result of `onnxruntime.quantization.quantize_static` for a float model.

    Its defaults, with per-channel weights: QDQ format, uint8 activations, int8 weights. The
    calibration sample is only `feeds`, so the result is suitable for measuring time, not accuracy.
    None if the tool refuses the model.
    """
    if sum(tensor.nbytes for tensor in _list_tensors(model)) > _LARGEST_BYTES:
        return None
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        disabled = logging.root.manager.disable
        logging.disable(logging.ERROR)
        # The options of the tool's sessions cannot be set.
        onnxruntime.set_default_logger_severity(4)
        try:
            save(model, source)
            _quantize(source, target, feeds)
            return ir.from_proto(onnx.load(target))
        except Exception:  # any error of the tool for an unsupported model
            return None
        finally:
            logging.disable(disabled)
            onnxruntime.set_default_logger_severity(2)  # its default: it cannot be read


def _quantize(source: Path, target: Path, feeds: Mapping[str, Array]) -> None:
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class OneSample(CalibrationDataReader):  # type: ignore[misc]
        """A data reader that returns the feeds once."""

        def __init__(self) -> None:
            self._samples = iter([dict(feeds)])

        def get_next(self) -> dict[str, Array] | None:
            return next(self._samples, None)

    quantize_static(
        source,
        target,
        OneSample(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )


def _list_tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    held = (value.const_value for value in model.graph.initializers.values())
    return [tensor for tensor in held if tensor is not None]
