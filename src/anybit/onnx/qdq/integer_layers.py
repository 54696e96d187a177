# SPDX-License-Identifier: Apache-2.0
"""Layers that a file stores as operators on codes: QLinearConv, MatMulInteger, MatMulNBits, ..."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from anybit import text
from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.macs import count_macs
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_onnx_op
from anybit.onnx.graph.shapes import Sizes, get_proven_sizes
from anybit.onnx.qdq.packed_weights import describe_level, is_nbits
from anybit.onnx.quantizers.nodes import get_dtype
from anybit.quant_types.layer_info import LayerInfo

INTEGER_REASON = "already an integer operator, which stays as it is"

_RUNTIME = "com.microsoft"
_MAX_MOVES = 16
_FLOAT_BITS = 32


@dataclass(frozen=True)
class _Operands:
    """Indices of the inputs of an operator; `dynamic` if it quantizes its activations itself."""

    weights: tuple[int, ...]
    bias: int | None = None
    dynamic: bool = False


_OPERANDS = {
    ("", "ConvInteger"): _Operands((1,)),
    ("", "MatMulInteger"): _Operands((1,)),
    ("", "QLinearConv"): _Operands((3,), 8),
    ("", "QLinearMatMul"): _Operands((3,)),
    (_RUNTIME, "DynamicQuantizeLSTM"): _Operands((1, 2), 3, dynamic=True),
    (_RUNTIME, "DynamicQuantizeMatMul"): _Operands((1,), 4, dynamic=True),
    (_RUNTIME, "MatMulInteger16"): _Operands((1,)),
    (_RUNTIME, "MatMulIntegerToFloat"): _Operands((1,), 6),
    (_RUNTIME, "MatMulNBits"): _Operands((1,), 5),
    (_RUNTIME, "QGemm"): _Operands((3,), 6),
    (_RUNTIME, "QLinearConv"): _Operands((3,), 8),
}


def _get_operands(node: ir.Node) -> _Operands | None:
    return _OPERANDS.get((node.domain, node.op_type))


def describe_integer_layer(node: ir.Node, model: ir.Model) -> LayerInfo | None:
    """Return the layer of an operator that multiplies codes; None for other operators.

    Args:
        node: A node of the model.
        model: The model, with inferred shapes.

    Raises:
        ModelError: An attribute has another type than the operator's.
    """
    operands = _get_operands(node)
    if operands is None or not node.outputs:
        return None
    weight = get_input(node, operands.weights[0])
    output, packed = node.outputs[0], is_nbits(node)
    sizes = _get_weight_sizes(node, weight, model)
    return LayerInfo(
        name=get_label(node),
        operator=node.op_type,
        output=str(output.name),
        reason=_explain_packed(node) if packed else INTEGER_REASON,
        shape=text.format_shape(get_proven_sizes(output, model)),
        weight_shape=text.format_shape(sizes),
        parameters=sum(elements for _, elements in iter_code_weights(node)),
        macs=_count_macs(node, sizes, model),
        input_bits=_FLOAT_BITS if packed else _get_input_bits(node, operands),
        weight_bits=get_attribute(node, "bits", 4) if packed else _get_bits(weight),
        integer=not packed,
        dynamic=operands.dynamic or _is_dynamic(get_input(node, 0)),
    )


def iter_code_weights(node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
    """Yield the constant weights of an operator on codes with their numbers of elements."""
    operands = _get_operands(node)
    for index in () if operands is None else operands.weights:
        value = get_input(node, index)
        if value is not None and value.const_value is not None:
            packed = is_nbits(node)
            yield (
                value,
                _count_packed(node) if packed else math.prod(value.const_value.shape.numpy()),
            )


def get_code_bias(node: ir.Node) -> ir.Value | None:
    """Return the bias of an operator on codes; None without one."""
    operands = _get_operands(node)
    return None if operands is None or operands.bias is None else get_input(node, operands.bias)


def iter_code_parameters(node: ir.Node) -> Iterator[ir.Value]:
    """Yield scales and zero-points of an operator on codes, and scales of dynamic activations."""
    operands = _get_operands(node)
    if operands is not None:
        skipped = (0, operands.bias, *operands.weights)
        for index, value in enumerate(node.inputs):
            if value is not None and index not in skipped:
                yield value
    elif is_onnx_op(node, "Mul"):
        producers = [None if value is None else value.producer() for value in node.inputs]
        if any(is_onnx_op(producer, "DynamicQuantizeLinear") for producer in producers):
            yield from (value for value in node.inputs if value is not None)


def _count_packed(node: ir.Node) -> int:
    return int(get_attribute(node, "K", 0) * get_attribute(node, "N", 0))


def _explain_packed(node: ir.Node) -> str:
    bits = get_attribute(node, "bits", 4)
    return "; ".join(
        filter(None, (f"it multiplies floats by weights of {bits} bits", describe_level(node)))
    )


def _get_weight_sizes(node: ir.Node, weight: ir.Value | None, model: ir.Model) -> Sizes | None:
    if is_nbits(node):
        return get_attribute(node, "K", 0), get_attribute(node, "N", 0)
    return None if weight is None else get_proven_sizes(weight, model)


def _count_macs(node: ir.Node, weight: Sizes | None, model: ir.Model) -> int | None:
    if node.op_type == "DynamicQuantizeLSTM":
        return None
    x = get_input(node, 0)
    sizes = None if x is None else get_proven_sizes(x, model)
    return count_macs(node, sizes, weight, get_proven_sizes(node.outputs[0], model))


def _get_input_bits(node: ir.Node, operands: _Operands) -> int:
    return 8 if operands.dynamic else _get_bits(get_input(node, 0))


def _get_bits(value: ir.Value | None) -> int:
    """Return the width of codes: 8 if their type is unknown."""
    dtype = None if value is None else get_dtype(value)
    return 8 if dtype is None else int(dtype.bitwidth)


def _is_dynamic(value: ir.Value | None) -> bool:
    """Return whether codes are those of a DynamicQuantizeLinear, also after data movement."""
    for _ in range(_MAX_MOVES):
        node = None if value is None else value.producer()
        if node is None:
            return False
        if is_onnx_op(node, "DynamicQuantizeLinear"):
            return True
        if not has_trait(node, OpTrait.DATA_MOVEMENT):
            return False
        value = get_input(node, 0)
    return False
