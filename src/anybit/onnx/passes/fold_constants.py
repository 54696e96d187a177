# SPDX-License-Identifier: Apache-2.0
"""Evaluate what is constant once, before the session."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.editor import drop_if_unread
from anybit.onnx.graph.evaluation import (
    Arrays,
    Shape,
    evaluate_operator,
    evaluate_standard,
    result_bound,
    result_shape,
)
from anybit.onnx.graph.sizes import Sizes, sizes_of
from anybit.onnx.operators.registry import operator_of
from anybit.onnx.qdq.nodes import dequantized, is_dequantize

# What folding may add to a model: four times its own constants, and room for small models.
_GROWTH = 4
_ROOM = 2**24


class FoldConstants(InPlacePass):
    """Replace nodes whose inputs are all constant by their results. The model is normalised.

    Our operators are evaluated by their own functions, bit for bit what their kernels compute;
    the standard operators that scales, bit-widths and weights are computed with, by ONNX Runtime's
    kernels. Sizes that are declared, or follow from declared ones elementwise, are constants too,
    and so is what is computed from them.
    Other nodes, and whatever would make the constants more than five times as large, stay.

    Tensors are read one at a time, and each folded input is dropped when its last reader is.

    Raises:
        ModelError: An operator refuses its constant inputs (a bit-width of 2.5, shapes that do
            not broadcast), or a tensor cannot be read.
    """

    def __init__(self, *, operators: bool = True, codes: bool = False) -> None:
        """`operators=False` folds standard operators only, so that a reader finds the others.

        `codes=True` also turns stored integers and 8-bit floats into the floats that they stand
        for, which a file would not want, but a session does: its kernels treat constant weights in
        a way of their own, and add in another order.
        """
        self._operators = operators
        self._codes = codes

    def call(self, model: ir.Model) -> PassResult:
        folding = _Folding(model, _ROOM + _GROWTH * _elements(model), self._operators, self._codes)
        count = sum(folding.fold(node) for node in list(model.graph.all_nodes()))
        modified = RemoveUnusedNodesPass()(model).modified
        return PassResult(model, bool(count) or modified)


def _elements(model: ir.Model) -> int:
    """Of all constants together."""
    tensors = (
        value.const_value for graph in model.graphs() for value in graph.initializers.values()
    )
    return sum(tensor.size for tensor in tensors if tensor is not None)


class _Folding:
    def __init__(self, model: ir.Model, elements_left: int, operators: bool, codes: bool) -> None:
        self._elements_left = elements_left
        self._operators = operators
        self._codes = codes
        self._shapes: dict[ir.Value, Shape | None] = {}
        self._sizes = Sizes(self._known_sizes)
        self._opset = model.graph.opset_imports.get("", 1)
        self._ir_version = model.ir_version or 8

    def fold(self, node: ir.Node) -> bool:
        """Put the result in the node's place, if it can be known."""
        if node.graph is None or len(node.outputs) != 1:
            return False
        # Runtimes hold inputs to their declared shapes, so those are as good as constants.
        sizes = self._sizes.follow(node)
        if sizes is not None:
            _replace(node, ir.tensor(sizes))
            return True
        shapes = [self._shape(value) for value in node.inputs]
        self._shapes[node.outputs[0]] = result_shape(node, shapes)
        if not all(value is None or is_constant(value) for value in _read(node)):
            return False
        if node.op_type == "Constant" and node.domain == "":
            tensor = node.attributes.get("value")
            if isinstance(tensor, ir.Attr) and isinstance(tensor.value, ir.TensorProtocol):
                _replace(node, tensor.as_tensor())
                return True
        elif not node.inputs:
            return False
        result = self._result(node)
        if result is None:
            return False
        self._elements_left -= result.size
        _replace(node, ir.tensor(result))
        return True

    def _known_sizes(self, value: ir.Value) -> Sequence[int | None] | None:
        shape = self._shape(value)
        return sizes_of(value) if shape is None else shape

    def _shape(self, value: ir.Value | None) -> Shape | None:
        if value is None or value.shape is None or not value.shape.is_static():
            return None if value is None else self._shapes.get(value)
        return value.shape.numpy()

    def _result(self, node: ir.Node) -> Array | None:
        operator = operator_of(node)
        if operator is not None and not self._operators:
            return None
        arrays = [None if value is None else _array_of(value) for value in node.inputs]
        if operator is not None:
            # The result has the shape of the first input.
            if arrays[0] is None or arrays[0].size > self._elements_left:
                return None
            return evaluate_operator(node, operator, arrays)
        if is_dequantize(node):
            return dequantized(node) if self._codes else None
        return self._standard_result(node, arrays)

    def _standard_result(self, node: ir.Node, arrays: Arrays) -> Array | None:
        # The range that a Clip gives to codes would be lost.
        readers = [reader for reader, _ in node.outputs[0].uses()]
        if node.op_type == "Clip" and not self._codes and any(map(is_dequantize, readers)):
            return None
        bound = 1 if node.op_type == "Constant" else result_bound(node, arrays)
        if bound is None or bound > self._elements_left:
            return None
        return evaluate_standard(node, arrays, self._opset, self._ir_version)


def _read(node: ir.Node) -> Sequence[ir.Value | None]:
    """The inputs whose elements matter: of what a CastLike is like only the type does."""
    like = node.inputs[1:2] if (node.domain, node.op_type) == ("", "CastLike") else ()
    typed = any(value is not None and value.dtype is not None for value in like)
    return node.inputs[:1] if typed else node.inputs


def _array_of(value: ir.Value) -> Array:
    """The array of a constant; for what is only a type, one of no elements."""
    if is_constant(value):
        return array_of(value)
    assert value.dtype is not None, "asked before"
    return np.empty(0, value.dtype.numpy())


def _replace(node: ir.Node, tensor: ir.TensorProtocol) -> None:
    """Make the node's output an initializer of that value, and drop inputs without readers."""
    graph, old, inputs = node.graph, node.outputs[0], [v for v in node.inputs if v is not None]
    assert graph is not None
    value = ir.Value(
        name=old.name,
        const_value=tensor,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape.numpy()),
    )
    old.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    graph.register_initializer(value)
    for each in inputs:
        drop_if_unread(each)
