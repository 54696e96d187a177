# SPDX-License-Identifier: Apache-2.0
"""What the operators are. The registry is a tuple: adapters loop over it and name no operator."""

from typing import Any

from anybit.ops.attribute import Attribute
from anybit.ops.bipolar_quant import bipolar_quant
from anybit.ops.dynamic_quantize import dynamic_quantize
from anybit.ops.float_quant import float_quant
from anybit.ops.int_quant import int_quant
from anybit.ops.operator import Input, Operator
from anybit.ops.rounding import RoundingMode
from anybit.ops.trunc import trunc
from anybit.ops.trunc_v1 import trunc_v1

_FUNCTIONS: tuple[Any, ...] = (
    int_quant,
    float_quant,
    trunc,
    trunc_v1,
    bipolar_quant,
    dynamic_quantize,
)
OPERATORS: tuple[Operator, ...] = tuple(function.operator for function in _FUNCTIONS)

__all__ = ["OPERATORS", "Attribute", "Input", "Operator", "RoundingMode"]
__all__ += [declared.name for declared in OPERATORS]
