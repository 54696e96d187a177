# SPDX-License-Identifier: Apache-2.0
"""The factors of the axes of all tensors of a graph, followed from node to node."""

from collections.abc import Collection, Sequence

import onnx_ir as ir

from anybit.compiler.dynamic_quantizers import find_dynamic_quantizer
from anybit.compiler.operators import (
    find_constant_axes,
    has_two_operands,
    is_matrix_product,
    is_quantizer,
)
from anybit.compiler.prepare.axis_factors import (
    Axis,
    AxisFactor,
    AxisLayout,
    Size,
    flatten,
    get_axis_size,
    make_layout,
    regroup,
    resolve,
)
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.layout import get_transpose_order
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_onnx_op
from anybit.onnx.graph.reductions import get_reduced_axes
from anybit.onnx.graph.shapes import get_named_sizes
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize

_MATRIX = 2
_LAST_AXIS = ("LayerNormalization", "LogSoftmax", "RMSNormalization", "Softmax")
_FIRST_SOFTMAX_OF_AN_AXIS = 13
_SELECTIONS = ("Gather", "Slice", "Split")


class AxisTracer:
    """Layouts of the values of a model in execution order.

    A node treats positions alike if every vector along the last axis of its result is the same
    function of vectors at the same position, or one that no position has an influence on.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._opset = model.graph.opset_imports.get("", 1)
        self._layouts: dict[ir.Value, AxisLayout] = {}
        self._constants: set[ir.Value] = set()
        self.alike: list[ir.Node] = []
        """The nodes that treat positions alike, with at least one position."""
        self._dynamic = {
            part
            for node in model.graph
            if (quantizer := find_dynamic_quantizer(node)) is not None
            for part in quantizer.nodes
        }
        for node in model.graph:
            self._visit(node)

    def get_layout(self, value: ir.Value) -> AxisLayout | None:
        """Return the layout of a value; None if its rank is unknown."""
        if value not in self._layouts:
            sizes = get_named_sizes(value, self._model)
            if sizes is None:
                return None
            self._layouts[value] = make_layout(sizes)
        self._layouts[value] = resolve(self._layouts[value])
        return self._layouts[value]

    def is_constant(self, value: ir.Value) -> bool:
        """Return whether a value is a constant, or computed from constants only."""
        return is_constant(value) or value in self._constants

    def is_move(self, node: ir.Node | None) -> bool:
        """Return whether a node changes only the order of elements or the shape."""
        if node is None or not node.inputs or node.inputs[0] is None or len(node.outputs) != 1:
            return False
        if any(value is not None and not self.is_constant(value) for value in node.inputs[1:]):
            return False
        return has_trait(node, OpTrait.RESHAPE) or is_onnx_op(node, "Transpose")

    def get_positions(self, node: ir.Node) -> AxisLayout:
        """Return the layout of the result of a node without the last axis."""
        return (self.get_layout(node.outputs[0]) or ((),))[:-1]

    def find_source(self, value: ir.Value, ends: Collection[ir.Value] = ()) -> ir.Value:
        """Return the first value, or an end, that moves of all its elements turn into another."""
        factors = {*flatten(self.get_layout(value) or ())}
        while value not in ends:
            node = value.producer()
            x = None if node is None or not self.is_move(node) else node.inputs[0]
            layout = None if x is None else self.get_layout(x)
            if x is None or layout is None or {*flatten(layout)} != factors:
                break
            value = x
        return value

    def broadcasts_constants(self, node: ir.Node) -> bool:
        """Return whether the constants of a node that treats positions alike are broadcast."""
        if is_matrix_product(node) or is_quantize(node) or is_dequantize(node):
            return False
        if is_onnx_op(node, "Gemm", "DynamicQuantizeLinear", *_LAST_AXIS):
            return False
        return not has_trait(node, OpTrait.REDUCES_AXES) and not is_multi_threshold(node)

    def _visit(self, node: ir.Node) -> None:
        if all(value is None or self.is_constant(value) for value in node.inputs):
            self._constants.update(node.outputs)
            return
        layout: AxisLayout | None = None
        if self.is_move(node):
            layout = self._follow_move(node)
        elif (positions := self._find_positions(node)) is not None:
            layout = self._append_channels(node, positions)
            if layout is not None and flatten(positions):
                self.alike.append(node)
        elif has_two_operands(node):
            layout = self._follow_product(node)
        elif is_onnx_op(node, *_SELECTIONS):
            self._follow_selection(node)
        elif has_trait(node, OpTrait.ELEMENTWISE):
            layout = self._follow_broadcast(node)
        if layout is not None:
            self._record(node.outputs[0], layout)

    def _record(self, value: ir.Value, layout: AxisLayout) -> None:
        sizes = get_named_sizes(value, self._model)
        if sizes is not None and len(sizes) == len(layout):
            pairs = zip(layout, make_layout(sizes), sizes, strict=True)
            # An axis of a dynamic size that is broadcast to a number is another axis.
            self._layouts[value] = tuple(
                new if isinstance(size, int) and get_axis_size(axis) != size else axis
                for axis, new, size in pairs
            )

    def _get_sizes(self, value: ir.Value | None) -> Sequence[Size] | None:
        return None if value is None else get_named_sizes(value, self._model)

    def _follow_move(self, node: ir.Node) -> AxisLayout | None:
        x = node.inputs[0]
        layout = None if x is None else self.get_layout(x)
        order, sizes = get_transpose_order(node), self._get_sizes(node.outputs[0])
        if layout is None or sizes is None or len({*flatten(layout)}) < len(flatten(layout)):
            return None
        if order is None:
            return regroup(layout, sizes)
        return tuple(layout[axis] for axis in order) if len(order) == len(layout) else None

    def _find_positions(self, node: ir.Node) -> AxisLayout | None:
        """Return the positions of a node that treats them alike; None for other nodes."""
        sizes = self._get_sizes(node.outputs[0]) if node.outputs else None
        if sizes is None or len(sizes) < _MATRIX or not self._treats_alike(node, len(sizes)):
            return None
        operands = self._list_operands(node, len(sizes))
        if operands is None:
            return None
        layouts = {layout[:-1] for layout in operands if flatten(layout[:-1])}
        (positions,) = layouts if len(layouts) == 1 else (None,)
        return positions if positions and len(positions) == len(sizes) - 1 else None

    def _treats_alike(self, node: ir.Node, rank: int) -> bool:
        if is_matrix_product(node) or is_onnx_op(node, "Gemm"):
            return self._multiplies_rows(node)
        if is_onnx_op(node, "DynamicQuantizeLinear"):
            return True
        if len(node.outputs) != 1:
            return False
        if is_onnx_op(node, *_LAST_AXIS):
            old = "Softmax" in node.op_type and self._opset < _FIRST_SOFTMAX_OF_AN_AXIS
            return not old and get_attribute(node, "axis", -1) % rank == rank - 1
        if has_trait(node, OpTrait.REDUCES_AXES):
            is_last = get_reduced_axes(node, rank) == (rank - 1,)
            return is_last and bool(get_attribute(node, "keepdims", 1))
        if is_multi_threshold(node):
            return find_constant_axes(node, rank, self._opset) == set()
        if is_quantize(node) or is_dequantize(node):
            axes = find_constant_axes(node, rank, self._opset)
            return axes is not None and axes <= {rank - 1}
        operator = find_operator(node)
        if operator is not None:
            has_blocks = operator.block_axis is not None
            is_last = not has_blocks or get_attribute(node, "axis", -1) % rank == rank - 1
            return (operator.broadcasts or has_blocks) and is_last
        if is_onnx_op(node, "CastLike"):
            return False
        traits = OpTrait.ELEMENTWISE | OpTrait.RECTIFIER | OpTrait.IDENTITY
        return has_trait(node, traits, self._opset) or node in self._dynamic

    def _multiplies_rows(self, node: ir.Node) -> bool:
        """Return whether a product has a constant matrix, as MatMul without any factors."""
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        shape = None if weight is None else weight.shape
        if weight is None or not self.is_constant(weight) or shape is None:
            return False
        if is_onnx_op(node, "Gemm") and not self._multiplies_codes(node):
            return False
        is_plain = all(get_attribute(node, name, 1.0) == 1 for name in ("alpha", "beta"))
        has_rows = not get_attribute(node, "transA", 0)
        bias = node.inputs[2] if is_onnx_op(node, "Gemm") and len(node.inputs) > _MATRIX else None
        has_bias = bias is None or self.is_constant(bias)
        return len(shape) == _MATRIX and is_plain and has_rows and has_bias

    def _multiplies_codes(self, node: ir.Node) -> bool:
        """Return whether both operands are quantized: other products stay in the graph."""
        operands = [value for value in node.inputs[:2] if value is not None]
        sources = [self.find_source(value).producer() for value in operands]
        return all(source is not None and is_quantizer(source) for source in sources)

    def _append_channels(self, node: ir.Node, positions: AxisLayout) -> AxisLayout | None:
        """Return the layout of a node with these positions; its last axis may be that of x."""
        sizes = self._get_sizes(node.outputs[0])
        if sizes is None:
            return None
        if not is_matrix_product(node) and not is_onnx_op(node, "Gemm"):
            for value in node.inputs:
                if value is None or self.is_constant(value):
                    continue
                own = self._get_sizes(value)
                if own and own[-1] == sizes[-1] and own[-1] is not None:
                    return (*positions, (self.get_layout(value) or ((),))[-1])
        return (*positions, *make_layout(sizes[-1:]))

    def _follow_product(self, node: ir.Node) -> AxisLayout | None:
        """Return the layout of a product of two computed tensors of the same rank."""
        a, b = (None if value is None else self.get_layout(value) for value in node.inputs)
        sizes = self._get_sizes(node.outputs[0])
        if a is None or b is None or sizes is None or not len(a) == len(b) == len(sizes):
            return None
        batch = list(map(_join_axes, a[:-2], b[:-2]))
        columns: Axis = b[-1]
        if {*columns} & {*flatten((*batch, a[-2]))}:
            (columns,) = make_layout(sizes[-1:])  # keys of the same tokens as queries
        return (*batch, a[-2], columns)

    def _follow_selection(self, node: ir.Node) -> None:
        """Record the layouts of parts of a tensor; axes with fewer elements are new."""
        x = node.inputs[0]
        layout, sizes = (None, None) if x is None else (self.get_layout(x), self._get_sizes(x))
        if layout is None or sizes is None:
            return
        axis = get_attribute(node, "axis", 0) % max(len(layout), 1)
        for y in node.outputs:
            own = self._get_sizes(y)
            if own is None:
                continue
            if len(own) == len(layout) - 1 and node.op_type == "Gather":
                self._record(y, (*layout[:axis], *layout[axis + 1 :]))
            elif len(own) == len(layout) and node.op_type == "Split":
                self._record(y, (*layout[:axis], *make_layout([own[axis]]), *layout[axis + 1 :]))
            elif len(own) == len(layout) and node.op_type == "Slice":
                fresh = make_layout(own)
                same = [a == b and a is not None for a, b in zip(own, sizes, strict=True)]
                parts = zip(same, layout, fresh, strict=True)
                self._record(y, tuple(old if keeps else new for keeps, old, new in parts))

    def _list_operands(self, node: ir.Node, rank: int) -> list[AxisLayout] | None:
        """Return the layouts of computed inputs; None if one is unknown or has more axes."""
        operands: list[AxisLayout] = []
        for value in node.inputs:
            if value is None or self.is_constant(value):
                continue
            layout = self.get_layout(value)
            if layout is None or len(layout) > rank:
                return None
            operands.append(layout)
        return operands

    def _follow_broadcast(self, node: ir.Node) -> AxisLayout | None:
        """Return the layout of an elementwise node: that of the only operand with each axis."""
        sizes = self._get_sizes(node.outputs[0])
        if sizes is None:
            return None
        operands = self._list_operands(node, len(sizes))
        if operands is None:
            return None
        axes: list[Axis] = [()] * len(sizes)
        for layout in operands:
            for place, axis in enumerate(layout, len(sizes) - len(layout)):
                axes[place] = _join_axes(axes[place], axis)
        return tuple(axes)


def _join_axes(one: Axis, other: Axis) -> Axis:
    """Return the axis that two are broadcast to."""
    if not one or not other or one == other:
        return one or other
    sizes = [[factor.size for factor in axis] for axis in (one, other)]
    is_same = sizes[0] == sizes[1] and None not in sizes[0]
    return one if is_same else (AxisFactor(None),)
