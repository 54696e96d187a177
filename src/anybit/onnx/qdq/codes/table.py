# SPDX-License-Identifier: Apache-2.0
"""The operators on codes that have float nodes, and the functions that emit these."""

from collections.abc import Callable, Mapping
from functools import partial

import onnx_ir as ir

from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.qdq.codes import functions, products
from anybit.onnx.qdq.codes.emitter import Emitted, Emitter
from anybit.onnx.qdq.codes.moves import emit_move, get_moved

Emit = Callable[[Emitter], Emitted]
"""A function that emits the nodes of an operator, or raises Inexpressible."""

_RUNTIME = "com.microsoft"
_EMITTERS: dict[tuple[str, str], Emit] = {
    ("", "ConvInteger"): products.emit_integer_product,
    ("", "MatMulInteger"): products.emit_integer_product,
    ("", "QLinearConv"): products.emit_qlinear_conv,
    ("", "QLinearMatMul"): products.emit_qlinear_matmul,
    (_RUNTIME, "QGemm"): products.emit_qgemm,
    (_RUNTIME, "QLinearAdd"): functions.emit_add,
    (_RUNTIME, "QLinearAveragePool"): functions.emit_average_pool,
    (_RUNTIME, "QLinearConcat"): functions.emit_concat,
    (_RUNTIME, "QLinearConv"): products.emit_qlinear_conv,
    (_RUNTIME, "QLinearGlobalAveragePool"): functions.emit_global_average_pool,
    (_RUNTIME, "QLinearLeakyRelu"): functions.emit_function,
    (_RUNTIME, "QLinearMul"): functions.emit_mul,
    (_RUNTIME, "QLinearSigmoid"): functions.emit_function,
    (_RUNTIME, "QLinearSoftmax"): functions.emit_softmax,
}


def is_liftable(node: ir.Node) -> bool:
    """Return whether float nodes can take the place of an operator on codes.

    Products of dynamic codes are compiled as they are.
    """
    x = get_input(node, 0)
    source = None if x is None else x.producer()
    dynamic = is_onnx_op(source, "DynamicQuantizeLinear")
    return (node.domain, node.op_type) in _EMITTERS and not dynamic


def find_emitter(node: ir.Node, zeropts: Mapping[str, Array]) -> Emit | None:
    """Return the function that emits the nodes of an operator or of data movement of codes.

    Args:
        node: The node.
        zeropts: Zero-points by the names of codes, as `find_zeropts` returns them.
    """
    emit = _EMITTERS[node.domain, node.op_type] if is_liftable(node) else None
    moved = get_moved(node) if emit is None else []
    zeropt = zeropts.get(str(moved[0].name)) if moved else None
    if zeropt is None or any(value.dtype is None for value in moved):
        return emit
    return partial(emit_move, zeropt=zeropt)
