# SPDX-License-Identifier: Apache-2.0
"""Where the codes of a DequantizeLinear come from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import is_quantize

# What these do to codes they do to values, because larger codes stand for larger values.
_TRANSPARENT = OpTrait.DATA_MOVEMENT | OpTrait.SELECTION


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """A constant or the output of a QuantizeLinear, and what lies between it and the reader.

    Clips are not among the moves: they are `lowest` and `highest`, which are infinite where nothing
    is clipped. Traces that share their beginning share its moves.
    """

    source: ir.Value
    lowest: float = -np.inf
    highest: float = np.inf
    last: ir.Node | None = None
    """The last of the moves, behind those of `before`."""
    before: "Trace | None" = None

    @property
    def moves(self) -> Iterator[ir.Node]:
        """The last one first."""
        trace: Trace | None = self
        while trace is not None and trace.last is not None:
            yield trace.last
            trace = trace.before


class Traces:
    """The ways back of a model, each node of them seen once.

    Nothing between a QuantizeLinear and its DequantizeLinear may change meanwhile, apart from
    what reads it.
    """

    def __init__(self) -> None:
        self._known: dict[ir.Value, Trace | str] = {}

    def of(self, value: ir.Value) -> Trace:
        """The way back from codes that are read.

        Raises:
            Inexpressible: It ends elsewhere than at a constant or a QuantizeLinear.
        """
        way: list[tuple[ir.Value, ir.Node]] = []
        while value not in self._known:
            try:
                step = _step_before(value)
            except Inexpressible as reason:
                self._known[value] = str(reason)
                break
            if step is None:
                self._known[value] = Trace(value)
                break
            way.append((value, step[0]))
            value = step[1]
        found = self._known[value]
        for behind, node in reversed(way):
            found = self._known[behind] = _behind(found, node)
        if isinstance(found, str):
            raise Inexpressible(found)
        return found


def _step_before(value: ir.Value) -> tuple[ir.Node, ir.Value] | None:
    """The Clip or the move that gives codes, and what it reads; None where a way ends."""
    node = value.producer()
    if is_constant(value) or is_quantize(node):
        return None
    if node is None or node.domain or not node.inputs:
        raise Inexpressible("its codes come from elsewhere than a QuantizeLinear")
    if node.op_type == "Clip":
        clip_bounds(node)
    elif not has_trait(node, _TRANSPARENT) or any(each.uses() for each in node.outputs[1:]):
        raise Inexpressible(f"{node.op_type} lies between it and the QuantizeLinear")
    before = node.inputs[0]
    if before is None:
        raise Inexpressible(f"{node.op_type} before it has no input")
    return node, before


def _behind(before: Trace | str, node: ir.Node) -> Trace | str:
    """The trace behind a Clip or a move, or why there is none."""
    if isinstance(before, str):
        return before
    if node.op_type != "Clip":
        return Trace(before.source, before.lowest, before.highest, node, before)
    low, high = clip_bounds(node)
    # What Clip does where the two cross follows from its definition: max, then min.
    lowest, highest = max(before.lowest, low), min(before.highest, high)
    if lowest > highest:
        return "its Clips leave no code"
    return replace(before, lowest=lowest, highest=highest)


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
