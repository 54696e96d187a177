# SPDX-License-Identifier: Apache-2.0
"""Values of a graph and the instructions that compute them on demand.

Every value is an expression. A consumer that needs codes gets the instruction that computes them
from the root of the expression. One that needs float32 gets an output of the region, or the float
nodes stay in the graph.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from anybit.compiler.analyze.analysis import AnalyzedModel
from anybit.compiler.analyze.tensor_grids import explain_missing_grid
from anybit.compiler.dynamic_quantizers import DynamicQuantizer
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.operators import get_varying_inputs, is_average, is_uniform, split_quantizer
from anybit.compiler.partition.dynamic_codes import (
    DynamicCodes,
    DynamicProduct,
    plan_codes,
    plan_scale,
    plan_zero,
)
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Expression,
    FloatOperands,
    InputRoot,
    IntegerTensor,
    OutputRoot,
    PlannedInstruction,
    RegionInput,
    RegionOutput,
    TensorRoot,
)
from anybit.compiler.partition.layout import Layout, is_repeated, make_layout
from anybit.compiler.partition.lowering import Lowered, Lowering
from anybit.compiler.partition.sharing import find_float_inputs
from anybit.compiler.program import program as p
from anybit.compiler.reason import Reason, Unsupported, accept
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.names import get_label
from anybit.quant_types.grids import TensorGrid

_MOST_THRESHOLDS, _MOST_ENTRIES = 2**8, 2**12
"""More numbers in an epilogue are slower than one table of codes after an affine step."""


class Values:
    """The values of one graph during one walk.

    Attributes:
        model: The graph.
        instructions: The instructions so far, in an order in which they can run.
        weakened: Layers of shared floats that float nodes read, too, with their weaker guarantee.
        required: The float values of regions that are outputs.
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
        self.required: set[ir.Value] = set()
        self._analyzed = analyzed
        self._lowering = lowering
        self._shared = shared
        self._outputs: dict[ir.Value, RegionOutput] = {}
        self._fused: set[ir.Node] = set()
        self._expressions: dict[ir.Value, Expression] = {}
        self._tensors: dict[tuple[ir.Value, Layout], IntegerTensor] = {}
        self._dynamic: dict[object, RegionOutput] = {}
        self._dynamic_codes: dict[object, DynamicCodes] = {}
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
        """Return a key for the number of rows, as `RowShapes` does: no instruction changes it."""
        return self._rows[value] if value in self._rows else self._analyzed.shapes.rows(value)

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

    def set_rows(self, values: Iterable[ir.Value], x: ir.Value) -> None:
        """Let values have as many rows as x."""
        self._rows.update(dict.fromkeys(values, self.rows(x)))

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
        if value not in self._outputs:
            accept(self._compute_floats(value, expression) or Reason("it has no float32 results"))
        root = OutputRoot(self._outputs[value], expression.root.layer)
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
        else:
            expression = self._from_quantized(expression)
            lowered = self._compute_floats(value, expression)
            if lowered is None:
                for x in find_float_inputs(expression, reader):
                    self.require_floats(x, reader)
                return
            accept(lowered)
        self.required.add(value)

    def compute_inside(self, value: ir.Value) -> bool:
        """Compute the floats of a value for instructions of its region; False if none do."""
        expression = self.expression(value)
        if isinstance(expression.root, InputRoot):
            return False
        if value not in self._outputs:
            lowered = self._compute_floats(value, self._from_quantized(expression))
            if lowered is None or isinstance(lowered, Reason):
                return False
        root = OutputRoot(self._outputs[value])
        self.set_expression(Expression(root, value, root.output.layout, starts=(value,)))
        return True

    def float_operands(self, node: ir.Node, values: Sequence[ir.Value]) -> FloatOperands:
        """Compute both inputs of an elementwise node as float32 for one region.

        Raises:
            Unsupported: No region computes one, their sizes differ, or no instruction gives them.
            MustStayFloat: A layer of a weaker guarantee would compute them.
        """
        expressions = [self.expression(value) for value in values]
        stage = max(expression.root.stage for expression in expressions)
        axes = [
            expression.layout.axis
            for expression in expressions
            if not isinstance(expression.root, InputRoot) and expression.root.stage == stage
        ]
        if not axes:
            raise Unsupported("no region computes its inputs")
        target = make_layout(self.sizes(node.outputs[0]), axes[0])
        layouts = [make_layout(self.sizes(value), axes[0]) for value in values]
        first = 0 if layouts[0] == target else 1
        if layouts[first] != target or not is_repeated(layouts[1 - first], target):
            raise Unsupported("its two inputs differ in their sizes")
        order = (first, 1 - first)
        arrays = [
            self._read_floats(expressions[i], layouts[i], stage, get_label(node)) for i in order
        ]
        return FloatOperands(tuple(values[i] for i in order), tuple(arrays), target, stage)

    def compute_elementwise(self, operands: FloatOperands, chain: Sequence[ir.Node]) -> Expression:
        """Compute the first nodes of a chain in float32, as many as one instruction can.

        Raises:
            Unsupported: It cannot compute the first one.
        """
        lowered = accept(self._lowering.compute_elementwise(operands, chain))
        return self._fuse(lowered, chain, self.rows(operands.values[0]))

    def _fuse(
        self, lowered: Lowered[RegionOutput], chain: Sequence[ir.Node], rows: object
    ) -> Expression:
        """Add instructions that compute the first nodes of a chain; return their result."""
        self.append(*lowered.instructions)
        target = lowered.target
        self._outputs[target.value] = target
        for node in chain:
            self._fused.add(node)
            self._rows[node.outputs[0]] = rows
            if node.outputs[0] is target.value:
                break
        return Expression(OutputRoot(target), target.value, target.layout, starts=(target.value,))

    def dynamic_codes(
        self,
        quantizer: DynamicQuantizer,
        axis: int,
        zero_channels: int,
        reader: str,
        order: tuple[int, ...] = (),
    ) -> DynamicCodes:
        """Compute codes with a computed scale, with channels along an axis.

        Args:
            quantizer: The quantizer.
            axis: The axis.
            zero_channels: The number of further channels, which hold the zero-point.
            reader: The reader, for messages.
            order: The channel of the input for each channel, or -1 for the zero-point; empty for
                those of the input, then zero-points.

        Raises:
            Unsupported: A scale differs within one sum, or floats have another layout.
            MustStayFloat: A layer of a weaker guarantee would compute its input.
        """
        key = quantizer, axis, zero_channels, order
        if key in self._dynamic_codes:
            return self._dynamic_codes[key]
        x = quantizer.x
        layout = make_layout(self.sizes(x), axis)
        self._enter(x, reader)
        computed = [value for value in (quantizer.scale, quantizer.zero) if value is not None]
        expression = self.expression(x)
        stage, reads = expression.root.stage, list[RegionInput | RegionOutput]()
        if quantizer.computes_per_row(axis, layout.rank):
            source = self._read_floats(expression, layout, stage, reader)
            reads = self._compute_scale(quantizer, source, layout, stage)
        else:
            stage = max(self.stage(value) for value in (x, *computed))
            source = self._read_floats(expression, layout, stage, reader)
            reads = [self._read_scale(value, layout, x, reader) for value in computed]
        wide = replace(layout, channels=len(order) or layout.channels + zero_channels)
        value = ir.Value(name=f"{quantizer.scale.name}_codes", type=x.type)
        tensor = IntegerTensor(value, wide, quantizer.grid, stage)
        self.append(plan_codes([source, *reads], tensor, quantizer.rounds_first, order))
        scale, zero, *_ = (*reads, None)
        assert scale is not None, "it is computed"
        codes = DynamicCodes(tensor, quantizer.bits, scale, zero, self.rows(x))
        self._dynamic_codes[key] = codes
        return codes

    def _compute_scale(
        self,
        quantizer: DynamicQuantizer,
        source: RegionInput | RegionOutput,
        layout: Layout,
        stage: int,
    ) -> list[RegionInput | RegionOutput]:
        """Compute scales and zero-points in a region."""
        formula = quantizer.formula
        last = formula.axes == (layout.rank - 1,)
        one = replace(layout, channels=1)
        target = one if last else replace(one, height=1, width=1)
        key = quantizer.x, formula, target
        scale = self._dynamic.get(key)
        if scale is None:
            self._dynamic[key] = scale = RegionOutput(quantizer.scale, target, stage)
            self.append(plan_scale(formula, source, scale))
        if quantizer.zero is None:
            return [scale]
        zero_key = *key, quantizer.codes
        zero = self._dynamic.get(zero_key)
        if zero is None:
            self._dynamic[zero_key] = zero = RegionOutput(quantizer.zero, target, stage)
            self.append(plan_zero(quantizer.codes, source, scale, zero))
        return [scale, zero]

    def _read_scale(
        self, value: ir.Value, x: Layout, rows_of: ir.Value, reader: str
    ) -> RegionInput:
        """Let scales or zero-points of float nodes enter a region."""
        layout = make_layout(self.sizes(value), x.axis)
        fits = layout.rank == x.rank and layout.channels == 1 and is_repeated(layout, x)
        if not fits or (x.channels_first and not layout.single):
            raise Unsupported("its input has several scales in one sum")
        if self.rows(value) != self.rows(rows_of):
            raise Unsupported("the batch sizes of its input and of the input's scales may differ")
        self.require_floats(value, reader)
        return RegionInput(value, layout.sizes, layout)

    def compute_dynamic_product(
        self, product: DynamicProduct, chain: Sequence[ir.Node]
    ) -> Expression:
        """Compute a product of codes with a computed scale, and the first nodes after it.

        Raises:
            Unsupported: It has a weaker guarantee than asked for.
        """
        lowered = accept(self._lowering.compute_dynamic_product(product, chain))
        self._rows[product.y] = product.codes.rows
        if lowered.target.value is product.y:
            chain = ()
        return self._fuse(lowered, chain, product.codes.rows)

    def compute_rows(self, node: ir.Node, x: ir.Value) -> Expression:
        """Compute a function of the last axis as `compute_function` does."""
        layout = make_layout(self.sizes(x), len(self.sizes(x)))
        return self.compute_function(node, x, layout.axis, layout)

    def compute_function(self, node: ir.Node, x: ir.Value, axis: int, layout: Layout) -> Expression:
        """Compute a function of all channels or of all pixels in float32.

        Args:
            node: The node.
            x: Its input: results of a region or, of a function of channels, an input of one.
            axis: The axis of its channels.
            layout: The layout of its output.

        Raises:
            Unsupported: No instruction computes it.
            MustStayFloat: A layer of a weaker guarantee would compute its input.
        """
        if not is_average(node):
            self._enter(x, get_label(node))
        y, expression = node.outputs[0], self.expression(x)
        if isinstance(expression.root, InputRoot) and is_average(node):
            raise Unsupported("no region computes its input")
        stage = expression.root.stage
        before = make_layout(self.sizes(x), axis)
        source = self._read_floats(expression, before, stage, get_label(node))
        target = RegionOutput(y, layout, stage)
        lowered = accept(self._lowering.compute_function(node, source, target))
        self.append(*lowered.instructions)
        self._outputs[y] = target
        return Expression(OutputRoot(target), y, layout, starts=(y,))

    def fuse(self, node: ir.Node) -> None:
        """Let an instruction compute a node with the nodes before it."""
        self._fused.add(node)

    def is_fused(self, node: ir.Node) -> bool:
        """Return whether an instruction computes a node with the nodes before it."""
        return node in self._fused

    def _enter(self, value: ir.Value, reader: str) -> None:
        """Let floats enter a region if no instruction gives them, such as those of GELU."""
        expression = self.expression(value)
        if isinstance(expression.root, InputRoot) or value in self._outputs:
            return
        if self._lowering.compute_floats(self._from_quantized(expression)) is None:
            self.require_floats(value, reader)
            self.set_float(value, self.stage(value))

    def _read_floats(
        self, expression: Expression, layout: Layout, stage: int, reader: str
    ) -> RegionInput | RegionOutput:
        """Compute float32 inside the regions of a stage, or else let them enter."""
        value = expression.value
        is_inside = not isinstance(expression.root, InputRoot) and expression.root.stage == stage
        if not is_inside:
            self.require_floats(value, reader)
            return RegionInput(value, layout.sizes, layout)
        if expression.layout != layout:
            raise Unsupported("its two inputs differ in their layouts")
        if value in self._outputs:
            self._weaken(value, expression)
            return self._outputs[value]
        lowered = self._compute_floats(value, self._from_quantized(expression))
        return accept(lowered or Reason("no instruction gives the floats of an input"))

    def _compute_floats(
        self, value: ir.Value, expression: Expression
    ) -> RegionOutput | Reason | None:
        """Compute the floats of a value inside a region; None if only float nodes compute them."""
        lowered = self._lowering.compute_floats(expression)
        if lowered is None or isinstance(lowered, Reason):
            return lowered
        if isinstance(expression.root, OutputRoot):
            self._weaken(expression.root.output.value, expression)
        self.append(*lowered.instructions)
        self._outputs[value] = lowered.target
        return lowered.target

    def _change_layout(self, tensor: IntegerTensor, layout: Layout) -> IntegerTensor:
        lowered = self._lowering.change_layout(tensor, layout)
        self.append(*lowered.instructions)
        return lowered.target

    def _compute(self, expression: Expression, grid: TensorGrid) -> IntegerTensor:
        """Compute codes from the root, or else from the codes of an earlier quantizer."""
        lowered = self._lowering.compute_codes(expression, grid)
        if isinstance(lowered, Reason):
            earlier = None if lowered.node else self._find_earlier_codes(expression)
            if earlier is not None:
                lowered = self._lowering.compute_codes(earlier, grid)
        elif _is_slower_than_codes(lowered.instructions):
            count = len(self.instructions)
            earlier = self._find_earlier_codes(expression)
            if earlier is not None and not _is_slower_than_codes(self.instructions[count:]):
                again = self._lowering.compute_codes(earlier, grid)
                lowered = lowered if isinstance(again, Reason) else again
        tensor = accept(lowered)
        self.append(*tensor.instructions)
        return tensor.target

    def _find_earlier_codes(self, expression: Expression) -> Expression | None:
        """Return a function of the codes of the quantizer before the last; None without one."""
        while (last := expression.quantized) is not None and last.value is expression.value:
            expression = last
        earlier = self._from_quantized(expression)
        return None if earlier is expression else earlier

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
        if shared is None or not isinstance(root, OutputRoot) or root.layer is None:
            return
        if shared.guarantee is not root.layer.guarantee:
            self.weakened[value] = replace(shared, guarantee=root.layer.guarantee)


def _is_slower_than_codes(instructions: Sequence[PlannedInstruction]) -> bool:
    """Return whether an affine step to codes, if there are any, and one table of these are faster.

    Instructions do that look up pairs of codes or pieces, or have many numbers per channel.
    """
    epilogues = [instruction.fields.get("epilogue") for instruction in instructions]
    return (
        any(instruction.kind is p.Combine for instruction in instructions)
        or any(isinstance(epilogue, p.Piecewise) for epilogue in epilogues)
        or any(
            isinstance(epilogue, p.Table) and epilogue.entries.size > _MOST_ENTRIES
            for epilogue in epilogues
        )
        or any(
            isinstance(t, p.Thresholds) and t.thresholds.size > _MOST_THRESHOLDS for t in epilogues
        )
    )
