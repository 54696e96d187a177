# SPDX-License-Identifier: Apache-2.0
"""Partition of a graph into integer regions and float nodes.

The stage of a value is the number of changes from integers to float32 before it. Instructions of
one stage never wait for floats that wait for them, so that connected ones form a region.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import onnx_ir as ir

from anybit.compiler.analyze.analysis import AnalyzedModel
from anybit.compiler.dynamic_quantizers import DynamicQuantizer, find_dynamic_quantizer
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.legalize import is_mean
from anybit.compiler.operators import (
    find_constant_axes,
    find_interpolation,
    find_kept_axis,
    get_captures,
    get_varying_inputs,
    has_two_operands,
    is_average,
    is_quantizer,
    is_row_function,
    is_uniform,
    split_quantizer,
)
from anybit.compiler.partition.accumulators import accumulate_mean, accumulate_product
from anybit.compiler.partition.data_movement import move_elements
from anybit.compiler.partition.dynamic_codes import (
    accumulate_dynamic_product,
    count_zero_channels,
)
from anybit.compiler.partition.expressions import (
    Expression,
    InputRoot,
    IntegerTensor,
    MatMulRoot,
    PendingMove,
    PlannedInstruction,
    have_one_root,
)
from anybit.compiler.partition.integer_products import express_integer_product
from anybit.compiler.partition.interpolation import interpolate
from anybit.compiler.partition.layout import Layout, make_layout
from anybit.compiler.partition.lowering import Lowering
from anybit.compiler.partition.matrix_products import accumulate_matmul, leads_to_merge
from anybit.compiler.partition.pairs import check_rows, express_pair
from anybit.compiler.partition.sharing import find_shared_values
from anybit.compiler.partition.transposed_convolutions import make_convolution
from anybit.compiler.partition.values import Values
from anybit.compiler.program import program as p
from anybit.compiler.reason import MustStayFloat, Reason, Unsupported
from anybit.errors import ModelError
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.require import require_input, require_producer
from anybit.quant_types.layer_info import LayerInfo

T = TypeVar("T")

_MOST_WALKS = 8
"""Most partitions need one walk or two: a walk finds all float nodes but those that follow from
others."""

_LONGEST_CHAIN = 128
"""Longer chains of elementwise nodes are cut: a float value lies between."""


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions that concern nodes before the one that shows the need for them.

    Attributes:
        floats: Nodes that have to stay float32.
        shared: Functions of accumulators that are computed once for several readers: as codes if
            the layer is None, else as the float32 results of the layer.
    """

    floats: Mapping[ir.Node, Reason] = field(default_factory=dict)
    shared: Mapping[ir.Value, CompiledLayer | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Partition:
    """The instructions of all regions, and the decisions for a better partition, if any.

    Attributes:
        instructions: The instructions in an order in which they can run.
        reasons: Why nodes stay float32.
        decisions: Decisions it was made with, and further ones that the next walk needs.
        is_valid: Whether it keeps all decisions on float nodes.
        weakened: Layers of shared floats that float nodes read, too, with their weaker guarantee.
        outputs: The float values of regions that float nodes or the user read.
    """

    instructions: list[PlannedInstruction]
    reasons: Mapping[ir.Node, Reason]
    decisions: Decisions
    is_valid: bool
    weakened: Mapping[ir.Value, CompiledLayer | None]
    outputs: Collection[ir.Value]

    def float_layers(self, analyzed: AnalyzedModel) -> Iterator[CompiledLayer]:
        """Yield the layers that stay float32."""
        for product in analyzed.analysis.products:
            if product.node in self.reasons:
                layer = analyzed.layers[str(product.node.outputs[0].name)]
                yield CompiledLayer.in_float(layer, self.reasons[product.node].text)


def partition(
    analyzed: AnalyzedModel,
    illegal: Mapping[ir.Node, Reason],
    make_lowering: Callable[[Decisions], Lowering],
    progress: Callable[[float], None] | None = None,
) -> Partition:
    """Partition a model, again with every set of decisions that a walk shows the need for.

    The result is valid, and computes no accumulators twice as far as that is possible.

    Args:
        analyzed: The model.
        illegal: The nodes without integer kernels.
        make_lowering: Returns the lowering for some decisions.
        progress: Called with the share of a walk that is done, from 0 to 1.
    """
    decisions = Decisions()
    invalid = shared = 0
    while True:
        if invalid == _MOST_WALKS:
            reason = Reason(f"{_MOST_WALKS} attempts gave no valid partition of the model")
            every = dict.fromkeys(analyzed.model.graph, reason)
            decisions = replace(decisions, floats={**decisions.floats, **every})
        lowering = make_lowering(decisions)
        result = Partitioner(analyzed, illegal, decisions, lowering, progress).run()
        decisions = result.decisions
        if not result.is_valid:
            invalid += 1
            continue
        more = result.weakened
        if not more and shared < _MOST_WALKS:
            more = find_shared_values(
                result.instructions, result.outputs, lowering, analyzed.grids, decisions.shared
            )
        if not more:
            return result
        shared += 1
        decisions = replace(decisions, shared={**decisions.shared, **more})


class Partitioner:
    """One walk through the nodes of a graph."""

    def __init__(
        self,
        analyzed: AnalyzedModel,
        illegal: Mapping[ir.Node, Reason],
        decisions: Decisions,
        lowering: Lowering,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self._analyzed = analyzed
        self._illegal = illegal
        self._decisions = decisions
        self._floats = dict(decisions.floats)
        self._reasons: dict[ir.Node, Reason] = {}
        self._positions = {node: position for position, node in enumerate(analyzed.model.graph)}
        self._products = {product.node: product for product in analyzed.analysis.products}
        self._dynamic = self._find_dynamic_quantizers()
        self._waiting = self._find_waiting_nodes()
        self._values = Values(analyzed, lowering, decisions.shared)
        self._progress = progress

    def run(self) -> Partition:
        """Visit all nodes, then all outputs of the model."""
        for number, node in enumerate(self._positions):
            if get_varying_inputs(node) or get_captures(node):
                self._step(self._visit, node)
            if self._progress is not None:
                self._progress((number + 1) / len(self._positions))
        require = partial(self._values.require_floats, reader="an output of the model")
        for value in self._analyzed.model.graph.outputs:
            self._step(require, value)
        return Partition(
            self._values.instructions,
            self._reasons,
            replace(self._decisions, floats=self._floats),
            is_valid=len(self._floats) == len(self._decisions.floats),
            weakened=self._values.weakened,
            outputs=self._values.required,
        )

    def _step(self, step: Callable[[T], None], subject: T) -> None:
        """Take a step. Where it needs earlier nodes as floats, note that and go on.

        The walk is not valid then, but may find more of these.
        """
        try:
            step(subject)
            return
        except MustStayFloat as error:
            blocked = error
        while blocked.node not in self._floats:
            self._floats[blocked.node] = blocked.reason
            try:
                self._leave(blocked.node)
            except MustStayFloat as error:
                blocked = error

    def _visit(self, node: ir.Node) -> None:
        """Find the expression of a node, or leave it."""
        if self._values.is_fused(node) or node in self._waiting:
            return
        try:
            expression = self._express(node)
        except (Unsupported, ModelError) as error:
            self._reasons.setdefault(node, Reason(str(error)))
            expression = None
        if expression is None:
            self._leave(node)
            return
        self._values.set_expression(expression)
        if expression.value in self._decisions.shared:
            with suppress(Unsupported):  # the next walk tries another value
                self._values.share(expression.value)
        if is_quantizer(node) and node.outputs[0] in self._analyzed.grids:
            self._anchor(node)

    def _express(self, node: ir.Node) -> Expression | None:
        """Return the expression of the output of a node; None for a node that stays float32.

        Raises:
            Unsupported: It stays float32, for a reason.
            MustStayFloat: An earlier node has to stay float32.
        """
        reason = self._floats.get(node) or self._illegal.get(node)
        if reason is not None:
            raise Unsupported(reason.text)
        if node in self._products:
            return self._product(node)
        if node in self._analyzed.integer_products:
            products = self._analyzed.integer_products
            return express_integer_product(node, products, self._values)
        if is_mean(node):
            return self._mean(node)
        if is_row_function(node, self._analyzed.opset, lambda x: len(self._values.sizes(x)) + 1):
            return self._values.compute_rows(node, require_input(node))
        if find_interpolation(node) is not None:
            return self._interpolation(node)
        expression = self._elementwise(node)
        return move_elements(self._values, node) if expression is None else expression

    def _product(self, node: ir.Node) -> Expression:
        x, y = require_input(node), node.outputs[0]
        product = self._products[node]
        if has_two_operands(node):
            return self._matmul(node)
        is_conv = has_trait(node, OpTrait.CONVOLUTION)
        if x in self._dynamic:
            return self._dynamic_product(product, self._dynamic[x])
        source = self._values.codes(x, 1 if is_conv else len(self._values.sizes(x)))
        sizes = self._values.sizes(y)
        layout = make_layout(sizes, 1 if is_conv else len(sizes))
        layer = self._analyzed.layers[str(y.name)]
        if node.op_type == "ConvTranspose":
            return self._transposed(product, layer, source, layout)
        root, before = accumulate_product(product, layer, source, layout)
        return Expression(root, y, layout, before, (y,))

    def _dynamic_product(self, product: ProductAnalysis, quantizer: DynamicQuantizer) -> Expression:
        """Return the expression of a product of codes with a computed scale.

        Raises:
            MustStayFloat: It has none: nodes of the quantizer have not been visited.
        """
        node, y = product.node, product.node.outputs[0]
        try:
            sizes, x_sizes = self._values.sizes(y), self._values.sizes(quantizer.x)
            is_conv = has_trait(node, OpTrait.CONVOLUTION)
            layout = make_layout(sizes, 1 if is_conv else len(sizes))
            axis = 1 if is_conv else len(x_sizes)
            blocks = self._analyzed.block_weights
            more = 0
            if quantizer.zero is not None and node not in blocks:
                readers = {reader for reader, _ in require_input(node).uses()} - blocks.keys()
                more = count_zero_channels(self._products[reader] for reader in readers)
            codes = self._values.dynamic_codes(quantizer, axis, more, get_label(node))
            channels = codes.tensor.layout.channels - more
            layer = self._analyzed.layers[str(y.name)]
            dynamic = accumulate_dynamic_product(
                product, layer, codes, channels, layout, blocks.get(node)
            )
            return self._values.compute_dynamic_product(dynamic, self._find_chain(y, layout))
        except (Unsupported, ModelError) as error:
            raise MustStayFloat(node, str(error)) from error

    def _find_dynamic_quantizers(self) -> dict[ir.Value, DynamicQuantizer]:
        """Return the quantizers with computed scales that only products read, by their outputs."""
        quantizers = {}
        for node in self._positions:
            y = node.outputs[0] if len(node.outputs) == 1 else None
            if y is None or y.is_graph_output() or not y.uses():
                continue
            if all(self._is_dynamic_reader(reader, place) for reader, place in y.uses()):
                quantizer = find_dynamic_quantizer(node)
                if quantizer is not None:
                    quantizers[y] = quantizer
        return quantizers

    def _is_dynamic_reader(self, node: ir.Node, place: int) -> bool:
        stays_float = node in self._floats or node in self._illegal
        return (
            place == 0
            and node in self._products
            and node.op_type != "ConvTranspose"
            and not has_two_operands(node)
            and not stays_float
        )

    def _find_waiting_nodes(self) -> set[ir.Node]:
        """Return the nodes that nothing needs where products compute scales on their own."""
        waiting: set[ir.Node] = set()
        for y, quantizer in self._dynamic.items():
            ((reader, _), *_) = y.uses()
            rank = len(quantizer.x.shape or ())
            axis = 1 if has_trait(reader, OpTrait.CONVOLUTION) else rank - 1
            if quantizer.computes_per_row(axis, rank):
                waiting |= quantizer.nodes
            else:
                waiting.add(require_producer(y))
        while True:
            read = {
                node
                for node in waiting
                for value in node.outputs
                if value.is_graph_output()
                or any(
                    reader not in waiting and value not in self._dynamic
                    for reader, _ in value.uses()
                )
            }
            if not read:
                return waiting
            waiting -= read

    def _matmul(self, node: ir.Node) -> Expression:
        """Return the expression of a product of two tensors of codes."""
        y, values = node.outputs[0], self._values
        pair = require_input(node, 0), require_input(node, 1)
        check_rows(pair, self._values)
        sizes = [values.sizes(value) for value in (*pair, y)]
        if not 2 <= len(sizes[0]) == len(sizes[1]) == len(sizes[2]) <= 3:
            raise Unsupported("its operands have more or fewer axes than rows, groups and matrices")
        first, second = (values.codes(value, len(sizes[0])) for value in pair)
        abstract = [self._analyzed.analysis.values[value] for value in pair]
        layout = make_layout(sizes[2], len(sizes[2]))
        root = accumulate_matmul(
            node,
            self._analyzed.layers[str(y.name)],
            (first, second),
            layout,
            (abstract[0], abstract[1]),
            values.instructions,
        )
        return Expression(root, y, layout, starts=(y,))

    def _transposed(
        self, product: ProductAnalysis, layer: LayerInfo, source: IntegerTensor, layout: Layout
    ) -> Expression:
        """Return the expression of a ConvTranspose."""
        y = product.node.outputs[0]
        as_codes = self._leads_to_quantizers(y, layout.rank)
        form = make_convolution(product, source, layout, as_codes=as_codes)
        self._values.append(*form.instructions)
        root, before = accumulate_product(form.product, layer, form.source, form.layout, form)
        move = None
        if form.numbers is not None:
            move = PendingMove(form.layout, p.Gather, {"numbers": form.numbers})
        return Expression(root, y, layout, before, (y,), pending=move)

    def _interpolation(self, node: ir.Node) -> Expression:
        x, y = require_input(node), node.outputs[0]
        layout = make_layout(self._values.sizes(y), 1)
        if not self._leads_to_quantizers(y, layout.rank):
            raise Unsupported("other nodes than a quantizer need its floats")
        source = self._values.codes(x, 1)
        abstract = self._analyzed.analysis.values[x]
        form = interpolate(node, source, layout, abstract.reach, abstract.exponent)
        self._values.append(*form.instructions)
        move = PendingMove(form.layout, p.Gather, {"numbers": form.numbers})
        return Expression(form.root, y, layout, starts=(y,), pending=move)

    def _leads_to_quantizers(self, value: ir.Value, rank: int) -> bool:
        """Return whether all uses of a value are chains of one function for all channels."""
        waiting = [value]
        while waiting:
            x = waiting.pop()
            if x.is_graph_output() or not x.uses():
                return False
            for reader, _ in x.uses():
                axes = find_constant_axes(reader, rank, self._analyzed.opset)
                if get_varying_inputs(reader) != [x] or axes != set():
                    return False
                if not is_quantizer(reader):
                    waiting.append(reader.outputs[0])
        return True

    def _mean(self, node: ir.Node) -> Expression:
        x, y = require_input(node), node.outputs[0]
        sizes = self._values.sizes(y)
        axis = find_kept_axis(node, len(self._values.sizes(x)) + 1) or 1
        layout = make_layout(sizes, 1 if axis == 1 else len(sizes))
        if self._values.grid(x) is None and is_average(node):
            return self._values.compute_function(node, x, axis, layout)
        source = self._values.codes(x, axis)
        abstract = self._analyzed.analysis.values[x]
        root, before = accumulate_mean(
            self._analyzed.model, node, source, layout, abstract.reach, abstract.exponent
        )
        return Expression(root, y, layout, before, (y,))

    def _elementwise(self, node: ir.Node) -> Expression | None:
        """Return the expression of an elementwise node; None for other nodes."""
        values = get_varying_inputs(node)
        if len(values) > 2 or not values:
            return None
        rank = len(self._values.sizes(values[0])) + 1
        axes = find_constant_axes(node, rank, self._analyzed.opset)
        if axes is None or node.outputs[0].dtype is None:
            return None
        inputs = [self._read(value, axes) for value in values]
        first = inputs[0]
        if any(len(expression.nodes) >= _LONGEST_CHAIN for expression in inputs):
            return None
        if any(axis != first.layout.axis for axis in axes):
            return None
        if len(inputs) == 1:
            same = first.same and is_uniform(node)
            return replace(first, value=node.outputs[0], nodes=(*first.nodes, node), same=same)
        if have_one_root(*inputs):
            return self._join(node, *inputs)
        return express_pair(node, inputs, self._values) or self._float_pair(node, values)

    def _join(self, node: ir.Node, first: Expression, second: Expression) -> Expression:
        """Join two functions of the same root."""
        nodes = sorted({*first.nodes, *second.nodes, node}, key=self._positions.__getitem__)
        same = first.same and second.same and is_uniform(node)
        return replace(first, value=node.outputs[0], nodes=tuple(nodes), same=same, quantized=None)

    def _float_pair(self, node: ir.Node, values: list[ir.Value]) -> Expression | None:
        """Return the result of a node with two inputs of float32, and of the nodes after it.

        Raises:
            Unsupported: It is not one operation, or no instruction gives an input.
        """
        check_rows(values, self._values)
        operands = self._values.float_operands(node, values)
        chain = [node, *self._find_chain(node.outputs[0], operands.layout)]
        return self._values.compute_elementwise(operands, chain)

    def _find_chain(self, value: ir.Value, layout: Layout) -> list[ir.Node]:
        """Return the elementwise nodes that read a value, each the only reader of the last."""
        chain: list[ir.Node] = []
        while (reader := self._find_only_reader(value, layout)) is not None:
            chain.append(reader)
            value = reader.outputs[0]
        return chain

    def _find_only_reader(self, value: ir.Value, layout: Layout) -> ir.Node | None:
        """Return the only reader of a value if it is elementwise, and not a quantizer."""
        if value.is_graph_output() or len(value.uses()) != 1:
            return None
        ((reader, _),) = value.uses()
        blocked = reader in self._floats or reader in self._illegal or is_quantizer(reader)
        if blocked or get_varying_inputs(reader) != [value]:
            return None
        axes = find_constant_axes(reader, layout.rank, self._analyzed.opset)
        return None if axes is None or axes - {layout.axis} else reader

    def _read(self, value: ir.Value, axes: set[int]) -> Expression:
        """Return the expression of a value, with its channels along these axes if possible."""
        expression = self._values.expression(value)
        if isinstance(expression.root, InputRoot) and expression.uniform and len(axes) == 1:
            (axis,) = axes
            if axis in (1, expression.layout.rank - 1):
                return replace(expression, layout=make_layout(self._values.sizes(value), axis))
        return expression

    def _anchor(self, node: ir.Node) -> None:
        """Compute the codes of a quantizer, unless its readers continue elementwise."""
        value = node.outputs[0]
        expression = self._values.expression(value)
        if isinstance(expression.root, InputRoot):
            waits = not self._has_codes_of_its_own(value, expression.layout.rank)
        else:
            waits = self._continues(value, expression) or (
                isinstance(expression.root, MatMulRoot) and leads_to_merge(value)
            )
        if waits:
            self._values.set_expression(replace(expression, quantized=expression))
            return
        try:
            tensor = self._values.codes(value, expression.layout.axis)
        except Unsupported as error:
            self._reasons.setdefault(node, error.reason)
            self._enter_before(node)
            return
        self._values.set_tensor(value, tensor)

    def _has_codes_of_its_own(self, value: ir.Value, rank: int) -> bool:
        """Return whether layers use a value after data movement or a function with a quantizer.

        Its codes are computed at once then. Otherwise, layers that read it choose their order.
        """
        has_other_reader, waiting = False, [(value, True)]
        while waiting:
            x, is_moved = waiting.pop()
            if x.is_graph_output():
                return False
            for reader, _ in x.uses():
                if is_moved and reader in self._products:
                    continue
                has_other_reader |= not has_trait(reader, OpTrait.RESHAPE)
                if is_quantizer(reader):
                    continue
                axes = find_constant_axes(reader, rank, self._analyzed.opset)
                is_function = axes is not None and len(get_varying_inputs(reader)) == 1
                if not is_function and not (is_moved and has_trait(reader, OpTrait.KEEPS_CODES)):
                    return False
                waiting.append((reader.outputs[0], not is_function))
        return has_other_reader

    def _continues(self, value: ir.Value, expression: Expression) -> bool:
        """Return whether all readers of a value are elementwise nodes of it alone."""
        rank, opset = expression.layout.rank, self._analyzed.opset
        return not value.is_graph_output() and all(
            len(get_varying_inputs(reader)) == 1
            and find_constant_axes(reader, rank, opset) is not None
            for reader, _ in value.uses()
        )

    def _enter_before(self, node: ir.Node) -> None:
        """Quantize floats of a region, or let them enter one, if nothing else computes codes."""
        x, nodes = split_quantizer(node)
        if not self._values.compute_inside(x):
            self._values.require_floats(x, get_label(node))
            self._values.set_float(x, self._values.stage(x))
        for quantizer in nodes:
            expression = self._elementwise(quantizer)
            if expression is None:
                self._leave(node)
                return
            self._values.set_expression(expression)
        expression = self._values.expression(node.outputs[0])
        self._values.set_expression(replace(expression, quantized=expression))

    def _leave(self, node: ir.Node) -> None:
        """Leave a node in the graph: it reads and computes float32."""
        values = [*get_varying_inputs(node), *get_captures(node)]
        stage = max((self._values.stage(value) for value in values), default=0)
        for value in values:
            self._values.require_floats(value, get_label(node))
        for value in node.outputs:
            self._values.set_float(value, stage)
