# SPDX-License-Identifier: Apache-2.0
"""What of a graph is computed with integers: one walk through its nodes.

A stage is how often values have gone from integers to floats before. Instructions of one stage
never wait for floats that wait for them, so that those that hang together are a region.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.lowbit.elementwise import (
    captures_of,
    constant_axes,
    is_quantizer,
    is_uniform,
    quantizing,
    varying_inputs,
)
from anybit.lowbit.layers import CompiledLayer, compiled
from anybit.lowbit.moves import moved
from anybit.lowbit.parts import Codes, Expression, PairRoot, Planned, PortRoot
from anybit.lowbit.places import place_of
from anybit.lowbit.planning import Memory, Planner, Refused
from anybit.lowbit.sharing import shared_values
from anybit.lowbit.sums import check_factors, mean_root, product_root, source_axis
from anybit.lowbit.uncovered import Uncovered
from anybit.lowbit.values import Values
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.graph.names import label_of
from anybit.onnx.graph.reductions import reduced_axes
from anybit.quant_types.layer_info import Guarantee, LayerInfo

T = TypeVar("T")

_MEANS = ("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum")
_MOST_PAIRS = 2**16
# Longer chains of elementwise nodes are cut: a float value lies between.
_LONGEST = 128


class Walk:
    """The instructions for a graph.

    Attributes:
        reasons: Why a node with sums is not among them.
    """

    def __init__(
        self,
        model: ir.Model,
        analysis: Analysis,
        layers: Mapping[str, LayerInfo],
        wanted: Mapping[ir.Value, Codes],
        guarantee: Guarantee,
        memory: Memory,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.reasons: dict[ir.Node, str] = {}
        self._model = model
        self._positions = {node: place for place, node in enumerate(model.graph)}
        self._values = Values(model, analysis, wanted, Planner(model, guarantee, memory))
        self._wanted = wanted
        self._memory = memory
        self._progress = progress
        self._opset = model.graph.opset_imports.get("", 1)
        self._products = {product.node: product for product in analysis.products}
        self._carriers = analysis.carriers
        self._layers = layers

    def run(self) -> list[Planned]:
        """Go through all nodes: the instructions in an order in which they can run.

        Raises:
            Refused: Nodes that the walk has to leave alone; the next one knows of all.
        """
        refused = len(self._memory.refused)
        for number, node in enumerate(self._positions):
            if varying_inputs(node) or captures_of(node):
                self._carefully(self._visit, node)
            if self._progress is not None:
                self._progress((number + 1) / len(self._positions))
        for value in self._model.graph.outputs:
            self._carefully(partial(self._values.require, reader="an output of the model"), value)
        if len(self._memory.refused) > refused:
            raise Refused(*list(self._memory.refused.items())[-1])
        return self._values.planned

    def shared(self, *, more: bool) -> dict[ir.Value, CompiledLayer | None]:
        """Return values of which less is promised than was noted; or `more` to share, if any."""
        if self._values.weakened or not more:
            return self._values.weakened
        tried = self._memory.shared
        return shared_values(self._values.planned, self._model, self._wanted.keys(), tried)

    def _carefully(self, step: Callable[[T], None], about: T) -> None:
        """Where a step is refused the walk is in vain, but goes on: there may be more of them."""
        try:
            step(about)
            return
        except Refused as reason:
            refused = reason
        while refused.node not in self._memory.refused:
            self._memory.refused[refused.node] = refused.reason
            try:
                self._leave(refused.node)
            except Refused as reason:
                refused = reason

    def _visit(self, node: ir.Node) -> None:
        try:
            found = self._expressed(node)
        except (Uncovered, ModelError) as reason:
            self.reasons.setdefault(node, str(reason))
            found = None
        if found is None:
            self._leave(node)
            return
        self._values.put(found)
        if found.value in self._memory.shared:
            with suppress(Uncovered):  # else the next walk tries another value
                self._values.share(found.value)
        if is_quantizer(node) and node.outputs[0] in self._wanted:
            self._anchor(node)

    def _expressed(self, node: ir.Node) -> Expression | None:
        """The expression for what a node gives; None for a node that stays."""
        if node in self._memory.refused:
            raise Uncovered(self._memory.refused[node])
        if node in self._products:
            return self._product(node)
        if node.domain == "" and node.op_type in _MEANS:
            return self._mean(node)
        expression = self._elementwise(node)
        if expression is None:
            expression = moved(self._values, node)
            self._values.take()
        return expression

    def _product(self, node: ir.Node) -> Expression:
        product = self._products[node]
        x, y = node.inputs[0], node.outputs[0]
        assert x is not None, "a product has two inputs"
        check_factors(product)
        sizes = self._values.sizes(x)
        axis = source_axis(product, len(sizes) + 1)
        source = self._values.codes(x, axis)
        place = place_of(
            self._values.sizes(y), 1 if node.op_type == "Conv" else len(self._values.sizes(y))
        )
        root, before = product_root(product, self._layers[str(y.name)], source, place)
        return Expression(root, y, place, before, (y,))

    def _mean(self, node: ir.Node) -> Expression:
        x, y = node.inputs[0], node.outputs[0]
        assert x is not None, "a mean has an input"
        carrier = self._carriers.get(x)
        if carrier is None or (node.op_type.startswith("Reduce") and not self._over_space(node)):
            raise Uncovered("it is not a mean over height and width of codes")
        place = place_of(self._values.sizes(y), 1)
        root, before = mean_root(
            self._model, node, self._values.codes(x, 1), place, carrier.reach, carrier.exponent
        )
        return Expression(root, y, place, before, (y,))

    def _over_space(self, node: ir.Node) -> bool:
        """Whether it reduces all axes behind the channels, and these only."""
        x, y = node.inputs[0], node.outputs[0]
        assert x is not None, "asked before"
        before, after = self._values.sizes(x), self._values.sizes(y)
        kept = (before[0], *[1] * (len(before) - 1))
        axes = reduced_axes(node, len(before) + 1)
        return axes == tuple(range(2, len(before) + 1)) and after in (kept, kept[:1])

    def _elementwise(self, node: ir.Node) -> Expression | None:
        values = varying_inputs(node)
        if len(values) > 2 or not values:
            return None
        rank = len(self._values.sizes(values[0])) + 1
        axes = constant_axes(node, rank, self._opset)
        if axes is None or node.outputs[0].dtype is None:
            return None
        parts = [self._read(value, axes) for value in values]
        y = node.outputs[0]
        first = parts[0]
        if any(len(part.nodes) >= _LONGEST for part in parts):
            return None
        if any(axis != first.place.axis for axis in axes):
            return None
        if len(parts) == 1:
            return _extended(first, y, node)
        second = parts[1]
        same = (first.root, first.before, first.starts, first.pending) == (
            second.root,
            second.before,
            second.starts,
            second.pending,
        )
        if same and first.place == second.place:
            nodes = self._ordered({*first.nodes, *second.nodes, node})
            same = first.same and second.same and is_uniform(node)
            return replace(first, value=y, nodes=nodes, same=same, quantized=None)
        if self._values.rows(values[0]) != self._values.rows(values[1]):
            raise Uncovered("its two inputs differ in their rows")
        place = place_of(self._values.sizes(y), first.place.axis)
        pair = [self._values.codes(value, first.place.axis) for value in values]
        if not place.rank == pair[0].place.rank == pair[1].place.rank:
            raise Uncovered("its two inputs differ in their sizes")
        pair = [self._values.spread(each, place) for each in pair]
        if pair[0].codes.levels * pair[1].codes.levels > _MOST_PAIRS:
            raise Uncovered("its two inputs have too many codes")
        if pair[0].stage != pair[1].stage:
            raise Uncovered("one of its inputs waits for floats, the other does not")
        return Expression(
            PairRoot(*pair),
            y,
            pair[0].place,
            starts=tuple(values),
            nodes=(node,),
            same=is_uniform(node),
        )

    def _read(self, value: ir.Value, axes: set[int]) -> Expression:
        """The expression of a value, with its channels along these axes if that can be had."""
        found = self._values.expression(value)
        if isinstance(found.root, PortRoot) and found.uniform and len(axes) == 1:
            (axis,) = axes
            if axis in (1, found.place.rank - 1):
                return replace(found, place=place_of(self._values.sizes(value), axis))
        return found

    def _ordered(self, nodes: set[ir.Node]) -> tuple[ir.Node, ...]:
        return tuple(sorted(nodes, key=self._positions.__getitem__))

    def _anchor(self, node: ir.Node) -> None:
        """Compute the codes of what a quantizer gives, unless its readers go on elementwise."""
        value = node.outputs[0]
        expression = self._values.expression(value)
        if isinstance(expression.root, PortRoot):
            self._values.put(_with_quantized(expression))
            return
        if not value.is_graph_output() and all(
            len(varying_inputs(reader)) == 1
            and constant_axes(reader, expression.place.rank, self._opset) is not None
            for reader, _ in value.uses()
        ):
            self._values.put(_with_quantized(expression))
            return
        try:
            coded = self._values.codes(value, expression.place.axis)
        except Uncovered as reason:
            self._break(node, str(reason))
            return
        self._values.coded(value, coded)

    def _break(self, node: ir.Node, reason: str) -> None:
        """Let floats come in before a quantizer: nothing gives its codes from further back."""
        self.reasons.setdefault(node, reason)
        x, nodes = quantizing(node)
        self._values.require(x, label_of(node))
        self._values.put_float(x, self._values.stage(x))
        for each in nodes:
            expression = self._elementwise(each)
            if expression is None:
                self._leave(node)
                return
            self._values.put(expression)
        self._values.put(_with_quantized(self._values.expression(node.outputs[0])))

    def _leave(self, node: ir.Node) -> None:
        """Let a node be as it is: what it reads must be there as floats."""
        values = [*varying_inputs(node), *captures_of(node)]
        stage = max((self._values.stage(value) for value in values), default=0)
        for value in values:
            self._values.require(value, label_of(node))
        for value in node.outputs:
            self._values.put_float(value, stage)

    def layers(self) -> Iterator[CompiledLayer]:
        """What stays float of the nodes with sums."""
        for node in self._products:
            if node in self.reasons:
                layer = self._layers[str(node.outputs[0].name)]
                yield compiled(layer, guarantee=None, reason=self.reasons[node])


def _extended(expression: Expression, y: ir.Value, node: ir.Node) -> Expression:
    nodes = (*expression.nodes, node)
    return replace(expression, value=y, nodes=nodes, same=expression.same and is_uniform(node))


def _with_quantized(expression: Expression) -> Expression:
    return replace(expression, quantized=expression)
