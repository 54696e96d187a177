# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements, per channel, as the float graph computes them.

They are never written down as formulas: ONNX Runtime evaluates the nodes themselves, and with them
every rounding, tie and saturation that they have. Arguments and results are arrays of elements x
channels.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.lowbit.uncovered import Uncovered
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.cut import cut
from anybit.onnx.graph.op_traits import Monotonicity, monotonicity_of
from anybit.onnx.operators.multi_threshold import is_multi_threshold, is_rising
from anybit.onnx.operators.registry import operator_of
from anybit.onnx.preparation import runnable
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.onnx.quantizers.quantizer import inputs_of
from anybit.onnx.runtime import (
    FAILURES,
    make_session,
    reason,
    run_session,
)
from anybit.ops.domain import Role

Part: TypeAlias = Callable[..., Array]

_MOST_AVERAGED = 2**22


@dataclass(frozen=True, eq=False)
class Function:
    """What some parts make of an element, one behind another.

    Attributes:
        parts: The parts.
        monotone: Whether each part is known to rise or to fall everywhere, per channel.
        uniform: Whether no part differs between channels.
    """

    parts: tuple[Part, ...] = ()
    monotone: bool = True
    uniform: bool = True

    def then(self, part: Part, *, monotone: bool, uniform: bool) -> "Function":
        """With one more part."""
        return Function((*self.parts, part), self.monotone and monotone, self.uniform and uniform)

    def __call__(self, *elements: Array) -> Array:
        """The results; the first part alone may take more than one array."""
        with np.errstate(all="ignore"):
            for part in self.parts:
                elements = (part(*elements),)
        return elements[0]


