# SPDX-License-Identifier: Apache-2.0
"""Weights of layers that stay float: codes with a DequantizeLinear, as small as they were."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.carriers import Carrier
from anybit.onnx.analysis.constants import recovered
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.editor import Editor, drop_if_unread
from anybit.onnx.quantizers.native_types import PER_AXIS_OPSET

# Smaller weights take less than the nodes.
_FEWEST = 2**10
_BYTES = range(-128, 128)


def store_codes(model: ir.Model) -> None:
    """Store float32 weights as int8 codes where these give the same values, in place.

    Only weights that are multiples of one scale, or of one per channel, are such. `prepare` folds
    the nodes again, and so does ONNX Runtime.
    """
    opset = model.graph.opset_imports.get("", 0)
    editor = Editor(model)
    for weight, node, axis in list(_weights(model)):
        with np.errstate(all="ignore"):  # some candidates for scales are no numbers
            found = recovered(array_of(weight), axis)
        if found is not None and opset >= PER_AXIS_OPSET and _is_stored(found):
            _replace(weight, node, found, editor)


def _weights(model: ir.Model) -> Iterator[tuple[ir.Value, ir.Node, int]]:
    """Yield each constant second operand of a product, the product, and the channels' axis."""
    for node in model.graph:
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if node.domain or node.op_type not in ("Conv", "Gemm", "MatMul") or weight is None:
            continue
        if not is_constant(weight) or len(weight.uses()) != 1 or weight.const_value is None:
            continue
        rank = len(weight.const_value.shape)
        if weight.const_value.size >= _FEWEST and rank > 1 and not weight.is_graph_output():
            first = node.op_type == "Conv" or bool(attribute_of(node, "transB", 0))
            yield weight, node, -rank if first else -1


def _is_stored(found: Carrier) -> bool:
    """Return whether int8 and scales hold the constant, but for the sign of zeros."""
    integers, codes = found.integers, found.codes
    if integers is None or codes is None or np.any(codes.zeropt):
        return False
    return int(integers.min()) in _BYTES and int(integers.max()) in _BYTES


def _replace(weight: ir.Value, node: ir.Node, found: Carrier, editor: Editor) -> None:
    codes = found.codes
    assert codes is not None, "asked before"
    assert found.integers is not None, "asked before"
    name = str(weight.name)
    stored = editor.constant(f"{name}_codes", ir.Tensor(found.integers.astype(np.int8)))
    axis = [] if found.axis is None else [ir.AttrInt64("axis", found.axis + found.integers.ndim)]
    inputs = [stored, editor.parameter(name, "scale", codes.scale, ir.DataType.FLOAT)]
    values = editor.insert(
        *(node, "DequantizeLinear", inputs, f"{name}_values"),
        like=weight,
        dtype=ir.DataType.FLOAT,
        attributes=axis,
    )
    node.replace_input_with(1, values)
    drop_if_unread(weight)
