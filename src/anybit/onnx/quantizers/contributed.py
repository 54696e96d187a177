# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear of ONNX Runtime's domain, as the standard operators.

ONNX Runtime had 16 and 4 bits before opset 21. Its tools write these operators for older opsets, or
with UseQDQContribOps. The formulas are the same.
"""

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.quantizers.native_types import PER_AXIS_OPSET, PER_BLOCK_OPSET, find_native_type
from anybit.onnx.quantizers.nodes import get_dtype, is_dequantize, is_quantize

_FLOAT16_OPSET = 19
_BLOCK_SIZE = "block_size"


def is_contributed(node: ir.Node) -> bool:
    """Return whether a node is one of the pair in ONNX Runtime's domain."""
    return bool(node.domain) and (is_quantize(node) or is_dequantize(node))


def find_standard_opset(node: ir.Node) -> int | None:
    """Return the first opset whose operator computes the same.

    None if there is none, or if the type of the codes is unknown.
    """
    native = find_native_type(_get_code_type(node))
    if native is None or len(node.inputs) < 2 or (native.wide and not _has_no_zeropt(node)):
        return None
    scale = node.inputs[1]
    tensor = None if scale is None else scale.const_value
    needed = native.opset
    if "axis" in node.attributes or tensor is None or tensor.shape.rank():
        needed = max(needed, PER_AXIS_OPSET)
    if scale is None or get_dtype(scale) != ir.DataType.FLOAT:
        needed = max(needed, _FLOAT16_OPSET)
    if get_attribute(node, _BLOCK_SIZE, 0):
        needed = max(needed, PER_BLOCK_OPSET)
    return needed


def standardize(node: ir.Node, opset: int) -> bool:
    """Replace a node of ONNX Runtime's domain by the standard operator, if the opset has it."""
    if not is_contributed(node):
        return False
    needed = find_standard_opset(node)
    if needed is None or needed > opset:
        return False
    node.domain = ""
    if opset < PER_BLOCK_OPSET:
        node.attributes.pop(_BLOCK_SIZE, None)  # 0, the default of newer opsets
    return True


def _get_code_type(node: ir.Node) -> ir.DataType | None:
    zeropt = node.inputs[2] if len(node.inputs) > 2 else None
    if zeropt is not None:
        return get_dtype(zeropt)
    if is_quantize(node):
        return ir.DataType.UINT8
    codes = node.inputs[0] if node.inputs else None
    producer = None if codes is None else codes.producer()
    if producer is not None and is_quantize(producer):
        return _get_code_type(producer)
    return None if codes is None else get_dtype(codes)


def _has_no_zeropt(node: ir.Node) -> bool:
    """Return whether the zero-point is 0: the standard operator has none for 32 bits."""
    zeropt = node.inputs[2] if len(node.inputs) > 2 else None
    return zeropt is None or (is_constant(zeropt) and not np.any(read_array(zeropt)))
