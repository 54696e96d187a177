# SPDX-License-Identifier: Apache-2.0
"""Constant folding."""

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.folding.evaluation import evaluate_operator, evaluate_standard
from anybit.onnx.folding.exact_nodes import evaluate_exactly, is_exact_node
from anybit.onnx.folding.extents import (
    FixedShape,
    find_deciding_input,
    infer_elementwise_shape,
    is_bounded,
)
from anybit.onnx.folding.pieces import FoldedValues, FoldingSubgraph, get_inputs_read
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.require import require_producer
from anybit.onnx.graph.shapes import get_proven_sizes
from anybit.onnx.graph.sizes import SizePropagator
from anybit.onnx.graph.walk import iter_nodes, iter_tensors
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.quantizers.nodes import (
    dequantize_constant,
    is_dequantize,
    is_quantize,
    quantize_constant,
)

# The bytes that folding may add: four times the constants of the model, and room for small ones.
_GROWTH = 4
_ROOM = 2**26
# Codes of few bits become floats.
_FLOAT = 4
# Larger results are computed one by one, so weights are not held twice.
_LARGEST_PIECE = 2**24
_BUDGET = "anybit.folding.budget"
_MOST_ROUNDS = 16


class FoldConstants(InPlacePass):
    """Replacement of nodes with constant inputs by their outputs, in a normalized model.

    The operators of this package are evaluated by their own functions, bit-identical to their
    kernels. The standard operators that compute scales, bit-widths and weights are evaluated by
    ONNX Runtime, one subgraph at a time. Gemm and MatMul are folded where no order of their sums
    changes a bit: the state before the first step of a recurrent cell is zero. Proven sizes are
    constants, too, and so are values computed from them; declared sizes of inner values are not.
    Loops and branches are never run.

    Other nodes stay, and those that would make the constants more than five times as large, over
    all passes on one model.

    Tensors are read one at a time. A folded input is dropped with its last reader.

    Raises:
        ModelError: An operator refuses its constant inputs (a bit-width of 2.5, shapes that do
            not broadcast), or a tensor cannot be read.
    """

    def __init__(
        self, *, operators: bool = True, codes: bool = False, rare_codes: bool = False
    ) -> None:
        """Select what to fold.

        `operators=False` folds standard operators only, so readers find the others. QuantizeLinear
        of constants becomes codes, and DequantizeLinear of scales becomes scales. `codes=True` also
        converts stored integers and narrow floats to float values, for sessions and for files whose
        weights are floats. Kernels of sessions have another order of sums for constant weights.
        `rare_codes=True` adds DequantizeLinear that is not a grid of this package: in float16, or
        with scales that are not positive. The compiler names such nodes, so it keeps them.
        """
        self._operators = operators
        self._codes = codes or rare_codes
        self._rare_codes = rare_codes

    def call(self, model: ir.Model) -> PassResult:
        if _BUDGET not in model.meta:
            model.meta[_BUDGET] = _ROOM + _GROWTH * _count_bytes(model)
        budget = model.meta[_BUDGET]
        folding = _Folding(model, budget, self._operators, self._codes, self._rare_codes)
        folding.fold(list(iter_nodes(model.graph)))
        model.meta[_BUDGET] = folding.budget
        modified = RemoveUnusedNodesPass()(model).modified
        return PassResult(model, bool(folding.count) or modified)


