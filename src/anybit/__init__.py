# SPDX-License-Identifier: Apache-2.0
"""Quantized networks, exact and fast: operators of any width on arrays, and whole models.

    y = anybit.int_quant(x, 0.25, 0, 4)
    model = anybit.load("model.onnx")
    found = anybit.quantize("float.onnx", "data.npz")

What belongs to a framework is imported by itself: `anybit.torch`, `anybit.jax`,
`anybit.onnxruntime`.
"""

import sys
from typing import TYPE_CHECKING, Any

from anybit.interrupts import end_at_once, is_command

if is_command():  # of which this is the first code
    end_at_once()
try:
    from anybit._native import num_threads, set_num_threads
except ImportError as error:
    # A wrong ANYBIT_ISA, say, for which the command gives one line.
    if is_command():
        print("error:", error, file=sys.stderr)
        sys.exit(2)
    raise
from anybit import formats
from anybit.ops import RoundingMode
from anybit.ops.bipolar_quant import bipolar_quant
from anybit.ops.dynamic_dequantize import dynamic_dequantize
from anybit.ops.dynamic_quantize import dynamic_quantize
from anybit.ops.float_quant import float_quant
from anybit.ops.int_quant import int_quant
from anybit.ops.trunc import trunc
from anybit.ops.trunc_v1 import trunc_v1

if TYPE_CHECKING:
    from anybit.comparison import Difference, diff
    from anybit.compiler.compiled import Compiled
    from anybit.compiler.pipeline import compile
    from anybit.errors import ModelError
    from anybit.evaluation import Evaluated, Evaluation, evaluate
    from anybit.inspection import ModelReport, inspect
    from anybit.model import Model, load
    from anybit.onnx import save
    from anybit.onnx.checks.checking import Finding, check
    from anybit.onnx.cleaning import Cleaned, clean
    from anybit.onnx.conversion import Conversion, convert
    from anybit.quantization import Quantized, quantize

    __version__: str

__all__ = [
    "Cleaned",
    "Compiled",
    "Conversion",
    "Difference",
    "Evaluated",
    "Evaluation",
    "Finding",
    "Model",
    "ModelError",
    "ModelReport",
    "Quantized",
    "RoundingMode",
    "bipolar_quant",
    "check",
    "clean",
    "compile",
    "convert",
    "diff",
    "dynamic_dequantize",
    "dynamic_quantize",
    "evaluate",
    "float_quant",
    "formats",
    "inspect",
    "int_quant",
    "load",
    "num_threads",
    "quantize",
    "save",
    "set_num_threads",
    "trunc",
    "trunc_v1",
]

# Models need onnx and onnxruntime, which take a second to import; arrays need neither.
_LAZY = {
    "Cleaned": "anybit.onnx.cleaning",
    "Compiled": "anybit.compiler.compiled",
    "Conversion": "anybit.onnx.conversion",
    "Difference": "anybit.comparison",
    "Evaluated": "anybit.evaluation",
    "Evaluation": "anybit.evaluation",
    "Finding": "anybit.onnx.checks.checking",
    "Model": "anybit.model",
    "ModelError": "anybit.errors",
    "ModelReport": "anybit.inspection",
    "Quantized": "anybit.quantization",
    "check": "anybit.onnx.checks.checking",
    "clean": "anybit.onnx.cleaning",
    "compile": "anybit.compiler.pipeline",
    "convert": "anybit.onnx.conversion",
    "diff": "anybit.comparison",
    "evaluate": "anybit.evaluation",
    "inspect": "anybit.inspection",
    "load": "anybit.model",
    "quantize": "anybit.quantization",
    "save": "anybit.onnx",
}


if not TYPE_CHECKING:  # for which names that are not there would be Any

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("anybit")
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
