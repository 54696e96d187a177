# SPDX-License-Identifier: Apache-2.0
"""Computed scales of whole tensors, repeated for every row, as programs read them."""

import numpy as np
import onnx_ir as ir

from anybit.compiler.dynamic_quantizers import find_dynamic_quantizer
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.editor import Editor
from anybit.onnx.passes import InferShapes

_FIRST_OPSET = 15
"""The first opset in which Shape has bounds."""
_PARAMETERS = 3  # x, the scale and the zero-point


def repeat_scales(model: ir.Model) -> None:
    """Give each row of a tensor its own copy of a scale and zero-point of all rows, in place."""
    if model.graph.opset_imports.get("", 1) < _FIRST_OPSET:
        return
    editor, repeated = Editor(model), False
    for node in list(model.graph):
        quantizer = find_dynamic_quantizer(node)
        if quantizer is None or quantizer.formula.axes or not quantizer.x.shape:
            continue
        for place, value in enumerate(node.inputs[:_PARAMETERS]):
            if place > 0 and value is not None and not is_constant(value):
                node.replace_input_with(place, _repeat(value, quantizer.x, node, editor))
                repeated = True
    if repeated:
        InferShapes()(model)


def _repeat(value: ir.Value, x: ir.Value, before: ir.Node, editor: Editor) -> ir.Value:
    """Return a number once for each row of x, along axes of the rank of x."""
    rank = len(x.shape or ())
    int64 = ir.DataType.INT64
    bounds = [ir.AttrInt64("start", 0), ir.AttrInt64("end", 1)]
    nowhere = ir.Value(name=None)
    rows = editor.insert(
        before, "Shape", [x], f"{x.name}_rows", like=nowhere, dtype=int64, attributes=bounds
    )
    ones = editor.share_constant("ones", "ones", np.ones(rank - 1, np.int64))
    axis = [ir.AttrInt64("axis", 0)]
    shape = editor.insert(
        before, "Concat", [rows, ones], f"{x.name}_rows", like=nowhere, dtype=int64, attributes=axis
    )
    return editor.insert(
        before,
        "Expand",
        [value, shape],
        f"{value.name}_of_rows",
        like=ir.Value(name=None, shape=ir.Shape([*(x.shape or ())[:1], *[1] * (rank - 1)])),
        dtype=ir.DataType.FLOAT,
    )
