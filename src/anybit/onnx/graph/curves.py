# SPDX-License-Identifier: Apache-2.0
"""How functions of single elements go: whether they rise or fall, in every IEEE arithmetic.

The operations themselves do, and rounding keeps an order: if x <= y, then f(x) <= f(y) as computed.
Functions that runtimes approximate in their own ways are none of these.
"""

from enum import Enum, auto

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import array_of, is_constant


class Curve(Enum):
    """How the result goes with one input, all others being constant.

    RISES, FALLS: nowhere the other way. EITHER: one of the two, per channel. BENDS: perhaps both.
    """

    RISES = auto()
    FALLS = auto()
    EITHER = auto()
    BENDS = auto()


_RISING = frozenset(
    ("Add", "Ceil", "Clip", "Dropout", "Floor", "Identity", "Max", "Min", "Relu", "Round", "Sign")
)

# A cast to integers does anything with numbers beyond them, and one to booleans has a hole at 0.
_ROUNDED = frozenset({ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE})


def curve_of(node: ir.Node, x: ir.Value) -> Curve:
    """How the result of a standard operator goes with the one input that is not constant."""
    first = bool(node.inputs) and node.inputs[0] is x
    match node.op_type:
        case "Neg":
            return Curve.FALLS
        case "Sub":
            return Curve.RISES if first else Curve.FALLS
        case "Mul":
            return _by_sign(node.inputs[1 if first else 0])
        case "Div":
            return _by_sign(node.inputs[1]) if first else Curve.BENDS
        case "BatchNormalization":
            return _by_sign(node.inputs[1])
        case "Cast":
            return Curve.RISES if attribute_of(node, "to", 0) in _ROUNDED else Curve.BENDS
        case "LeakyRelu":
            return Curve.RISES if attribute_of(node, "alpha", 0.01) >= 0 else Curve.BENDS
        case "HardSigmoid":
            return Curve.RISES if attribute_of(node, "alpha", 0.2) >= 0 else Curve.FALLS
    return Curve.RISES if node.op_type in _RISING else Curve.BENDS


def _by_sign(value: ir.Value | None) -> Curve:
    """How something goes that is multiplied by a constant, or divided by it."""
    if value is None or not is_constant(value):
        return Curve.BENDS
    factors = array_of(value)
    if bool(np.all(factors >= 0)):
        return Curve.RISES
    return Curve.FALLS if bool(np.all(factors <= 0)) else Curve.EITHER
