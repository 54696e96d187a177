# SPDX-License-Identifier: Apache-2.0
"""Reference of every operator in exact integer-ratio arithmetic.

Shares no code with the package. NumPy carries arrays in and out and computes nothing; a Python
float is only the vessel of a value already rounded to the compute type: it brings NaN, the
infinities and the sign of zero along. Equal elements are evaluated once per call.
"""

from .block_quant import block_quant
from .ieee import BFLOAT16, BINARY16, BINARY32, BINARY64, Format, floor_log2
from .operators import (
    bipolar_quant,
    dynamic_dequantize,
    dynamic_quantize,
    float_quant,
    int_quant,
    trunc,
    trunc_v1,
)
from .rounding import MODES, round_ratio, round_value

__all__ = [
    "BFLOAT16",
    "BINARY16",
    "BINARY32",
    "BINARY64",
    "MODES",
    "Format",
    "bipolar_quant",
    "block_quant",
    "dynamic_dequantize",
    "dynamic_quantize",
    "float_quant",
    "floor_log2",
    "int_quant",
    "round_ratio",
    "round_value",
    "trunc",
    "trunc_v1",
]
