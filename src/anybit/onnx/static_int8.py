# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's own static 8-bit quantization of a float model: a peer to measure against."""

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
"""A larger float model would take minutes."""


def static_int8(model: ir.Model, feeds: Mapping[str, Array]) -> ir.Model | None:
    """Return what `onnxruntime.quantization.quantize_static` makes of a float model.

    Its defaults, with per-channel weights: QDQ format, uint8 activations, int8 weights. The
    calibration sample is `feeds` alone, so that the result serves to measure time, not accuracy.
    None where the tool refuses the model.
    """
    if sum(each.nbytes for each in _tensors(model)) > _LARGEST_BYTES:
        return None
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        disabled = logging.root.manager.disable
        logging.disable(logging.ERROR)
        # The tool makes sessions whose options cannot be given to it.
        onnxruntime.set_default_logger_severity(4)
        try:
            save(model, source)
            _quantize(source, target, feeds)
            return ir.from_proto(onnx.load(target))
        except Exception:  # whatever a tool of others raises for a model that it does not take
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
        """The feeds, once."""

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


def _tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    held = (value.const_value for value in model.graph.initializers.values())
    return [tensor for tensor in held if tensor is not None]
