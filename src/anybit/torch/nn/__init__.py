# SPDX-License-Identifier: Apache-2.0
"""Modules for quantization-aware training: quantizers, and layers that use them.

>>> import torch
>>> from anybit.torch.nn import IntQuantizer, QuantLinear
>>> layer = QuantLinear(
...     8, 3,
...     weight_quantizer=IntQuantizer(4, narrow=True, granularity="per-channel"),
...     input_quantizer=IntQuantizer(8, signed=False, scale="ema"),
... )
>>> layer(torch.rand(2, 8)).shape
torch.Size([2, 3])
"""

from typing import TYPE_CHECKING, Any

from anybit.torch.nn._attention import QuantMultiheadAttention
from anybit.torch.nn._fold_batchnorm import fold_batchnorm
from anybit.torch.nn._functions import (
    QuantAdd,
    QuantConcat,
    QuantizedFunction,
    QuantMatMul,
    QuantScaledDotProductAttention,
)
from anybit.torch.nn._layers import (
    QuantConv1d,
    QuantConv2d,
    QuantConvTranspose2d,
    QuantEmbedding,
    QuantizedLayer,
    QuantLinear,
)
from anybit.torch.nn._quantize_model import quantize_model
from anybit.torch.nn._quantizers import BipolarQuantizer, FloatQuantizer, IntQuantizer, Quantizer
from anybit.torch.nn._recurrent import QuantGRU, QuantizedRecurrent, QuantLSTM, QuantRNN
from anybit.torch.nn._report import describe
from anybit.torch.nn._scales import freeze_scales, unfreeze_scales
from anybit.torch.nn._trunc import Trunc
from anybit.torch.nn._words import quantizer

if TYPE_CHECKING:
    from anybit.torch.nn._calibrate import calibrate
else:

    def __getattr__(name: str) -> Any:
        """Import calibrate on first use, because it imports onnx, which takes a second."""
        if name != "calibrate":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from anybit.torch.nn._calibrate import calibrate

        return calibrate


__all__ = [
    "BipolarQuantizer",
    "FloatQuantizer",
    "IntQuantizer",
    "QuantAdd",
    "QuantConcat",
    "QuantConv1d",
    "QuantConv2d",
    "QuantConvTranspose2d",
    "QuantEmbedding",
    "QuantGRU",
    "QuantLSTM",
    "QuantLinear",
    "QuantMatMul",
    "QuantMultiheadAttention",
    "QuantRNN",
    "QuantScaledDotProductAttention",
    "QuantizedFunction",
    "QuantizedLayer",
    "QuantizedRecurrent",
    "Quantizer",
    "Trunc",
    "calibrate",
    "describe",
    "fold_batchnorm",
    "freeze_scales",
    "quantize_model",
    "quantizer",
    "unfreeze_scales",
]


def __dir__() -> list[str]:
    return __all__
