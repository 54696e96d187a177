# SPDX-License-Identifier: Apache-2.0
"""DynamicQuantizeMatMul and MatMulIntegerToFloat, split into the standard nodes they stand for.

ONNX Runtime fuses these nodes when it optimizes a dynamically quantized model, and fuses them again
where they stay.
"""

from collections.abc import Sequence
from functools import partial

import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_graph
from anybit.onnx.report import ConversionReport, ConversionStep

_DOMAIN = "com.microsoft"
_FIRST_OPSET = 11
"""The first opset with DynamicQuantizeLinear."""
_MATRIX = 2
_ACTION = "MatMulInteger"
_REASON = "the standard nodes that ONNX Runtime fuses to it, with the same bits"


class SplitDynamicProducts(InPlacePass):
    """Replacement of DynamicQuantizeMatMul and MatMulIntegerToFloat by standard nodes.

    DynamicQuantizeLinear, MatMulInteger, Cast, Mul and Add take their place where matrices are
    constant, with the same bits. Types are known.
    """

    def call(self, model: ir.Model) -> ConversionReport:
        if model.graph.opset_imports.get("", 1) < _FIRST_OPSET:
            return ConversionReport(model, False)
        editor, steps = Editor(model), []
        for node in [node for node in model.graph if node.domain == _DOMAIN and _is_split(node)]:
            steps.append(ConversionStep(get_label(node), node.op_type, _ACTION, _REASON))
            _split(node, editor)
        return ConversionReport(model, bool(steps), tuple(steps))


def _is_split(node: ir.Node) -> bool:
    """Return whether a node multiplies dynamic codes by a constant matrix."""
    weight = get_input(node, 1)
    if weight is None or not is_constant(weight) or len(weight.shape or ()) != _MATRIX:
        return False
    if node.op_type == "DynamicQuantizeMatMul":
        scale = get_input(node, 2)
    else:
        codes, scale = get_input(node, 0), get_input(node, 3)
        source = None if codes is None else codes.producer()
        if node.op_type != "MatMulIntegerToFloat" or source is None:
            return False
        if not is_onnx_op(source, "DynamicQuantizeLinear"):
            return False
    return scale is not None and scale.dtype == ir.DataType.FLOAT


def _split(node: ir.Node, editor: Editor) -> None:
    y, float32 = node.outputs[0], ir.DataType.FLOAT
    insert = partial(editor.insert, node, name=str(node.name or y.name), like=y)
    if node.op_type == "MatMulIntegerToFloat":
        codes, _, x_scale, w_scale, x_zero, w_zero, bias = (get_input(node, n) for n in range(7))
    else:
        codes, x_scale, x_zero = _quantize(node, editor)
        w_scale, w_zero, bias = (get_input(node, place) for place in (2, 3, 4))
    operands = [codes, node.inputs[1], x_zero, w_zero]
    sums = insert(kind="MatMulInteger", inputs=operands, dtype=ir.DataType.INT32)
    to = [ir.AttrInt64("to", float32)]
    floats = insert(kind="Cast", inputs=[sums], dtype=float32, attributes=to)
    nowhere = ir.Value(name=None)
    scales = insert(kind="Mul", inputs=[x_scale, w_scale], dtype=float32, like=nowhere)
    result = insert(kind="Mul", inputs=[floats, scales], dtype=float32)
    if bias is not None:
        result = insert(kind="Add", inputs=[result, bias], dtype=float32)
    editor.replace(node, result)


def _quantize(node: ir.Node, editor: Editor) -> Sequence[ir.Value]:
    """Insert a DynamicQuantizeLinear of the first input; return codes, scale and zero-point."""
    source = ir.Node("", "DynamicQuantizeLinear", [node.inputs[0]], num_outputs=3)
    for value, name in zip(source.outputs, ("quantized", "scale", "zero_point"), strict=True):
        value.name = editor.unique(f"{node.outputs[0].name}_{name}")
    source.name = source.outputs[0].name
    require_graph(node).insert_before(node, source)
    return source.outputs