@dataclass(frozen=True)
class AddConstant:
    """Adds a bias in float32: what Conv and Gemm do behind their sums."""

    bias: Array

    def __call__(self, elements: Array) -> Array:
        return np.asarray(elements + self.bias, np.float32)


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes between values, in an order in which they can run.

    Attributes:
        model: The graph in which they stand.
        nodes: The nodes.
        xs, y: What they read and what they make; all else that they read is constant.
        rank, axis: Of each x; the axis is that of the channels.
        window: How many elements of x, axis by axis, become one of y, the last axes being meant. A
            mean is evaluated as that of one element and zeros.
    """

    model: ir.Model
    nodes: tuple[ir.Node, ...]
    xs: tuple[ir.Value, ...]
    y: ir.Value
    rank: int
    axis: int
    window: tuple[int, ...] = ()

    @property
    def monotone(self) -> bool:
        return len(self.xs) == 1 and is_monotone(self.nodes, self.xs[0])

    @cached_property
    def _session(self) -> tuple[Any, dict[str, Array]]:
        piece = cut(self.model, self.nodes, [self.y])
        values = {value.name: value for node in self.nodes for value in node.inputs if value}
        names = {value.name for value in self.xs}
        constants = {}
        for value in piece.graph.inputs:
            if value.name in names:
                # Sizes that a file declares are those of whole tensors.
                value.shape = ir.Shape([None] * self.rank)
                value.type = ir.TensorType(ir.DataType.FLOAT)
                continue
            array = array_of(values[value.name])
            constants[str(value.name)] = array
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            value.shape = ir.Shape(array.shape)
        for node in piece.graph:
            if self.window:  # which is all that there is here
                node.attributes.pop("pads", None)
                node.attributes.pop("auto_pad", None)
            for output in node.outputs:
                output.shape = None
        _own_thresholds(piece, values)
        return make_session(runnable(piece, piece), threads=1), constants

    def __call__(self, *elements: Array) -> Array:
        """The results for elements x channels.

        Raises:
            Uncovered: The runtime does not evaluate the nodes, or not element by element.
        """
        try:
            result = self._evaluated(elements)
        except FAILURES as error:
            name = self.nodes[-1].op_type
            raise Uncovered(f"{name} cannot be evaluated: {reason(error)}") from error
        if result.size != elements[0].size:
            raise Uncovered(f"{self.nodes[-1].op_type} changes the shape of what it reads")
        return np.asarray(result.reshape(elements[0].shape))

    def _evaluated(self, elements: Sequence[Array]) -> Array:
        session, feeds = self._session
        shape = [1] * self.rank
        shape[0], shape[self.axis] = elements[0].shape
        feeds = dict(feeds)
        for value, array in zip(self.xs, elements, strict=True):
            x = np.asarray(array, np.float32).reshape(shape)
            if self.window:
                padding = [(0, size - 1) for size in self.window]
                x = np.pad(x, [(0, 0)] * (self.rank - len(padding)) + padding)
            feeds[str(value.name)] = x
        (result,) = run_session(session, feeds).values()
        return result


def _own_thresholds(piece: ir.Model, values: Mapping[str | None, ir.Value]) -> None:
    """Make constants of the thresholds in a piece of a graph: its inputs, as it was cut."""
    for node in piece.graph:
        table = node.inputs[1] if is_multi_threshold(node) else None
        if table is not None and table.is_graph_input():
            table.const_value = values[table.name].const_value
            piece.graph.inputs.remove(table)
            piece.graph.register_initializer(table)


@dataclass(frozen=True, eq=False)
class Mean:
    """What a mean makes of a sum: the node itself is asked, with that sum and zeros."""

    nodes: Nodes

    def __call__(self, elements: Array) -> Array:
        distinct, inverse = np.unique(elements, return_inverse=True)
        return np.asarray(self._of(distinct[:, None])[:, 0][inverse].reshape(elements.shape))

    def _of(self, elements: Array) -> Array:
        most = max(1, _MOST_AVERAGED // self.count)
        parts = range(0, len(elements), most)
        return np.concatenate([self.nodes(elements[at : at + most]) for at in parts])

    @property
    def count(self) -> int:
        """How many elements it is of."""
        return math.prod(self.nodes.window)

    @property
    def is_sum(self) -> bool:
        """Whether it does not divide at all."""
        return self.nodes.nodes[0].op_type == "ReduceSum"


def is_monotone(nodes: Sequence[ir.Node], x: ir.Value) -> bool:
    """Whether the nodes are a chain of functions that rise or fall in x everywhere."""
    return all(curve is not Monotonicity.NONE for curve in _curves(nodes, x))


def are_increasing(nodes: Sequence[ir.Node], x: ir.Value) -> bool:
    """Whether the nodes are a chain of functions none of which falls anywhere."""
    return all(curve is Monotonicity.INCREASING for curve in _curves(nodes, x))


def _curves(nodes: Sequence[ir.Node], x: ir.Value) -> Iterator[Monotonicity]:
    """How each node of a chain goes with what it reads."""
    for node in nodes:
        varying = [value for value in node.inputs if value is not None and not is_constant(value)]
        yield _curve(node, x) if varying == [x] else Monotonicity.NONE
        x = node.outputs[0]


def _curve(node: ir.Node, x: ir.Value) -> Monotonicity:
    if is_quantize(node) or is_dequantize(node):
        return Monotonicity.INCREASING if _has_positive_scales(node) else Monotonicity.MONOTONE
    if not node.domain:
        return monotonicity_of(node, x)
    if is_multi_threshold(node):
        return Monotonicity.INCREASING if is_rising(node) else Monotonicity.DECREASING
    operator = operator_of(node)
    if operator is None or operator.grid is None or node.inputs[0] is not x:
        return Monotonicity.NONE
    return Monotonicity.INCREASING if _has_positive_scales(node) else Monotonicity.MONOTONE


def _has_positive_scales(node: ir.Node) -> bool:
    """Whether a quantizer has no scale that is negative, so that its values do not fall."""
    for declared, value in zip(inputs_of(node), node.inputs, strict=False):
        scales = declared.role in (Role.SCALE, Role.IN_SCALE)
        if scales and value is not None and not bool(np.all(array_of(value) > 0)):
            return False
    return True
