# SPDX-License-Identifier: Apache-2.0
"""What is known of the values of a graph, and what computes them for who needs them.

Every value is an expression: a function of single elements of a root, be that a float value, the
accumulators of a sum, or one or two tensors of codes. Nothing is decided about it until somebody
reads it: who needs codes gets the instruction that computes them from the root, who needs floats
gets an output of the region, or the float nodes as they stand.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from anybit.compiler.analyze.tensor_grids import explain_missing_grid
from anybit.compiler.analyze.unknown_shapes import ShapeBlame
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.lower.lowerer import Lowerer
from anybit.compiler.operators import is_uniform, quantizing, varying_inputs
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Expression,
    InputRoot,
    IntegerGrid,
    IntegerTensor,
    OutputRoot,
    PlannedInstruction,
    RegionOutput,
    TensorRoot,
)
from anybit.compiler.partition.layout import Layout, layout_of
from anybit.compiler.partition.sharing import float_inputs
from anybit.compiler.reason import Unsupported
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.shapes import noted, sizes_of, sizes_that_follow

_MOST_ELEMENTS = 2**28
"""So many has a row of a program at most."""


class Values:
    """The values of one graph.

    Attributes:
        model: The graph.
        analysis: What is known of it before it runs.
        planner: What plans instructions.
        planned: The instructions, each behind those that it waits for.
        weakened: Layers of shared floats that float nodes read, too: less is promised of these.
    """

    def __init__(
        self,
        model: ir.Model,
        analysis: Analysis,
        wanted: Mapping[ir.Value, IntegerGrid],
        planner: Lowerer,
    ) -> None:
        self.model = model
        self.analysis = analysis
        self.planner = planner
        self.planned: list[PlannedInstruction] = []
        self.weakened: dict[ir.Value, CompiledLayer | None] = {}
        self._wanted = wanted
        self._unsized = ShapeBlame(model)
        self._outlets: dict[ir.Value, RegionOutput] = {}
        self._expressions: dict[ir.Value, Expression] = {}
        self._coded: dict[tuple[ir.Value, Layout], IntegerTensor] = {}
        self._rows: dict[ir.Value, object] = {}
        self._float_stages: dict[ir.Value, int] = {}

    def sizes(self, value: ir.Value) -> tuple[int, ...]:
        """The sizes behind the rows.

        Raises:
            Unsupported: They are not known, or too many.
        """
        sizes = sizes_that_follow(value, self.model)
        if sizes is None or None in sizes[1:]:
            raise Unsupported(self._unsized.why(value))
        if len(sizes) < 2:
            raise Unsupported(f"{value.name!r} has no axis behind that of its rows")
        found = tuple(size for size in sizes[1:] if size is not None)
        if math.prod(found) > _MOST_ELEMENTS:
            raise Unsupported("its rows have too many elements")
        if min(found) < 1:
            raise Unsupported("it has no elements: the sizes before it are too small")
        if len(found) > 3:
            raise Unsupported("it has more axes than rows, height, width and channels")
        return found

    def rows(self, value: ir.Value) -> object:
        """What stands for the number of rows of a value: equal where these certainly are.

        Nothing that is planned changes it. Two sizes that the file leaves free may differ, unless
        it calls them by one name.
        """
        if value in self._rows:
            return self._rows[value]
        shape = value.shape if value.is_graph_input() else noted(value)
        first = None if shape is None or not len(shape) else sizes_of(shape)[0]
        return value if first in (None, "") else first

    def wanted_codes(self, value: ir.Value) -> IntegerGrid | None:
        """The codes of a value as a tensor, if it can be one."""
        return self._wanted.get(value)

    def expression(self, value: ir.Value) -> Expression:
        """What a value is: a float value like any other if nothing else is known.

        Raises:
            Unsupported: It is not float32, or its sizes are not known.
        """
        found = self._expressions.get(value)
        if found is not None:
            return found
        if value.dtype != ir.DataType.FLOAT:
            raise Unsupported(f"{value.name!r} is not float32")
        sizes = self.sizes(value)
        root = InputRoot(value, sizes, self._float_stages.get(value, 0))
        return Expression(root, value, layout_of(sizes, 1), starts=(value,))

    def put(self, expression: Expression) -> None:
        """Let a value be an expression."""
        self._keep(expression)

    def _keep(self, expression: Expression) -> None:
        value = expression.value
        self._expressions[value] = expression
        node = value.producer()
        if node is not None:
            self._rows[value] = self.rows(varying_inputs(node)[0])

    def put_float(self, value: ir.Value, stage: int) -> None:
        """Let a value be a float like any other."""
        self._expressions.pop(value, None)
        self._rows.pop(value, None)
        self._float_stages[value] = stage

    def coded(self, value: ir.Value, coded: IntegerTensor) -> Expression:
        """Let a value be a tensor of codes from here on."""
        found = Expression(TensorRoot(coded), value, coded.place, starts=(value,))
        self._keep(found)
        self._coded[value, coded.place] = coded
        return found

    def share(self, value: ir.Value) -> None:
        """Compute a function of a sum once for all its readers, as codes or as floats.

        Raises:
            Unsupported: Its codes cannot be computed.
            Refused: The results of a sum cannot be given.
        """
        expression = self.expression(value)
        if not isinstance(expression.root, AccumulatorRoot):
            return
        if self.planner.memory.shared[value] is None:
            self.coded(value, self.codes(value, expression.place.axis))
            return
        self.require(value, "")
        outlet = self._outlets.get(value)
        if outlet is not None:
            root = OutputRoot(outlet, expression.root.layer)
            self._keep(Expression(root, value, expression.place, starts=(value,)))

    def stage(self, value: ir.Value) -> int:
        """That of a value as floats."""
        expression = self._expressions.get(value)
        if expression is None:
            return self._float_stages.get(value, 0)
        port = isinstance(expression.root, InputRoot)
        return expression.root.stage + (0 if port else 1)

    def codes(self, value: ir.Value, axis: int) -> IntegerTensor:
        """The tensor of a value's codes, with its channels along an axis.

        Raises:
            Unsupported: It has no codes, or nothing computes them.
        """
        expression = self.expression(value)
        place = layout_of(self.sizes(value), axis)
        key = value, place
        if key in self._coded:
            return self._coded[key]
        wanted = self._wanted.get(value)
        if wanted is None:
            raise Unsupported(explain_missing_grid(value, self.analysis))
        if isinstance(expression.root, TensorRoot) and expression.root.coded.value is value:
            found = self.planner.placed(expression.root.coded, place)
        elif isinstance(expression.root, InputRoot):
            found = self._from_port(expression, wanted, place)
        else:
            made = self._from_root(expression, wanted)
            self._coded[value, made.place] = made
            found = self.planner.placed(made, place)
        self.take()
        self._coded[key] = found
        return found

    def _from_root(self, expression: Expression, wanted: IntegerGrid) -> IntegerTensor:
        """Compute codes from the root, or else from the codes of an earlier quantizer."""
        try:
            return self.planner.from_codes(expression, wanted)
        except Unsupported:
            while (last := expression.quantized) is not None and last.value is expression.value:
                expression = last
            earlier = self._from_quantized(expression)
            if earlier is expression:
                raise
            return self.planner.from_codes(earlier, wanted)

    def spread(self, coded: IntegerTensor, place: Layout) -> IntegerTensor:
        """IntegerGrid that are repeated along the axes of which they have one."""
        found = self.planner.spread(coded, place)
        self.take()
        return found

    def take(self) -> None:
        """Keep the instructions that have been planned."""
        self.planned += self.planner.taken()

    def _from_port(
        self, expression: Expression, wanted: IntegerGrid, place: Layout
    ) -> IntegerTensor:
        try:
            return self.planner.from_port(expression, wanted, place)
        except Unsupported:
            # The quantizer alone, then: it rises or falls, whatever lies before it.
            node = expression.value.producer()
            if node is None:
                raise
            x, nodes = quantizing(node)
            if len(expression.nodes) <= len(nodes):
                raise
            root = InputRoot(x, self.sizes(x), expression.root.stage)
            alone = Expression(
                root,
                expression.value,
                expression.place,
                starts=(x,),
                nodes=nodes,
                same=all(map(is_uniform, nodes)),
            )
            return self.planner.from_port(alone, wanted, place)

    def require(self, value: ir.Value, reader: str) -> None:
        """See to it that a value is there as floats for a reader.

        Raises:
            Refused: The results of a sum cannot be given.
        """
        expression = self._expressions.get(value)
        if expression is None or is_constant(value) or isinstance(expression.root, InputRoot):
            return
        if value in self._outlets:
            self._weaken(value, expression)
            return
        expression = self._from_quantized(expression)
        try:
            outlet = self.planner.outlet(expression)
        except Unsupported:  # its nodes cannot be evaluated on single elements
            outlet = None
        if outlet is not None:
            self.take()
            self._outlets[value] = outlet
            return
        for each in float_inputs(expression, reader):
            self.require(each, reader)

    def _weaken(self, value: ir.Value, expression: Expression) -> None:
        """Note that shared floats are read as such: their last bits are not certified."""
        shared, root = self.planner.memory.shared.get(value), expression.root
        if shared is None or not isinstance(root, OutputRoot):
            return
        if shared.guarantee is not root.layer.guarantee:
            self.weakened[value] = replace(shared, guarantee=root.layer.guarantee)

    def _from_quantized(self, expression: Expression) -> Expression:
        """The same as a function of the tensor of codes that its last quantizer gives, if any."""
        last = expression.quantized
        if last is None or isinstance(last.root, InputRoot | TensorRoot):
            return expression
        if expression.starts != last.starts:
            return expression
        try:
            coded = self.codes(last.value, last.place.axis)
        except Unsupported:
            return expression
        start = self.coded(last.value, coded)
        nodes = expression.nodes[len(last.nodes) :]
        same = all(map(is_uniform, nodes))
        return replace(start, value=expression.value, nodes=nodes, same=same)
