# SPDX-License-Identifier: Apache-2.0
"""Operators for PyTorch: bit-exact, differentiable, compiled and exported.

Each operator has its own name and signature, and is also `torch.ops.anybit.<name>`.

* Parameters are numbers, lists, NumPy arrays or tensors on x's device. Numbers are rounded once, to
  float32 (float64 for x of float64), without waiting for the device.
* x of float16 and bfloat16 is computed in float32 and rounded once. Operators are not affected by
  `torch.autocast`: the result has the dtype of x.
* The result has the memory format of `torch.empty_like(x)`. `out` is written to directly, unless
  gradients pass through it.
* Gradients are those of a straight-through estimator, first derivatives only: second derivatives
  and forward mode raise NotImplementedError. An input that requires a gradient, but does not have
  one, raises ValueError.
* `torch.func`, `torch.compile` and `torch.export` accept the functions. Shapes, dtypes and
  attributes are checked while tracing, values when the program runs. `torch.compile` does not
  support derivatives by `torch.func`: compile the function, and call `backward`.

>>> import torch
>>> import anybit.torch
>>> anybit.torch.int_quant(torch.tensor([0.5, 1.5, 99.0]), 0.5, 0, 4)
tensor([0.5000, 1.5000, 3.5000])
"""

from typing import TYPE_CHECKING, Any

from anybit.ops import OPERATORS
from anybit.torch import nn
from anybit.torch.dispatch import operators
from anybit.torch.nn import fold_batchnorm, quantize_model

_EXPORT = ("ExportResult", "export", "export_options")
_LAZY = ("calibrate", *_EXPORT)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:

    def __getattr__(name: str) -> Any:
        """Import lazily: onnx and onnxruntime take a second to import."""
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "calibrate":
            return nn.calibrate
        from anybit.torch import exporter

        return getattr(exporter, name)


def __dir__() -> list[str]:
    return __all__


globals().update({operator.name: getattr(operators, operator.name) for operator in OPERATORS})

__all__ = [
    *_LAZY,
    "fold_batchnorm",
    "nn",
    "quantize_model",
    *(operator.name for operator in OPERATORS),
]
