# SPDX-License-Identifier: Apache-2.0
"""Products of two tensors with computed scales, as attention has: one node for each.

It quantizes both tensors and multiplies their codes. All sizes may be dynamic.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.compiler.dynamic_quantizers import DynamicQuantizer, find_dynamic_quantizer
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.operators import has_two_operands
from anybit.compiler.partition.dynamic_codes import REASON
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.layout import Order, get_transpose_order, reorder_shape
from anybit.onnx.operators.dynamic_matmul import NAME, OPERANDS
from anybit.onnx.operators.integer_network import DOMAIN
from anybit.quant_types.layer_info import Guarantee

_LEAST_RANK = 2
_KERNEL = "words"


@dataclass(frozen=True, eq=False)
class DynamicPair:
    """A MatMul and the quantizers of its inputs.

    Attributes:
        node: The MatMul.
        quantizers: The quantizers; scales are independent of the order of elements.
        orders: The order of axes that a Transpose makes of each quantizer's output.
    """

    node: ir.Node
    quantizers: tuple[DynamicQuantizer, DynamicQuantizer]
    orders: tuple[Order | None, Order | None] = (None, None)


def find_dynamic_pairs(model: ir.Model) -> Iterator[DynamicPair]:
    """Yield the products of two tensors with a scale per row and column, or of each tensor."""
    for node in model.graph:
        if node.domain or not has_two_operands(node):
            continue
        operands = [_find_operand(value) for value in node.inputs]
        first, second = operands if len(operands) == len(OPERANDS) else (None, None)
        if first is None or second is None:
            continue
        if _has_scales_along(*first, -1) and _has_scales_along(*second, -2):
            yield DynamicPair(node, (first[0], second[0]), (first[1], second[1]))


def _find_operand(value: ir.Value | None) -> tuple[DynamicQuantizer, Order | None] | None:
    """Return the quantizer of a value, and the order of axes if a Transpose follows it."""
    node = None if value is None else value.producer()
    order = None if node is None else get_transpose_order(node)
    if node is not None and order is not None:
        x = node.inputs[0]
        node = None if x is None else x.producer()
    quantizer = None if node is None else find_dynamic_quantizer(node)
    return None if quantizer is None else (quantizer, order)


def describe_layer(layer: CompiledLayer, pair: DynamicPair) -> CompiledLayer:
    """Return the layer of a product that is computed on integers."""
    first, second = (quantizer.bits for quantizer in pair.quantizers)
    codes = [(quantizer.codes[0], quantizer.codes[-1]) for quantizer in pair.quantizers]
    info = replace(
        layer.layer,
        guarantee=Guarantee.BOUNDED,
        reason=REASON,
        input_bits=first,
        weight_bits=second,
        input_codes=codes[0],
        weight_codes=codes[1],
        dynamic=True,
    )
    return replace(CompiledLayer.of(info), epilogue="Arithmetic", kernel=_KERNEL)


def replace_dynamic_pairs(model: ir.Model, outputs: Collection[str]) -> None:
    """Replace the products that compute some values by one node each, in place."""
    pairs = [p for p in find_dynamic_pairs(model) if str(p.node.outputs[0].name) in outputs]
    editor = Editor(model)
    for pair in pairs:
        _replace(pair, editor)
    if pairs:
        model.graph.opset_imports[DOMAIN] = 1
        RemoveUnusedNodesPass()(model)


def _has_scales_along(quantizer: DynamicQuantizer, order: Order | None, axis: int) -> bool:
    """Return whether there is a scale for all numbers along an axis of matrices, or one for all."""
    rank, axes = len(quantizer.x.shape or ()), quantizer.formula.axes
    if order is not None and len(order) != rank:
        return False
    expected = axis + rank if order is None or rank < _LEAST_RANK else order[axis]
    return rank >= _LEAST_RANK and axes in ((expected,), ())


def _replace(pair: DynamicPair, editor: Editor) -> None:
    node, y = pair.node, pair.node.outputs[0]
    first, second = (
        quantizer.x if order is None else _transpose(quantizer.x, order, node, editor)
        for quantizer, order in zip(pair.quantizers, pair.orders, strict=True)
    )
    transposed = _swap_axes(second, node, editor)
    attributes = [ir.AttrInt64("transposed", int(transposed is not None))]
    for name, quantizer in zip(OPERANDS, pair.quantizers, strict=True):
        attributes += _make_attributes(name, quantizer)
    inputs = [first, second if transposed is None else transposed]
    result = editor.insert(
        node,
        NAME,
        inputs,
        str(y.name),
        like=y,
        dtype=ir.DataType.FLOAT,
        attributes=attributes,
        domain=DOMAIN,
    )
    name = str(y.name)
    y.replace_all_uses_with(result, replace_graph_outputs=True)
    y.name = editor.unique(f"{name}_float")
    result.name = name


def _make_attributes(operand: str, quantizer: DynamicQuantizer) -> list[ir.Attr]:
    """Return the attributes of one input."""
    formula = quantizer.formula
    integers = {
        "lowest": quantizer.codes[0],
        "highest": quantizer.codes[-1],
        "asymmetric": int(quantizer.zero is not None),
        "whole": int(not formula.axes),
    }
    floats = {"steps": formula.steps, "least": formula.least, "most": formula.most}
    return [
        *(ir.AttrInt64(f"{operand}_{name}", number) for name, number in integers.items()),
        *(ir.AttrFloat32(f"{operand}_{name}", number) for name, number in floats.items()),
    ]


def _swap_axes(x: ir.Value, before: ir.Node, editor: Editor) -> ir.Value | None:
    """Return x with its last two axes swapped if it is a Transpose that moves the last axis."""
    transpose = x.producer()
    order = None if transpose is None else get_transpose_order(transpose)
    source = None if transpose is None else transpose.inputs[0]
    rank = len(x.shape or ())
    if source is None or order is None or len(order) != rank or order[-1] == rank - 1:
        return None
    swapped = (*order[:-2], order[-1], order[-2])
    return source if swapped == tuple(range(rank)) else _transpose(source, swapped, before, editor)


def _transpose(x: ir.Value, order: Order, before: ir.Node, editor: Editor) -> ir.Value:
    """Insert a Transpose of a float tensor."""
    attributes = [ir.AttrInt64s("perm", order)]
    y = editor.insert(
        before,
        "Transpose",
        [x],
        str(x.name),
        like=x,
        dtype=ir.DataType.FLOAT,
        attributes=attributes,
    )
    y.shape = reorder_shape(x.shape, order)
    return y
