# SPDX-License-Identifier: Apache-2.0
"""Obstacles of FLOAT4E2M1, a type without CPU kernels in ONNX Runtime."""

import onnx_ir as ir

from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.quantizers.nodes import get_dtype, is_dequantize, is_quantize

_NO_KERNELS = "ONNX Runtime has no CPU kernels for float4_e2m1fn"


def find_float4_obstacle(model: ir.Model) -> str:
    """Return why a model that computes with the type cannot run; empty for other models."""
    values = [*model.graph.inputs, *model.graph.outputs]
    for node in iter_nodes(model.graph):
        x = node.inputs[0] if is_quantize(node) and node.inputs else None
        if x is not None and not is_constant(x):
            values += [value for value in node.inputs[2:] if value is not None]
    if not any(map(_is_float4, values)):
        return ""
    return (
        f"{_NO_KERNELS}: only constants may have that type; "
        'anybit.convert(..., to="qonnx") makes quantizers of pairs with it'
    )


def list_float4_remarks(model: ir.Model) -> list[str]:
    """Return a remark on the nodes that read codes of the type, if any."""
    nodes = (node for node in iter_nodes(model.graph) if is_dequantize(node) and node.inputs)
    if not any(_is_float4(node.inputs[0]) for node in nodes):
        return []
    return [f"codes stay float4_e2m1fn: {_NO_KERNELS}; anybit.load computes such weights itself"]


def _is_float4(value: ir.Value | None) -> bool:
    return value is not None and get_dtype(value) == ir.DataType.FLOAT4E2M1