class _Folding:
    """A folding: standard nodes are collected and evaluated in one session, others at once.

    An operator of this package that reads an output of the collected subgraph waits for the next
    round, with its readers: so there are few subgraphs, whatever the order of the nodes.
    """

    def __init__(
        self, model: ir.Model, budget: int, operators: bool, codes: bool, rare_codes: bool
    ) -> None:
        self.count = 0
        self.budget = budget
        self._opset = model.graph.opset_imports.get("", 1)
        self._model = model
        self._operators = operators
        self._codes = codes
        self._rare_codes = rare_codes
        self._shapes: dict[ir.Value, FixedShape | None] = {}
        self._sizes = SizePropagator(self._get_known_sizes)
        self._subgraph = FoldingSubgraph(model)
        self._results = FoldedValues(model)

    def fold(self, nodes: Sequence[ir.Node]) -> None:
        for _ in range(_MOST_ROUNDS):
            if not nodes:
                break
            nodes = self._fold_round(nodes)
        for node in nodes:  # deeply nested ones take more rounds
            self._fold_round([node])
        self._results.finish()

    def _fold_round(self, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """Fold nodes; return those that must wait for results of this round."""
        waiting: list[ir.Node] = []
        deferred_values: set[ir.Value] = set()
        for node in nodes:
            single = len(node.outputs) == 1
            if node.graph is None or not (single or (node.outputs and is_exact_node(node))):
                continue
            if single and self._fold_sizes(node):
                continue
            read = [value for value in get_inputs_read(node) if value is not None]
            pending = [
                value
                for value in read
                if value in deferred_values or value in self._subgraph.extents
            ]
            if not all(is_constant(value) or value in pending for value in read):
                continue
            if self._must_wait(node, pending, deferred_values):
                waiting.append(node)
                deferred_values.update(node.outputs)
            elif _is_evaluated_directly(node):
                self._fold_directly(node)
            else:
                self._add_to_subgraph(node, read)
        self._evaluate()
        return waiting

    def _fold_sizes(self, node: ir.Node) -> bool:
        sizes = self._sizes.evaluate(node)
        if sizes is not None:
            self._replace(node, ir.Tensor(sizes))
            return True
        self._shapes[node.outputs[0]] = infer_elementwise_shape(node, self._get_shape)
        return False

    def _must_wait(
        self, node: ir.Node, pending: Sequence[ir.Value], deferred_values: set[ir.Value]
    ) -> bool:
        """Return whether a node can be folded only after this round, with its results."""
        if not pending or not (is_bounded(node) or _is_evaluated_directly(node)):
            return False
        if is_exact_node(node):
            return True
        joins = is_bounded(node) and find_deciding_input(node) not in pending
        return not joins or any(value in deferred_values for value in pending)

    def _get_known_sizes(self, value: ir.Value) -> Sequence[int | None] | None:
        shape = self._shapes.get(value)
        return get_proven_sizes(value, self._model) if shape is None else shape

    def _get_shape(self, value: ir.Value | None) -> FixedShape | None:
        if value is None:
            return None
        sizes = get_proven_sizes(value, self._model)
        if sizes is None:
            return self._shapes.get(value)
        fixed = tuple(size for size in sizes if size is not None)
        return fixed if len(fixed) == len(sizes) else self._shapes.get(value)

    def _add_to_subgraph(self, node: ir.Node, read: Sequence[ir.Value]) -> None:
        """Add a standard node to the subgraph, if it can be folded."""
        tensor = node.attributes.get("value") if node.op_type == "Constant" else None
        if isinstance(tensor, ir.Attr) and isinstance(tensor.value, ir.TensorProtocol):
            self._replace(node, tensor.as_tensor())
            return
        # The range of codes that a Clip declares would be lost.
        readers = [reader for reader, _ in node.outputs[0].uses()]
        if node.op_type == "Clip" and not self._codes and any(map(is_dequantize, readers)):
            return
        if not read and node.op_type != "Constant":
            return
        if not self._subgraph.can_take(node, self._largest_piece()):
            self._evaluate()
            constant = all(value is None or is_constant(value) for value in get_inputs_read(node))
            if not constant or not self._subgraph.can_take(node, self.budget):
                return
        self._subgraph.add(node)

    def _largest_piece(self) -> int:
        return min(_LARGEST_PIECE, self.budget)

    def _fold_directly(self, node: ir.Node) -> None:
        if is_exact_node(node):
            results = evaluate_exactly(node, self._opset, self.budget)
        else:
            result = self._evaluate_node(node)
            results = None if result is None else [result]
        if results is not None:
            self.budget -= sum(result.nbytes for result in results)
            self._replace(node, *map(ir.Tensor, results))

    def _evaluate_node(self, node: ir.Node) -> Array | None:
        # The result has the shape of the first input.
        x = node.inputs[0] if node.inputs else None
        if x is None or x.const_value is None or x.const_value.nbytes > self.budget:
            return None
        if is_quantize(node):
            return quantize_constant(node)
        if is_dequantize(node):
            return self._dequantize(node) if self._codes or _gives_scales(node) else None
        operator = find_operator(node)
        if not self._operators or operator is None:
            return None
        arrays = [None if value is None else read_array(value) for value in node.inputs]
        return evaluate_operator(node, operator, arrays)

    def _dequantize(self, node: ir.Node) -> Array | None:
        floats = dequantize_constant(node)
        if floats is not None or not self._rare_codes:
            return floats
        arrays = [None if value is None else read_array(value) for value in node.inputs]
        return evaluate_standard(node, arrays, self._opset, self._model.ir_version or 8)

    def _evaluate(self) -> None:
        for value, array in self._subgraph.evaluate().items():
            self.budget -= array.nbytes
            self._replace(require_producer(value), ir.Tensor(array))
        self._subgraph = FoldingSubgraph(self._model)

    def _replace(self, node: ir.Node, *tensors: ir.TensorProtocol) -> None:
        self._results.put(node, tensors)
        self.count += 1


def _is_evaluated_directly(node: ir.Node) -> bool:
    """Return whether a node is evaluated by its own function, not in a session."""
    return (
        find_operator(node) is not None or _is_quantize_or_dequantize(node) or is_exact_node(node)
    )


def _is_quantize_or_dequantize(node: ir.Node) -> bool:
    return is_quantize(node) or is_dequantize(node)


def _gives_scales(node: ir.Node) -> bool:
    """Return whether all readers use a DequantizeLinear as a scale.

    Scales of blocks are quantized themselves.
    """
    uses = node.outputs[0].uses()
    return bool(uses) and all(at == 1 and _is_quantize_or_dequantize(reader) for reader, at in uses)


def _count_bytes(model: ir.Model) -> int:
    """Return the bytes of all constants, counting narrow types as floats."""
    return sum(max(tensor.nbytes, _FLOAT * tensor.size) for tensor in iter_tensors(model))
