# SPDX-License-Identifier: Apache-2.0
"""Removal of computed zeros."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.op_traits import OpTrait, get_zero_inputs, has_trait, is_onnx_op


class DropZeros(InPlacePass):
    """Removal of computed biases and initial states that are all zeros.

    Exporters compute such zeros for layers without bias or state. Stored zero tensors stay. The
    sign of a zero may change: -0 + 0 is 0.
    """

    def call(self, model: ir.Model) -> PassResult:
        modified = False
        for node in model.graph.all_nodes():
            for index in get_zero_inputs(node):
                if index < len(node.inputs) and _is_computed_zero(node.inputs[index]):
                    node.replace_input_with(index, None)
                    modified = True
            kept = [index for index, value in enumerate(node.inputs, 1) if value is not None]
            node.resize_inputs(max(kept, default=0))
        return PassResult(model, modified)


def _is_computed_zero(value: ir.Value | None) -> bool:
    """Return whether nodes compute zeros, by moving, repeating and casting zeros."""
    node = None if value is None else value.producer()
    if node is None or node.op_type == "Constant":
        return False
    while node is not None and _makes_zeros_of_zeros(node):
        value = node.inputs[0]
        node = None if value is None else value.producer()
    if node is not None:
        return node.op_type in ("Constant", "ConstantOfShape") and _is_zero(node)
    return value is not None and is_constant(value) and _is_all_zero(value)


def _makes_zeros_of_zeros(node: ir.Node) -> bool:
    return has_trait(node, OpTrait.DATA_MOVEMENT | OpTrait.CAST) and bool(node.inputs)


def _is_zero(node: ir.Node) -> bool:
    """Return whether the output of a Constant or ConstantOfShape is zero."""
    attribute = node.attributes.get("value")
    if attribute is None:
        return is_onnx_op(node, "ConstantOfShape")
    tensor = attribute.value
    return (
        isinstance(tensor, ir.TensorProtocol)
        and not node.domain
        and _has_only_zeros(tensor.numpy())
    )


def _is_all_zero(value: ir.Value) -> bool:
    return (
        value.const_value is not None
        and value.const_value.size == 1
        and _has_only_zeros(read_array(value))
    )


def _has_only_zeros(array: np.ndarray) -> bool:
    return not np.any(array) and not np.any(np.signbit(array))
