# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements, per channel, as the float graph computes them.

ONNX Runtime evaluates the nodes themselves, with every rounding, tie and saturation: there are no
formulas here. Arguments and results are arrays of elements x channels.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import is_monotone
from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.constants import Array, read_array
from anybit.onnx.graph.cut import extract_subgraph
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.preparation import make_runnable
from anybit.onnx.runtime import (
    FAILURES,
    extract_reason,
    make_session,
    run_session,
)

Part: TypeAlias = Callable[..., Array]

_MOST_AVERAGED = 2**22


@dataclass(frozen=True, eq=False)
class ElementFunction:
    """A composition of functions of single elements.

    Attributes:
        parts: The functions, the first one applied first.
        monotone: Whether all parts are monotonic, per channel.
        uniform: Whether all parts are the same in all channels.
    """

    parts: tuple[Part, ...] = ()
    monotone: bool = True
    uniform: bool = True

    def then(self, part: Part, *, monotone: bool, uniform: bool) -> "ElementFunction":
        """Return the composition with one more part."""
        return ElementFunction(
            (*self.parts, part), self.monotone and monotone, self.uniform and uniform
        )

    def __call__(self, *elements: Array) -> Array:
        """Return the results. Only the first part may take more than one array."""
        with np.errstate(all="ignore"):
            for part in self.parts:
                elements = (part(*elements),)
        return elements[0]


@dataclass(frozen=True)
class AddConstant:
    """The addition of a bias in float32, as Conv and Gemm do after their sums."""

    bias: Array

    def __call__(self, elements: Array) -> Array:
        return np.asarray(elements + self.bias, np.float32)


@dataclass(frozen=True, eq=False)
class NodeChain:
    """Nodes from some values to another one.

    Attributes:
        model: The graph of the nodes.
        nodes: The nodes in topological order.
        xs, y: Their inputs and their output; their other inputs are constant.
        rank, axis: Rank and channel axis of the inputs.
        window: Sizes of the window of a mean along the axes without channels; empty for other
            nodes. The mean is evaluated on one element and zeros.
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
        piece = extract_subgraph(self.model, self.nodes, [self.y])
        values = {value.name: value for node in self.nodes for value in node.inputs if value}
        names = {value.name for value in self.xs}
        constants = {}
        for value in piece.graph.inputs:
            if value.name in names:
                # The file declares the sizes of whole tensors.
                value.shape = ir.Shape([None] * self.rank)
                value.type = ir.TensorType(ir.DataType.FLOAT)
                continue
            array = read_array(values[value.name])
            constants[str(value.name)] = array
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            value.shape = ir.Shape(array.shape)
        for node in piece.graph:
            if self.window:  # the input is one window
                node.attributes.pop("pads", None)
                node.attributes.pop("auto_pad", None)
            for output in node.outputs:
                output.shape = None
        _freeze_thresholds(piece, values)
        return make_session(make_runnable(piece, piece), threads=1), constants

    def __call__(self, *elements: Array) -> Array:
        """Return the results for elements x channels.

        Raises:
            Unsupported: The runtime does not evaluate the nodes, or not element by element.
        """
        try:
            result = self._evaluated(elements)
        except FAILURES as error:
            name = self.nodes[-1].op_type
            raise Unsupported(f"{name} cannot be evaluated: {extract_reason(error)}") from error
        if result.size != elements[0].size:
            raise Unsupported(f"{self.nodes[-1].op_type} changes the shape of its input")
        return np.asarray(result.reshape(elements[0].shape))

    def _evaluated(self, elements: Sequence[Array]) -> Array:
        session, feeds = self._session
        shape = [1] * self.rank
        shape[0], shape[self.axis] = elements[0].shape
        feeds = dict(feeds)
        for value, array in zip(self.xs, elements, strict=True):
            x = np.asarray(array, np.float32).reshape(shape)
            if self.window:
                sizes = list(self.window)
                sizes.insert(self.axis - 1, 1)
                x = np.pad(x, [(0, size - 1) for size in (1, *sizes)])
            feeds[str(value.name)] = x
        (result,) = run_session(session, feeds).values()
        return result


def _freeze_thresholds(piece: ir.Model, values: Mapping[str | None, ir.Value]) -> None:
    """Turn the thresholds among the inputs of a piece of a graph into constants."""
    for node in piece.graph:
        table = node.inputs[1] if is_multi_threshold(node) else None
        if table is not None and table.is_graph_input():
            table.const_value = values[table.name].const_value
            piece.graph.inputs.remove(table)
            piece.graph.register_initializer(table)


@dataclass(frozen=True, eq=False)
class Mean:
    """The mean of a window as a function of its sum: the node is evaluated on it and zeros."""

    nodes: NodeChain

    def __call__(self, elements: Array) -> Array:
        distinct, inverse = np.unique(elements, return_inverse=True)
        return np.asarray(self._of(distinct[:, None])[:, 0][inverse].reshape(elements.shape))

    def _of(self, elements: Array) -> Array:
        most = max(1, _MOST_AVERAGED // self.count)
        parts = range(0, len(elements), most)
        return np.concatenate([self.nodes(elements[at : at + most]) for at in parts])

    @property
    def count(self) -> int:
        """The number of elements of the window."""
        return math.prod(self.nodes.window)

    @property
    def is_sum(self) -> bool:
        """True if it is a sum: there is no division."""
        return self.nodes.nodes[0].op_type == "ReduceSum"
