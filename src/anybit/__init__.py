# SPDX-License-Identifier: Apache-2.0
"""Quantizers of any width that compute the same bits everywhere."""

from anybit import formats
from anybit._core import num_threads, set_num_threads
from anybit.ops import RoundingMode
from anybit.ops.bipolar_quant import bipolar_quant
from anybit.ops.dynamic_quantize import dynamic_quantize
from anybit.ops.float_quant import float_quant
from anybit.ops.int_quant import int_quant
from anybit.ops.trunc import trunc
from anybit.ops.trunc_v1 import trunc_v1

quant = int_quant

__all__ = [
    "RoundingMode",
    "bipolar_quant",
    "dynamic_quantize",
    "float_quant",
    "formats",
    "int_quant",
    "num_threads",
    "quant",
    "set_num_threads",
    "trunc",
    "trunc_v1",
]
