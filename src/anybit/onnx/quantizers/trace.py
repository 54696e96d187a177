# SPDX-License-Identifier: Apache-2.0
"""Where the codes of a DequantizeLinear come from."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.facts import Effect, effect_of
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import is_quantize

# What these do to codes they do to values, because larger codes stand for larger values.
_TRANSPARENT = (Effect.MOVE, Effect.SELECT)


@dataclass(frozen=True)
class Trace:
    """A constant or the output of a QuantizeLinear, and what lies between it and the reader.

    `moves` are in the order in which they run. Clips are not among them: they are `lowest` and
    `highest`, which are infinite where nothing is clipped.
    """

    source: ir.Value
    moves: tuple[ir.Node, ...]
    lowest: float
    highest: float


def traced(value: ir.Value) -> Trace:
    """The way back from codes that are read.

    Raises:
        Inexpressible: It ends elsewhere than at a constant or a QuantizeLinear.
    """
    moves: list[ir.Node] = []
    lowest, highest = -np.inf, np.inf
    while not is_constant(value):
        node = value.producer()
        if node is not None and is_quantize(node):
            break
        if node is None or node.domain or not node.inputs:
            raise Inexpressible("its codes come from elsewhere than a QuantizeLinear")
        if node.op_type == "Clip":
            low, high = clip_bounds(node)
            # What Clip does where the two cross follows from its definition: max, then min.
            lowest, highest = max(lowest, low), min(highest, high)
            if lowest > highest:
                raise Inexpressible("its Clips leave no code")
        elif effect_of(node) in _TRANSPARENT and not any(each.uses() for each in node.outputs[1:]):
            moves.append(node)
        else:
            raise Inexpressible(f"{node.op_type} lies between it and the QuantizeLinear")
        before = node.inputs[0]
        if before is None:
            raise Inexpressible(f"{node.op_type} before it has no input")
        value = before
    return Trace(value, tuple(reversed(moves)), lowest, highest)


def clip_bounds(node: ir.Node) -> tuple[float, float]:
    """The bounds of a Clip of codes, infinite where there is none."""
    found = []
    for index, default in ((1, -np.inf), (2, np.inf)):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            found.append(default)
            continue
        array = array_of(value) if is_constant(value) else None
        if array is None or array.size != 1:
            raise Inexpressible("a Clip of its codes has bounds that are not known")
        found.append(float(array.reshape(()).astype(np.float64)))
    return found[0], found[1]
