# SPDX-License-Identifier: Apache-2.0
"""Commands that replace operators on codes: the remedies of messages."""

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.forms import Form
from anybit.onnx.qdq.codes.rewrite import may_rewrite
from anybit.onnx.qdq.nbits import describe_difference
from anybit.onnx.qdq.packed_weights import is_nbits
from anybit.onnx.qdq.qlinear import explain_inexact_parts
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize


def suggest_conversion(node: ir.Node, form: Form = Form.QONNX) -> str:
    """Return the call of `anybit convert` that replaces a node; "" if `convert` keeps it.

    The model's constants are folded. The neighbours of a QuantizeLinear are not checked.
    """
    command = f"anybit convert --to {form}"
    if is_quantize(node) or is_dequantize(node):
        return command
    try:
        changes = describe_difference(node) if is_nbits(node) else explain_inexact_parts(node)
    except (Inexpressible, ModelError):
        return command if may_rewrite(node) else ""
    return f"{command} --allow-approximate" if changes else command
