# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's MatMulNBits on codes with computed scales, as a MatMul of quantized weights."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.compiler.dynamic_quantizers import find_dynamic_quantizer
from anybit.compiler.prepare.removed_constants import RemovedInputs
from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.require import require_input, require_producer
from anybit.onnx.graph.shapes import record_shape
from anybit.onnx.passes import InferShapes
from anybit.onnx.qdq.packed_weights import BIAS, A, PackedWeight, is_nbits, read_packed_weight
from anybit.onnx.quantizers.grids import Inexpressible

_FLOAT = ir.DataType.FLOAT
_REASON = "anybit.nbits_reason"


@dataclass(frozen=True, eq=False)
class LiftedProduct:
    """A MatMulNBits, and the nodes in its place.

    Attributes:
        node: The MatMulNBits, which is no longer in the graph.
        inputs: Its inputs.
        product: The MatMul.
        added: The Add of its bias; None without one.
    """

    node: ir.Node
    inputs: RemovedInputs
    product: ir.Node
    added: ir.Node | None


def lift_dynamic_nbits(model: ir.Model) -> tuple[LiftedProduct, ...]:
    """Replace each MatMulNBits that reads a quantizer with a computed scale, in place.

    A DequantizeLinear of codes with a scale per block, MatMul and perhaps Add take its place.
    Nodes that may round their input again stay, as do those on floats.
    """
    editor, nodes = Editor(model), [node for node in model.graph if is_nbits(node)]
    lifted: list[LiftedProduct] = []
    for node in nodes:
        if not _reads_dynamic_codes(node):
            continue
        try:
            packed = read_packed_weight(node)
            if packed.difference or packed.dtype != _FLOAT:
                raise Inexpressible(packed.difference)
            lifted.append(_replace(node, packed, editor))
        except (Inexpressible, ValueError) as reason:  # it runs as it is
            node.meta[_REASON] = str(reason)
    if lifted:
        InferShapes()(model)
    return tuple(lifted)


def explain_kept_nbits(node: ir.Node) -> str:
    """Return why a MatMulNBits that reads dynamic codes stays; "" for other nodes."""
    return str(node.meta.get(_REASON, ""))


def restore_nbits(model: ir.Model, lifted: Iterable[LiftedProduct]) -> None:
    """Put the MatMulNBits back whose products no region computes, in place."""
    editor, restored = Editor(model), 0
    for at in lifted:
        if at.product.graph is None:
            continue
        y, last = at.product.outputs[0], at.product
        inputs = [require_input(last, A), *at.inputs.add_back(model, editor)[1:]]
        if at.added is not None and at.added.graph is not None and at.added.inputs[0] is y:
            last = at.added
        elif at.added is not None:  # nodes were inserted between: these add the bias
            inputs = inputs[:BIAS]
        result = editor.insert_copy(
            last, at.node, inputs, like=last.outputs[0], dtype=_FLOAT, name=str(at.node.name)
        )
        editor.replace(last, result)
        restored += 1
    if restored:
        RemoveUnusedNodesPass()(model)


def _reads_dynamic_codes(node: ir.Node) -> bool:
    x = get_input(node, A)
    producer = None if x is None else x.producer()
    return producer is not None and find_dynamic_quantizer(producer) is not None


def _replace(node: ir.Node, packed: PackedWeight, editor: Editor) -> LiftedProduct:
    """Replace a node.

    Raises:
        Inexpressible: The scales are not finite.
        ValueError: The values overflow float32.
    """
    grid, values = packed.weight(node)
    dtype = np.int8 if min(grid.codes) < 0 else np.uint8
    y, name = node.outputs[0], str(node.outputs[0].name)
    codes = grid.encode(values, dtype).reshape(-1, packed.n)[: packed.k]
    blocks = packed.blocks, 1, packed.n
    parts = {"codes": codes, "scales": np.broadcast_to(grid.scale, blocks)[:, 0]}
    if np.any(grid.zeropt):
        parts["zeros"] = np.broadcast_to(grid.zeropt, blocks)[:, 0].astype(dtype)
    constants = [
        editor.add_constant(f"{name}_{part}", ir.Tensor(np.ascontiguousarray(array)))
        for part, array in parts.items()
    ]
    sizes = [ir.AttrInt64("axis", 0), ir.AttrInt64("block_size", packed.block)]
    weight = editor.insert(
        node,
        "DequantizeLinear",
        constants,
        f"{name}_weight",
        like=constants[0],
        dtype=_FLOAT,
        attributes=sizes,
    )
    record_shape(weight, ir.Shape(codes.shape))
    x = require_input(node, A)
    result = editor.insert(node, "MatMul", [x, weight], f"{name}_product", like=y, dtype=_FLOAT)
    product, bias = require_producer(result), get_input(node, BIAS)
    if bias is not None:
        result = editor.insert(node, "Add", [result, bias], f"{name}_sum", like=y, dtype=_FLOAT)
    inputs, last = RemovedInputs.of(node), require_producer(result)
    editor.replace(node, result)
    product.name = node.name
    return LiftedProduct(node, inputs, product, None if bias is None else last)
