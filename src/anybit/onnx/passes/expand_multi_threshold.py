# SPDX-License-Identifier: Apache-2.0
"""MultiThreshold in standard operators."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import describe, get_label
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.multi_threshold import Staircase, is_multi_threshold, read_staircase
from anybit.onnx.report import ConversionReport, ConversionStep

OPSET = 12
"""The first opset with GreaterOrEqual."""

_LARGEST_INDEX = 2**31 - 1


class ExpandMultiThreshold(InPlacePass):
    """Replacement of each MultiThreshold by a binary search in its sorted thresholds.

    A step compares x with one threshold per element (Gather, GreaterOrEqual, Where), so 255
    thresholds take 8 steps and only the memory of x. A last Gather reads the result from the table
    of all values. Results are equal bit for bit. The model has at least opset 12, and its shapes
    are inferred.

    Raises:
        ModelError: See `read_staircase`.
    """

    def call(self, model: ir.Model) -> ConversionReport:
        editor, steps = Editor(model), []
        for node in [node for node in iter_nodes(model.graph) if is_multi_threshold(node)]:
            staircase = read_staircase(node)
            steps.append(ConversionStep(get_label(node), node.op_type, "standard operators"))
            _Search(node, staircase, editor).write()
        return ConversionReport(model, bool(steps), tuple(steps))


class _Search:
    """The binary search of one node.

    Row c of the thresholds begins at c * stride in a flat table; rows are padded with NaN, which no
    x reaches. A position is the row's start plus the number of thresholds proven to be reached.
    """

    def __init__(self, node: ir.Node, staircase: Staircase, editor: Editor) -> None:
        self._node = node
        self._editor = editor
        self._values = staircase.values
        channels, steps = staircase.thresholds.shape
        self._stride = 1 << steps.bit_length()
        if channels * self._stride > _LARGEST_INDEX:
            raise ModelError(f"{describe(node)} has too many thresholds: {channels} x {steps}")
        table = np.full((channels, self._stride), np.nan, np.float32)
        table[:, :steps] = staircase.thresholds
        self._table = table
        self._shape = (channels, *[1] * staircase.trailing_axes) if channels > 1 else ()

    def write(self) -> None:
        x, like = self._node.inputs[0], self._node.outputs[0]
        first = np.arange(len(self._table), dtype=np.int32) * np.int32(self._stride)
        start = self._make_constant("start", first.reshape(self._shape))
        position, step = start, self._stride // 2
        insert, integers = self._make_inserter(like), ir.DataType.INT32
        table = self._make_constant("thresholds", self._table.reshape(-1))
        while step:
            if position is start:
                column = self._table[:, step - 1].reshape(self._shape)
                threshold = self._make_constant("threshold", column)
                ahead = self._make_constant("ahead", (first + np.int32(step)).reshape(self._shape))
            else:
                ahead, index = (
                    insert("Add", [position, self._make_constant("step", np.int32(more))], integers)
                    for more in (step, step - 1)
                )
                threshold = insert("Gather", [table, index], ir.DataType.FLOAT)
            reached = insert("GreaterOrEqual", [x, threshold], ir.DataType.BOOL)
            position = insert("Where", [reached, ahead, position], integers)
            step //= 2
        if len(self._table) > 1:
            position = insert("Sub", [position, start], integers)
        values = self._make_constant("values", self._values)
        self._editor.replace(self._node, insert("Gather", [values, position], ir.DataType.FLOAT))

    def _make_constant(self, role: str, array: Array | np.int32) -> ir.Value:
        return self._editor.share_constant(role, f"{self._name}_{role}", np.asarray(array))

    @property
    def _name(self) -> str:
        return str(self._node.outputs[0].name or self._node.name)

    def _make_inserter(
        self, like: ir.Value
    ) -> Callable[[str, list[ir.Value | None], ir.DataType], ir.Value]:
        def insert(kind: str, inputs: list[ir.Value | None], dtype: ir.DataType) -> ir.Value:
            name = f"{self._name}_{kind.lower()}"
            return self._editor.insert(self._node, kind, inputs, name, like=like, dtype=dtype)

        return insert
