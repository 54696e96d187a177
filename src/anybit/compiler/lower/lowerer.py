# SPDX-License-Identifier: Apache-2.0
"""Lowering of expressions to instructions, for consumers that need codes or float32."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.layer import CompiledLayer, certify
from anybit.compiler.lower.float_functions import find_float_function
from anybit.compiler.lower.pair_arithmetic import find_pair_arithmetic
from anybit.compiler.lower.requantization import Requantizer
from anybit.compiler.operators import are_increasing, is_uniform, split_quantizer
from anybit.compiler.partition.dynamic_codes import REASON, DynamicProduct, plan_block_product
from anybit.compiler.partition.element_functions import ElementFunction, NodeChain
from anybit.compiler.partition.element_moves import plan_moves
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Expression,
    FloatOperands,
    InputRoot,
    IntegerTensor,
    MatMulRoot,
    OutputRoot,
    PairRoot,
    PendingMove,
    PlannedInstruction,
    RegionInput,
    RegionOutput,
    TensorRoot,
)
from anybit.compiler.partition.layout import Layout, make_reshape_fields
from anybit.compiler.partition.lowering import Lowered
from anybit.compiler.program import program as p
from anybit.compiler.program.encoding import pack_weights
from anybit.compiler.program.open_bits import OPEN_OPERATORS, has_open_bits
from anybit.compiler.reason import UNSUPPORTED, Reason, Unsupported
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.names import get_label
from anybit.quant_types.grids import TensorGrid
from anybit.quant_types.layer_info import Guarantee, LayerInfo

_MOST_ENTRIES = 2**24
_OPEN = "ONNX leaves the last bits of its {} open"


class Lowerer:
    """Lowers the expressions of one model.

    Args:
        model: The model.
        guarantee: The weakest guarantee of layers that are lowered.
        requantizer: Finds epilogues and thresholds.
        shared: Functions of accumulators that are outputs of a region, and the layers they end.
    """

    def __init__(
        self,
        model: ir.Model,
        guarantee: Guarantee,
        requantizer: Requantizer,
        shared: Mapping[ir.Value, CompiledLayer | None],
    ) -> None:
        self._model = model
        self._guarantee = guarantee
        self._requantizer = requantizer
        self._shared = shared
        self._opens = Guarantee.BOUNDED.rank <= guarantee.rank

    def quantize_input(
        self, expression: Expression, grid: TensorGrid, layout: Layout
    ) -> Lowered[IntegerTensor] | Reason:
        """Lower a function of an input of the region to one Quantize, in any layout."""
        root = expression.root
        assert isinstance(root, InputRoot), "others are computed from codes"
        function, uniform = expression.function(self._model), expression.uniform
        if layout != expression.layout and not uniform:
            return Reason("its channels lie along another axis than those of its constants")
        target = IntegerTensor(expression.value, layout, grid, root.stage)
        source = RegionInput(root.value, root.sizes, layout)
        return self._quantize(source, function, target, 1 if uniform else layout.channels)

    def compute_codes(
        self, expression: Expression, grid: TensorGrid
    ) -> Lowered[IntegerTensor] | Reason:
        """Lower a function of accumulators, or of one or two tensors, to codes."""
        pending, value = expression.pending, expression.value
        # Codes before their move are not a value of the graph.
        unmoved = value if pending is None else ir.Value(name=f"{value.name}_unmoved")
        target = IntegerTensor(unmoved, expression.root_layout, grid, expression.root.stage)
        try:
            lowered = self._compute(expression, target)
        except UNSUPPORTED as error:
            return Reason(str(error))
        if pending is None or isinstance(lowered, Reason):
            return lowered
        if pending.kind is p.MaxPool and not (
            grid.scale > 0 and are_increasing(expression.nodes, expression.starts[0])
        ):
            return Reason("the function after its pooling is not increasing")
        if pending.kind is not p.MaxPool and not expression.same:
            return Reason("the function after its data movement has per-channel parameters")
        moved = replace(target, value=value, layout=expression.layout, identity=object())
        return Lowered(moved, (*lowered.instructions, *_plan_move(target, moved, pending)))

    def compute_floats(self, expression: Expression) -> Lowered[RegionOutput] | Reason | None:
        """Lower an expression to float32; None if only the float nodes compute it."""
        root = expression.root
        output = RegionOutput(expression.value, expression.layout, root.stage)
        if expression.pending is not None:
            return None
        if isinstance(root, TensorRoot):
            return self._dequantize(expression, root.tensor, output)
        if isinstance(root, AccumulatorRoot):
            return self._float_product(expression, root, output)
        if isinstance(root, OutputRoot):
            return self._float_steps(expression, root, output)
        if isinstance(root, PairRoot):
            return self._float_pair(expression, root, output)
        return None

    def compute_elementwise(
        self, operands: FloatOperands, nodes: Sequence[ir.Node]
    ) -> Lowered[RegionOutput] | Reason:
        """Lower a chain of elementwise nodes from two arrays of float32, as far as possible."""
        first, *rest = nodes
        operation = _find_operation(first, operands.values)
        if operation is None:
            return Reason(f"{first.op_type} of two inputs of float32 has no instruction")
        y, steps = self._find_longest_steps(rest, first.outputs[0], operands.layout)
        target = RegionOutput(y, operands.layout, operands.stage)
        elementwise = _plan_elementwise(operands.arrays, target, operation, steps, rest)
        return Lowered(target, (elementwise,))

    def compute_dynamic_product(
        self, product: DynamicProduct, nodes: Sequence[ir.Node]
    ) -> Lowered[RegionOutput] | Reason:
        """Lower a product of codes with a computed scale, and nodes after it as far as possible.

        The accumulator, or that of a block, is multiplied by the scale of the weights, then the
        result by that of the activations.
        """
        root, layout = product.root, product.layout
        guarantee = root.layer.guarantee
        if guarantee is None or guarantee.rank > self._guarantee.rank:
            return Reason(f"{guarantee}, and only {self._guarantee} was asked for: {REASON}")
        epilogue = p.Arithmetic(root.accumulators.scales, ())
        layer = replace(CompiledLayer.of(root.layer), epilogue=type(epilogue).__name__)
        sums = RegionOutput(ir.Value(name=f"{product.y.name}_sums"), layout, root.stage)
        y, steps = self._find_longest_steps(nodes, product.y, layout)
        if product.bias is not None:
            steps = (p.Step(p.Operation.ADD, product.bias), *steps)
        target = RegionOutput(y, layout, root.stage)
        reads = sums, product.codes.scale
        if product.blocks is None:
            first = _plan_product(None, root, sums, epilogue, layer)
        else:
            first = plan_block_product(product, sums, layer)
        scaled = _plan_elementwise(reads, target, p.Operation.MULTIPLY, steps, nodes)
        return Lowered(target, (first, scaled))

    def gives_floats(self, expression: Expression) -> bool:
        """Return whether a function of accumulators can be computed in float32."""
        root = expression.root
        if expression.pending is not None or not isinstance(root, AccumulatorRoot):
            return False
        return self._find_float_epilogue(expression, root) is not None

    def compute_function(
        self, node: ir.Node, source: RegionInput | RegionOutput, target: RegionOutput
    ) -> Lowered[RegionOutput] | Reason:
        """Lower a function of all channels, or a mean over all pixels, to float32."""
        reason = "its sums of float32 have an open order"
        if Guarantee.BOUNDED.rank > self._guarantee.rank:
            return Reason(reason)
        function = find_float_function(node, source.layout, target.layout)
        if function is None:
            return Reason(f"{node.op_type} has no instruction with these inputs")
        kind, fields = function
        layer = _describe_function(node, reason)
        return Lowered(target, (PlannedInstruction(kind, (source,), target, fields, layer),))

    def change_layout(self, source: IntegerTensor, layout: Layout) -> Lowered[IntegerTensor]:
        """Lower a change of the order of axes; elements stay in the order of the graph."""
        if source.layout == layout:
            return Lowered(source)
        target = replace(source, layout=layout, identity=object())
        fields = make_reshape_fields(source.layout, layout)
        return Lowered(target, (PlannedInstruction(p.Reshape, (source,), target, fields),))

    def broadcast(self, source: IntegerTensor, layout: Layout) -> Lowered[IntegerTensor] | Reason:
        """Lower the repetition along axes of size 1."""
        if source.layout == layout:
            return Lowered(source)
        sizes = ("height", "width", "channels")
        pairs = [(getattr(source.layout, size), getattr(layout, size)) for size in sizes]
        if any(one not in (1, many) for one, many in pairs):
            return Reason("its two inputs differ in their sizes")
        rows, columns, channels = (
            np.arange(many, dtype=np.int32) * (one == many) for one, many in pairs
        )
        indices = {"rows": rows, "columns": columns, "channels": channels}
        target = replace(source, layout=layout, identity=object())
        gather = PlannedInstruction(
            p.Gather, (source,), target, {**indices, "first_channel": 0, "fill": 0}
        )
        return Lowered(target, (gather,))

    def _quantize(
        self,
        source: RegionInput | RegionOutput,
        function: ElementFunction,
        target: IntegerTensor,
        channels: int,
    ) -> Lowered[IntegerTensor] | Reason:
        """Lower a quantizer of float32 to thresholds."""
        grid = target.grid
        if not function.parts:  # a value that is on a grid by declaration
            function = ElementFunction().then(grid.round, monotone=True, uniform=True)
        quantizer = self._requantizer.quantizer(function, grid, channels)
        if isinstance(quantizer, Reason):
            return quantizer
        levels, fields = quantizer
        # Codes for other readers, such as the zero of a padding, may be out of its reach.
        first = target
        if levels < grid.levels:
            first = replace(target, grid=replace(grid, levels=levels), identity=object())
        quantize = PlannedInstruction(p.Quantize, (source,), first, fields)
        if first is target:
            return Lowered(target, (quantize,))
        entries = {"entries": np.arange(levels, dtype=np.uint8)}
        return Lowered(target, (quantize, PlannedInstruction(p.Lookup, (first,), target, entries)))

    def _compute(
        self, expression: Expression, target: IntegerTensor
    ) -> Lowered[IntegerTensor] | Reason:
        match expression.root:
            case AccumulatorRoot() as root:
                return self._product(expression, root, target)
            case OutputRoot() as root:
                return self._quantize_floats(expression, root, target)
            case TensorRoot() as root:
                values = _share_columns(root.tensor.grid.values, expression)
                indices = target.grid.index(expression.function(self._model)(values))
                fields = {"entries": _encode_entries(indices)}
                lookup = PlannedInstruction(p.Lookup, (root.tensor,), target, fields)
                return Lowered(target, (lookup,))
            case PairRoot() as root:
                return self._combine(expression, root, target)
        raise AssertionError("inputs are quantized by quantize_input")

    def _quantize_floats(
        self, expression: Expression, root: OutputRoot, target: IntegerTensor
    ) -> Lowered[IntegerTensor] | Reason:
        """Lower a quantizer of float32 of the region.

        Operations with one number per channel come first: kernels quantize whole lines if all
        channels have the same thresholds.
        """
        layout, nodes = expression.layout, expression.nodes
        if expression.uniform or expression.before.parts or layout != root.output.layout:
            channels = 1 if expression.uniform else target.layout.channels
            return self._quantize(root.output, expression.function(self._model), target, channels)
        x, quantizers = split_quantizer(nodes[-1])
        (start,), rest = expression.starts, nodes[: len(nodes) - len(quantizers)]
        steps = self._find_steps(rest, start, x, layout)
        if not steps or not all(map(is_uniform, quantizers)):
            function = expression.function(self._model)
            return self._quantize(root.output, function, target, layout.channels)
        inner = RegionOutput(ir.Value(name=f"{x.name}_scaled"), layout, root.stage)
        chain = NodeChain(self._model, quantizers, (x,), expression.value, layout.rank, layout.axis)
        function = ElementFunction().then(chain, monotone=chain.monotone, uniform=True)
        lowered = self._quantize(inner, function, target, 1)
        if isinstance(lowered, Reason):
            return lowered
        first = _plan_elementwise((root.output,), inner, p.Operation.ADD, steps, rest)
        return Lowered(lowered.target, (first, *lowered.instructions))

    def _combine(
        self, expression: Expression, root: PairRoot, target: IntegerTensor
    ) -> Lowered[IntegerTensor]:
        """Lower a function of two tensors to arithmetic, or else to a table of all pairs."""
        function = expression.function(self._model)
        pairs = _pair_values(root, expression)
        indices = target.grid.index(function(*pairs))
        arithmetic = find_pair_arithmetic(
            self._model, expression, root, pairs, target.grid, indices
        )
        reads = (root.first, root.second)
        if arithmetic is None:
            fields = {"entries": _encode_entries(indices)}
            return Lowered(target, (PlannedInstruction(p.Combine, reads, target, fields),))
        instruction = PlannedInstruction(arithmetic.kind, reads, target, arithmetic.fields)
        return Lowered(target, (instruction,))

    def _product(
        self, expression: Expression, root: AccumulatorRoot, target: IntegerTensor
    ) -> Lowered[IntegerTensor] | Reason:
        requantization = self._requantizer.epilogue(expression, root, target.grid)
        if isinstance(requantization, Reason):
            return requantization
        guarantee = certify(
            root.layer, at_risk=bool(requantization.risks) or requantization.more_risks
        )
        if guarantee.rank > self._guarantee.rank:
            return self._too_weak(root, guarantee)
        layer = replace(
            CompiledLayer.of(root.layer),
            guarantee=guarantee,
            epilogue=type(requantization.epilogue).__name__,
            levels=target.grid.levels,
            steps=requantization.steps,
            risks=requantization.risks,
            more_risks=requantization.more_risks,
        )
        return Lowered(
            target, (_plan_product(expression, root, target, requantization.epilogue, layer),)
        )

    def _float_product(
        self, expression: Expression, root: AccumulatorRoot, output: RegionOutput
    ) -> Lowered[RegionOutput] | Reason | None:
        epilogue = self._find_float_epilogue(expression, root)
        if epilogue is None:
            return None
        layer = self._shared.get(expression.value) or CompiledLayer.of(root.layer)
        if has_open_bits(epilogue.steps):
            _, reason = _explain_open(expression.all_nodes)
            layer = replace(layer, guarantee=Guarantee.BOUNDED, reason=reason)
        assert layer.guarantee is not None, "layers with accumulators have one"
        if layer.guarantee.rank > self._guarantee.rank:
            return self._too_weak(root, layer.guarantee)
        layer = replace(layer, epilogue=type(epilogue).__name__)
        return Lowered(output, (_plan_product(expression, root, output, epilogue, layer),))

    def _find_float_epilogue(
        self, expression: Expression, root: AccumulatorRoot
    ) -> p.Arithmetic | None:
        return self._requantizer.float_epilogue(expression, root, open_functions=self._opens)

    def _dequantize(
        self, expression: Expression, source: IntegerTensor, output: RegionOutput
    ) -> Lowered[RegionOutput] | None:
        try:
            results = expression.function(self._model)(
                _share_columns(source.grid.values, expression)
            )
        except UNSUPPORTED:  # its nodes cannot be evaluated on single elements
            return None
        if results.dtype != np.float32:
            return None
        fields = {"values": _merge_rows(results.T).ravel()}
        return Lowered(output, (PlannedInstruction(p.Dequantize, (source,), output, fields),))

    def _float_pair(
        self, expression: Expression, root: PairRoot, output: RegionOutput
    ) -> Lowered[RegionOutput] | None:
        """Lower an operation of two tensors to one of their floats."""
        expression, tensors = expression.before_renaming, (root.first, root.second)
        if not expression.nodes or expression.before.parts:
            return None
        first, *rest = expression.nodes
        operation = _find_operation(first, expression.starts)
        if operation is None or any(tensor.layout != expression.layout for tensor in tensors):
            return None
        steps = self._find_steps(rest, first.outputs[0], expression.value, expression.layout)
        if steps is None:
            return None
        instructions, operands = [], []
        for tensor in tensors:
            inner = ir.Value(name=tensor.value.name)  # the value itself may be an output
            operand = RegionOutput(inner, tensor.layout, root.stage)
            fields = {"values": tensor.grid.values}
            instructions.append(PlannedInstruction(p.Dequantize, (tensor,), operand, fields))
            operands.append(operand)
        whole = _plan_elementwise(operands, output, operation, steps, rest)
        return Lowered(output, (*instructions, whole))

    def _float_steps(
        self, expression: Expression, root: OutputRoot, output: RegionOutput
    ) -> Lowered[RegionOutput] | None:
        """Lower functions of float32 of the region to operations with constants."""
        expression, steps = expression.before_renaming, None
        if expression.layout == root.output.layout and not expression.before.parts:
            (x,) = expression.starts
            steps = self._find_steps(expression.nodes, x, expression.value, expression.layout)
        if steps is None:
            return None
        reads, nodes = (root.output,), expression.nodes
        elementwise = _plan_elementwise(reads, output, p.Operation.ADD, steps, nodes)
        return Lowered(output, (elementwise,))

    def _find_steps(
        self, nodes: Sequence[ir.Node], x: ir.Value, y: ir.Value, layout: Layout
    ) -> tuple[p.Step, ...] | None:
        """Return the operations of a chain of nodes from x to y; None if it is not made of any."""
        if not nodes:
            return ()
        chain = NodeChain(self._model, tuple(nodes), (x,), y, layout.rank, layout.axis)
        return self._requantizer.float_steps(chain, layout.channels, open_functions=self._opens)

    def _find_longest_steps(
        self, nodes: Sequence[ir.Node], x: ir.Value, layout: Layout
    ) -> tuple[ir.Value, tuple[p.Step, ...]]:
        """Return the operations of as many nodes of a chain as possible, and their result."""
        for count in range(len(nodes), 0, -1):
            y = nodes[count - 1].outputs[0]
            steps = self._find_steps(nodes[:count], x, y, layout)
            if steps is not None:
                return y, steps
        return x, ()

    def _too_weak(self, root: AccumulatorRoot, guarantee: Guarantee) -> Reason:
        return Reason(
            f"{guarantee}, and only {self._guarantee} was asked for: {root.layer.reason}", root.node
        )


def _plan_move(
    source: IntegerTensor, target: IntegerTensor, pending: PendingMove
) -> list[PlannedInstruction]:
    """Return the instructions of a data movement that has waited for codes."""
    if pending.kind is p.Gather:
        return plan_moves(source, target, pending.fields["numbers"])
    return [PlannedInstruction(pending.kind, (source,), target, pending.fields)]


def _plan_product(
    expression: Expression | None,
    root: AccumulatorRoot,
    target: IntegerTensor | RegionOutput,
    epilogue: p.Epilogue,
    layer: CompiledLayer,
) -> PlannedInstruction:
    if isinstance(root, MatMulRoot):
        operands = root.source, root.second
        fields = {**root.fields, "epilogue": epilogue}
        return PlannedInstruction(p.MatMul, operands, target, fields, layer, expression)
    bits, weights, values = pack_weights(root.weights)
    fields = {
        "window": root.window,
        "groups": root.groups,
        "weight_bits": bits,
        "weights": weights,
        "values": values,
        "epilogue": epilogue,
    }
    return PlannedInstruction(p.Product, (root.source,), target, fields, layer, expression)


def _find_operation(node: ir.Node, operands: Sequence[ir.Value]) -> p.Operation | None:
    """Return the operation of a node with two inputs; None if it is not one."""
    operations = _OPERATIONS.get(node.op_type)
    if node.domain or operations is None or len(node.inputs) != len(operands):
        return None
    return operations[0 if node.inputs[0] is operands[0] else 1]


_OPERATIONS: dict[str, tuple[p.Operation, p.Operation | None]] = {
    "Add": (p.Operation.ADD, p.Operation.ADD),
    "Sub": (p.Operation.SUBTRACT, p.Operation.SUBTRACT_FROM),
    "Mul": (p.Operation.MULTIPLY, p.Operation.MULTIPLY),
    "Div": (p.Operation.DIVIDE, None),
}
"""Operations by nodes, also with the second input as the first operand."""


def _plan_elementwise(
    reads: Sequence[RegionInput | RegionOutput],
    target: RegionOutput,
    operation: p.Operation,
    steps: tuple[p.Step, ...],
    nodes: Sequence[ir.Node],
) -> PlannedInstruction:
    """Return an elementwise instruction, a bounded layer if ONNX leaves bits of its steps open.

    Args:
        reads, target, operation, steps: Its operands and fields.
        nodes: Nodes, the first of them those of the steps.
    """
    fields = {"operation": operation, "steps": steps}
    layer = None
    if has_open_bits(steps):
        layer = _describe_function(*_explain_open(nodes))
    return PlannedInstruction(p.Elementwise, tuple(reads), target, fields, layer)


def _explain_open(nodes: Sequence[ir.Node]) -> tuple[ir.Node, str]:
    """Return the first node whose last bits ONNX leaves open, and the reason."""
    node = next(node for node in nodes if node.op_type in OPEN_OPERATORS)
    return node, _OPEN.format(node.op_type)


def _describe_function(node: ir.Node, reason: str) -> CompiledLayer:
    """Return the layer of a function of floats, whose bits ONNX leaves open."""
    output = str(node.outputs[0].name)
    bounded = Guarantee.BOUNDED
    return CompiledLayer.of(
        LayerInfo(get_label(node), node.op_type, output, bounded, reason, macs=0)
    )


def _share_columns(values: Array, expression: Expression) -> Array:
    """Return values in one column, or one per channel if the function differs between them."""
    channels = 1 if expression.uniform else expression.layout.channels
    return np.repeat(values[:, None], channels, axis=1)


def _pair_values(root: PairRoot, expression: Expression) -> tuple[Array, Array]:
    """Return all pairs of values, the second running fastest."""
    first, second = root.first.grid.values, root.second.grid.values
    pairs = np.repeat(first, len(second)), np.tile(second, len(first))
    columns = _share_columns(pairs[0], expression), _share_columns(pairs[1], expression)
    if columns[0].size > _MOST_ENTRIES:
        raise Unsupported("its two inputs have too many codes in too many channels")
    return columns


def _encode_entries(indices: Array) -> Array:
    return _merge_rows(indices.T.astype(np.uint8)).ravel()


def _merge_rows(rows: Array) -> Array:
    """Return one row if all are equal, bit for bit."""
    rows = np.ascontiguousarray(rows)
    bits = rows.view(f"u{rows.dtype.itemsize}")
    return rows[:1] if np.all(bits == bits[0]) else rows
