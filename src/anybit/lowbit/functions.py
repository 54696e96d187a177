# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements, per channel, as the float graph computes them.

They are never written down as formulas: ONNX Runtime evaluates the nodes themselves, and with them
every rounding, tie and saturation that they have. Arguments and results are arrays of elements x
channels.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.lowbit.uncovered import Uncovered
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.cut import cut
from anybit.onnx.operators.registry import operator_of
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.onnx.quantizers.quantizer import inputs_of
from anybit.onnx.runtime import exact_session_options, make_session, run_session
from anybit.ops.domain import Role

Part: TypeAlias = Callable[..., Array]

# Weakly increasing or decreasing in x, in every IEEE arithmetic, whatever the constants: the
# operations themselves are, and rounding keeps an order.
_OPERATORS = """
    Add BatchNormalization Ceil Clip Dropout Floor HardSigmoid Identity Max Min Mul Neg Relu
    Round Sign Sub
"""
_MONOTONE = frozenset(_OPERATORS.split())
_MOST_AVERAGED = 2**22

# A cast to integers does anything with numbers beyond them, and one to booleans has a hole at 0.
_ROUNDED = frozenset({ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE})


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
            for output in node.outputs:
                output.shape = None
        options = exact_session_options()
        options.intra_op_num_threads = 1
        return make_session(piece, options), constants

    def __call__(self, *elements: Array) -> Array:
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
        if result.size != elements[0].size:
            raise Uncovered(f"{self.nodes[-1].op_type} changes the shape of what it reads")
        return np.asarray(result.reshape(elements[0].shape))


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
    for node in nodes:
        varying = [value for value in node.inputs if value is not None and not is_constant(value)]
        if varying != [x] or not _is_monotone(node, x):
            return False
        x = node.outputs[0]
    return True


def _is_monotone(node: ir.Node, x: ir.Value) -> bool:
    if is_quantize(node) or is_dequantize(node):
        return True
    if node.domain:
        operator = operator_of(node)
        return operator is not None and operator.grid is not None and node.inputs[0] is x
    match node.op_type:
        case "Cast":
            return attribute_of(node, "to", 0) in _ROUNDED
        case "Div":
            return node.inputs[0] is x
        case "LeakyRelu":
            return attribute_of(node, "alpha", 0.01) >= 0
    return node.op_type in _MONOTONE


def are_increasing(nodes: Sequence[ir.Node], x: ir.Value) -> bool:
    """Whether the nodes are a chain of functions none of which falls anywhere."""
    for node in nodes:
        if not is_monotone([node], x) or not _rises(node, x):
            return False
        x = node.outputs[0]
    return True


def _rises(node: ir.Node, x: ir.Value) -> bool:
    """Whether a function that rises or falls does not fall; some that rise are not known to."""
    if is_quantize(node) or is_dequantize(node) or node.domain:
        return _has_positive_scales(node)
    match node.op_type:
        case "Neg" | "HardSigmoid":
            return False
        case "BatchNormalization":
            scale = node.inputs[1]
            return scale is not None and bool(np.all(array_of(scale) >= 0))
        case "Sub":
            return node.inputs[0] is x
        case "Mul" | "Div":
            factors = [value for value in node.inputs if value is not None and value is not x]
            return all(bool(np.all(array_of(value) >= 0)) for value in factors)
    return True


def _has_positive_scales(node: ir.Node) -> bool:
    """Whether a quantizer has no scale that is negative, so that its values do not fall."""
    for declared, value in zip(inputs_of(node), node.inputs, strict=False):
        scales = declared.role in (Role.SCALE, Role.IN_SCALE)
        if scales and value is not None and not bool(np.all(array_of(value) > 0)):
            return False
    return True
