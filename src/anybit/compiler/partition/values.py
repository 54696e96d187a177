# SPDX-License-Identifier: Apache-2.0
"""Values of a graph and the instructions that compute them on demand.

Every value is an expression. A consumer that needs codes gets the instruction that computes them
from the root of the expression. One that needs float32 gets an output of the region, or the float
nodes stay in the graph.
"""

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from anybit.compiler.analyze.analysis import AnalyzedModel
from anybit.compiler.analyze.tensor_grids import explain_missing_grid
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.operators import get_varying_inputs, is_uniform, split_quantizer
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Expression,
    InputRoot,
    IntegerTensor,
    OutputRoot,
    PlannedInstruction,
    RegionOutput,
    TensorRoot,
)
from anybit.compiler.partition.layout import Layout, make_layout
from anybit.compiler.partition.lowering import Lowering
from anybit.compiler.partition.sharing import find_float_inputs
from anybit.compiler.reason import Reason, Unsupported, accept
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.shapes import get_inferred_shape, get_sizes
from anybit.quant_types.grids import TensorGrid


class Values:
    """The values of one graph during one walk.

    Attributes:
        model: The graph.
        instructions: The instructions so far, in an order in which they can run.
        weakened: Layers of shared floats that float nodes read, too, with their weaker guarantee.
    """

    def __init__(
        self,
        analyzed: AnalyzedModel,
        lowering: Lowering,
        shared: Mapping[ir.Value, CompiledLayer | None],
    ) -> None:
        self.model = analyzed.model
        self.instructions: list[PlannedInstruction] = []
        self.weakened: dict[ir.Value, CompiledLayer | None] = {}
        self._analyzed = analyzed
        self._lowering = lowering
        self._shared = shared
        self._outputs: dict[ir.Value, RegionOutput] = {}
        self._expressions: dict[ir.Value, Expression] = {}
        self._tensors: dict[tuple[ir.Value, Layout], IntegerTensor] = {}
        self._rows: dict[ir.Value, object] = {}
        self._float_stages: dict[ir.Value, int] = {}

    def sizes(self, value: ir.Value) -> tuple[int, ...]:
        """Return the sizes after the rows.

        Raises:
            Unsupported: They are not known, or too many.
        """
        return accept(self._analyzed.shapes.sizes(value))

    def grid(self, value: ir.Value) -> TensorGrid | None:
        """Return the grid of a value as a tensor of codes; None if it cannot be one."""
        return self._analyzed.grids.get(value)

    def rows(self, value: ir.Value) -> object:
        """Return a key for the number of rows: equal only where the numbers certainly are.

        No instruction changes it. Two free sizes of a file may differ unless they have one name.
        """
        if value in self._rows:
            return self._rows[value]
        shape = value.shape if value.is_graph_input() else get_inferred_shape(value)
        first = None if shape is None or not len(shape) else get_sizes(shape)[0]
        return value if first in (None, "") else first

    def expression(self, value: ir.Value) -> Expression:
        """Return the expression of a value: an input of a region if it has none.

        Raises:
            Unsupported: It is not float32, or its sizes are not known.
        """
        expression = self._expressions.get(value)
        if expression is not None:
            return expression
        if value.dtype != ir.DataType.FLOAT:
            raise Unsupported(f"{value.name!r} is not float32")
        sizes = self.sizes(value)
        root = InputRoot(value, sizes, self._float_stages.get(value, 0))
        return Expression(root, value, make_layout(sizes, 1), starts=(value,))

    def stage(self, value: ir.Value) -> int:
        """Return the number of changes from integers to float32 before a float value."""
        expression = self._expressions.get(value)
        if expression is None:
            return self._float_stages.get(value, 0)
        is_input = isinstance(expression.root, InputRoot)
        return expression.root.stage + (0 if is_input else 1)

    def set_expression(self, expression: Expression) -> None:
        """Let a value be an expression."""
        value = expression.value
        self._expressions[value] = expression
        node = value.producer()
        if node is not None:
            self._rows[value] = self.rows(get_varying_inputs(node)[0])

    def set_float(self, value: ir.Value, stage: int) -> None:
        """Let a value be one that float nodes compute."""
        self._expressions.pop(value, None)
        self._rows.pop(value, None)
        self._float_stages[value] = stage

    def set_tensor(self, value: ir.Value, tensor: IntegerTensor) -> Expression:
        """Let a value be a tensor of codes."""
        expression = Expression(TensorRoot(tensor), value, tensor.layout, starts=(value,))
        self.set_expression(expression)
        self._tensors[value, tensor.layout] = tensor
        return expression

    def append(self, *instructions: PlannedInstruction) -> None:
        """Add instructions."""
        self.instructions += instructions

    def share(self, value: ir.Value) -> None:
        """Compute a function of accumulators once for all its readers, as codes or as floats.

        Raises:
            Unsupported: Its codes cannot be computed.
            MustStayFloat: Its floats cannot be computed.
        """
        expression = self.expression(value)
        if not isinstance(expression.root, AccumulatorRoot):
            return
        if self._shared[value] is None:
            self.set_tensor(value, self.codes(value, expression.layout.axis))
            return
        self.require_floats(value, "")
        output = self._outputs.get(value)
        if output is not None:
            root = OutputRoot(output, expression.root.layer)
            self.set_expression(Expression(root, value, expression.layout, starts=(value,)))

    def codes(self, value: ir.Value, axis: int) -> IntegerTensor:
        """Compute the codes of a value, with its channels along an axis.

        Raises:
            Unsupported: It has no codes, or nothing computes them.
            MustStayFloat: A layer of a weaker guarantee would compute them.
        """
        expression = self.expression(value)
        layout = make_layout(self.sizes(value), axis)
        key = value, layout
        if key in self._tensors:
            return self._tensors[key]
        grid = self.grid(value)
        if grid is None:
            raise Unsupported(explain_missing_grid(value, self._analyzed.analysis))
        if isinstance(expression.root, TensorRoot) and expression.root.tensor.value is value:
            tensor = self._change_layout(expression.root.tensor, layout)
        elif isinstance(expression.root, InputRoot):
            tensor = self._quantize_input(expression, grid, layout)
        else:
            computed = self._compute(expression, grid)
            self._tensors[value, computed.layout] = computed
            tensor = self._change_layout(computed, layout)
        self._tensors[key] = tensor
        return tensor

    def broadcast(self, tensor: IntegerTensor, layout: Layout) -> IntegerTensor:
        """Repeat codes along axes of size 1.

        Raises:
            Unsupported: Other sizes differ.
        """
        lowered = accept(self._lowering.broadcast(tensor, layout))
        self.append(*lowered.instructions)
        return lowered.target

    def require_floats(self, value: ir.Value, reader: str) -> None:
        """Compute the floats of a value for a reader, or leave its nodes in the graph.

        Raises:
            MustStayFloat: It is a sum, and nothing computes its floats.
        """
        expression = self._expressions.get(value)
        if expression is None or is_constant(value) or isinstance(expression.root, InputRoot):
            return
        if value in self._outputs:
            self._weaken(value, expression)
            return
        expression = self._from_quantized(expression)
        lowered = self._lowering.compute_floats(expression)
        if lowered is None:
            for x in find_float_inputs(expression, reader):
                self.require_floats(x, reader)
            return
        output = accept(lowered)
        self.append(*output.instructions)
        self._outputs[value] = output.target

    def _change_layout(self, tensor: IntegerTensor, layout: Layout) -> IntegerTensor:
        lowered = self._lowering.change_layout(tensor, layout)
        self.append(*lowered.instructions)
        return lowered.target

    def _compute(self, expression: Expression, grid: TensorGrid) -> IntegerTensor:
        """Compute codes from the root, or else from the codes of an earlier quantizer."""
        lowered = self._lowering.compute_codes(expression, grid)
        if isinstance(lowered, Reason) and lowered.node is None:
            while (last := expression.quantized) is not None and last.value is expression.value:
                expression = last
            earlier = self._from_quantized(expression)
            if earlier is not expression:
                lowered = self._lowering.compute_codes(earlier, grid)
        tensor = accept(lowered)
        self.append(*tensor.instructions)
        return tensor.target

    def _quantize_input(
        self, expression: Expression, grid: TensorGrid, layout: Layout
    ) -> IntegerTensor:
        lowered = self._lowering.quantize_input(expression, grid, layout)
        if isinstance(lowered, Reason):
            alone = self._last_quantizer(expression)
            if alone is not None:
                lowered = self._lowering.quantize_input(alone, grid, layout)
        tensor = accept(lowered)
        self.append(*tensor.instructions)
        return tensor.target

    def _last_quantizer(self, expression: Expression) -> Expression | None:
        """Return the last quantizer alone, which is monotone; None if it is all there is."""
        node = expression.value.producer()
        if node is None:
            return None
        x, nodes = split_quantizer(node)
        if len(expression.nodes) <= len(nodes):
            return None
        return Expression(
            InputRoot(x, self.sizes(x), expression.root.stage),
            expression.value,
            expression.layout,
            starts=(x,),
            nodes=nodes,
            same=all(map(is_uniform, nodes)),
        )

    def _from_quantized(self, expression: Expression) -> Expression:
        """Return the expression as a function of the codes of its last quantizer, if it has any."""
        last = expression.quantized
        if last is None or isinstance(last.root, InputRoot | TensorRoot):
            return expression
        if expression.starts != last.starts:
            return expression
        try:
            tensor = self.codes(last.value, last.layout.axis)
        except Unsupported:
            return expression
        start = self.set_tensor(last.value, tensor)
        nodes = expression.nodes[len(last.nodes) :]
        return replace(start, value=expression.value, nodes=nodes, same=all(map(is_uniform, nodes)))

    def _weaken(self, value: ir.Value, expression: Expression) -> None:
        """Note that float nodes read shared floats: their last bits are not certified."""
        shared, root = self._shared.get(value), expression.root
        if shared is None or not isinstance(root, OutputRoot):
            return
        if shared.guarantee is not root.layer.guarantee:
            self.weakened[value] = replace(shared, guarantee=root.layer.guarantee)
