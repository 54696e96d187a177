# SPDX-License-Identifier: Apache-2.0
"""The operators for PyTorch: the same bits, differentiable, compiled and exported.

Every operator is here under its own name and signature, and as `torch.ops.anybit.<name>`.

* Parameters are numbers, lists, NumPy arrays or tensors on x's device. Numbers are rounded once, to
  float32 (float64 for x of float64), and wait for no device.
* x of float16 and bfloat16 is computed in float32 and rounded once, so that autocast has nothing to
  do here: under `torch.autocast` the operators take and give the dtypes that they are given.
* The result lies in memory as `torch.empty_like(x)` does. `out` is written to without another
  tensor, unless gradients go through it.
* Gradients are those of a straight-through estimator, first derivatives only: asking for second
  ones raises NotImplementedError, and so does forward mode. An input that has no gradient but
  requires one raises ValueError.
* `torch.func`, `torch.compile` and `torch.export` take the functions as they are. Shapes, dtypes
  and attributes are checked while tracing, values when the program runs. What does not work is
  `torch.compile` of derivatives by `torch.func`: compile the function, and call `backward`.

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

_EXPORT = ("Exported", "export", "export_options")
_LAZY = ("calibrate", *_EXPORT)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:

    def __getattr__(name: str) -> Any:
        """These need onnx and onnxruntime, which take a second to import."""
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "calibrate":
            return nn.calibrate
        from anybit.torch import exporter

        return getattr(exporter, name)


def __dir__() -> list[str]:
    return __all__


globals().update({each.name: getattr(operators, each.name) for each in OPERATORS})

__all__ = [
    *_LAZY,
    "fold_batchnorm",
    "nn",
    "quantize_model",
    *(operator.name for operator in OPERATORS),
]
