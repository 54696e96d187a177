# SPDX-License-Identifier: Apache-2.0
"""Traces of codes from a DequantizeLinear back to their source."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import is_quantize

# These commute with dequantization, because larger codes have larger values.
_TRANSPARENT = OpTrait.DATA_MOVEMENT | OpTrait.SELECTION


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """A constant or the output of a QuantizeLinear, and the nodes up to the reader.

    Clips are `lowest` and `highest`, which are infinite without one; all other nodes are `moves`.
    Traces with a common beginning share its moves.
    """

    source: ir.Value
    lowest: float = -np.inf
    highest: float = np.inf
    last: ir.Node | None = None
    """The last of the moves, after those of `before`."""
    before: "Trace | None" = None

    @property
    def moves(self) -> Iterator[ir.Node]:
        """Yield the moves, the last one first."""
        trace: Trace | None = self
        while trace is not None and trace.last is not None:
            yield trace.last
            trace = trace.before


class Traces:
    """The traces of a model; each node is visited once.

    The nodes between a QuantizeLinear and its DequantizeLinear must not change meanwhile, except
    their readers.
    """

    def __init__(self) -> None:
        self._known: dict[ir.Value, Trace | str] = {}

    def trace(self, value: ir.Value) -> Trace:
        """Return the trace of codes.

        Raises:
            Inexpressible: It does not end at a constant or a QuantizeLinear.
        """
        way: list[tuple[ir.Value, ir.Node]] = []
        while value not in self._known:
            try:
                step = _find_previous_step(value)
            except Inexpressible as reason:
                self._known[value] = str(reason)
                break
            if step is None:
                self._known[value] = Trace(value)
                break
            way.append((value, step[0]))
            value = step[1]
        trace = self._known[value]
        for following, node in reversed(way):
            trace = self._known[following] = _extend(trace, node)
        if isinstance(trace, str):
            raise Inexpressible(trace)
        return trace


def _find_previous_step(value: ir.Value) -> tuple[ir.Node, ir.Value] | None:
    """Return the Clip or the move that computes codes, and its input.

    None at the end of a trace.
    """
    node = value.producer()
    if is_constant(value) or is_quantize(node):
        return None
    if node is None or node.domain or not node.inputs:
        raise Inexpressible("its codes come from elsewhere than a QuantizeLinear")
    if node.op_type == "Clip":
        get_clip_bounds(node)
    elif not has_trait(node, _TRANSPARENT) or any(value.uses() for value in node.outputs[1:]):
        raise Inexpressible(f"{node.op_type} lies between it and the QuantizeLinear")
    before = node.inputs[0]
    if before is None:
        raise Inexpressible(f"{node.op_type} before it has no input")
    return node, before


def _extend(before: Trace | str, node: ir.Node) -> Trace | str:
    """Return the trace after a Clip or a move, or the reason why there is none."""
    if isinstance(before, str):
        return before
    if node.op_type != "Clip":
        return Trace(before.source, before.lowest, before.highest, node, before)
    low, high = get_clip_bounds(node)
    # Crossed bounds follow from the definition of Clip: max, then min.
    lowest, highest = max(before.lowest, low), min(before.highest, high)
    if lowest > highest:
        return "its Clips leave no code"
    return replace(before, lowest=lowest, highest=highest)


def get_clip_bounds(node: ir.Node) -> tuple[float, float]:
    """Return the bounds of a Clip of codes, infinite without one."""
    bounds = []
    for index, default in ((1, -np.inf), (2, np.inf)):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            bounds.append(default)
            continue
        array = read_array(value) if is_constant(value) else None
        if array is None or array.size != 1:
            raise Inexpressible("a Clip of its codes has bounds that are not known")
        bounds.append(float(array.reshape(()).astype(np.float64)))
    return bounds[0], bounds[1]
