# SPDX-License-Identifier: Apache-2.0
"""The operators. The registry is a tuple: adapters loop over it and name no operator."""

from typing import Any

from anybit.ops import (
    bipolar_quant,
    block_quant,
    dynamic_dequantize,
    dynamic_quantize,
    float_quant,
    int_quant,
    trunc,
    trunc_v1,
)
from anybit.ops.attribute import Attribute
from anybit.ops.operator import Input, Operator
from anybit.ops.rounding import RoundingMode

_FUNCTIONS: tuple[Any, ...] = (
    int_quant.int_quant,
    float_quant.float_quant,
    trunc.trunc,
    trunc_v1.trunc_v1,
    bipolar_quant.bipolar_quant,
    dynamic_quantize.dynamic_quantize,
    dynamic_dequantize.dynamic_dequantize,
    block_quant.block_quant,
)
OPERATORS: tuple[Operator, ...] = tuple(function.operator for function in _FUNCTIONS)

__all__ = ["OPERATORS", "Attribute", "Input", "Operator", "RoundingMode"]
