# SPDX-License-Identifier: Apache-2.0
"""Values of the graph as functions of inputs, tensors and accumulators of regions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.compiler.layer import CompiledLayer
from anybit.compiler.partition.element_functions import ElementFunction, NodeChain
from anybit.compiler.partition.layout import Layout
from anybit.compiler.program import program as p
from anybit.onnx.graph.constants import Array
from anybit.quant_types.grids import TensorGrid
from anybit.quant_types.layer_info import LayerInfo


@dataclass(frozen=True, eq=False)
class IntegerTensor:
    """A value of the graph that a program holds as a tensor of codes.

    Attributes:
        value: The value.
        layout: Order of its elements.
        grid: Its codes.
        stage: Number of changes from integers to float32 on the way to it.
        identity: Identity of the tensor: two values may name the same one.
    """

    value: ir.Value
    layout: Layout
    grid: TensorGrid
    stage: int
    identity: object = field(default_factory=object)


@dataclass(frozen=True, eq=False)
class RegionInput:
    """A float value as a region reads it; the sizes exclude the rows."""

    value: ir.Value
    sizes: tuple[int, ...]
    layout: Layout


@dataclass(frozen=True, eq=False)
class RegionOutput:
    """A float value that a region computes, for its own instructions or as an output."""

    value: ir.Value
    layout: Layout
    stage: int


@dataclass(frozen=True, eq=False)
class PlannedInstruction:
    """An instruction without the numbers of its tensors and ports.

    Attributes:
        kind: Its class in the program.
        reads, writes: Its sources and its target.
        fields: Its other fields.
        layer: The layer of the graph that it computes, for the report.
        origin: The function of an accumulator that a product computes.
    """

    kind: type[Any]
    reads: "tuple[RegionInput | RegionOutput | IntegerTensor, ...]"
    writes: IntegerTensor | RegionOutput
    fields: Mapping[str, Any]
    layer: CompiledLayer | None = None
    origin: "Expression | None" = None


@dataclass(frozen=True, eq=False)
class IntegerRange:
    """An interval of integers per channel, both ends included."""

    lowest: Array
    highest: Array

    @property
    def longest(self) -> int:
        """The largest number of integers in any channel."""
        return int((self.highest - self.lowest).max()) + 1


@dataclass(frozen=True, eq=False)
class Accumulators:
    """Integer accumulators and the float32 sums that the graph computes in their place.

    Attributes:
        scales: Value of one unit per channel, float32.
        reach: The accumulators that can occur.
        slack: Largest error of a float32 sum, in any order of addition; 0 where it is exact.
            float64.
    """

    scales: Array
    reach: IntegerRange
    slack: Array

    def values(self, accumulators: Array) -> Array:
        """Return float32(accumulator) * scale, rounded to float32."""
        with np.errstate(all="ignore"):
            return np.asarray(accumulators.astype(np.float32) * self.scales)

    def bounds(self, accumulators: Array) -> tuple[Array, Array]:
        """Return bounds of the float32 sums over all orders of addition."""
        exact = self.values(accumulators)
        below, above = (
            # One float further, because the bound itself is rounded here.
            np.nextafter((exact + sign * self.slack).astype(np.float32), np.float32(sign * np.inf))
            for sign in (-1, 1)
        )
        return below, above


@dataclass(frozen=True, eq=False)
class InputRoot:
    """A float value of the graph: a region can quantize functions of it where it comes in."""

    value: ir.Value
    sizes: tuple[int, ...]
    stage: int


@dataclass(frozen=True, eq=False)
class AccumulatorRoot:
    """The accumulators of a sum of products.

    Attributes:
        node: Conv, Gemm, MatMul, or a mean, which is a sum with weights of 1.
        source: The activations.
        window: The window.
        groups: Number of groups of channels.
        weights: Integers, output channel x kernel row x kernel column x input channel.
        accumulators: Their ranges and scales.
        layer: The layer, for the report.
    """

    node: ir.Node
    source: IntegerTensor
    window: p.Window
    groups: int
    weights: Array
    accumulators: Accumulators
    layer: LayerInfo

    @property
    def channels(self) -> int:
        """The number of channels of the results."""
        return self.accumulators.scales.size

    @property
    def stage(self) -> int:
        return self.source.stage


@dataclass(frozen=True, eq=False)
class MatMulRoot(AccumulatorRoot):
    """The accumulators of products of two tensors of codes; there are no weights.

    Attributes:
        second: The second operand; the source is the first.
        fields: The sizes and views of the instruction.
    """

    second: IntegerTensor
    fields: Mapping[str, Any]

    @property
    def stage(self) -> int:
        return max(self.source.stage, self.second.stage)


@dataclass(frozen=True, eq=False)
class TensorRoot:
    """A tensor of codes."""

    tensor: IntegerTensor

    @property
    def stage(self) -> int:
        return self.tensor.stage


@dataclass(frozen=True, eq=False)
class OutputRoot:
    """Float32 results of instructions, which others read.

    Attributes:
        output: The results.
        layer: The layer that computes them; None where it is not one.
    """

    output: RegionOutput
    layer: LayerInfo | None = None

    @property
    def stage(self) -> int:
        return self.output.stage


@dataclass(frozen=True, eq=False)
class PairRoot:
    """Two tensors of codes, element by element."""

    first: IntegerTensor
    second: IntegerTensor

    @property
    def stage(self) -> int:
        return max(self.first.stage, self.second.stage)


@dataclass(frozen=True, eq=False)
class FloatOperands:
    """Float32 operands of an elementwise instruction, in one region.

    Attributes:
        values: The values of the graph.
        arrays: The same as the instruction reads them.
        layout: Layout of the result, and of the first.
        stage: Stage of the result.
    """

    values: tuple[ir.Value, ...]
    arrays: tuple[RegionInput | RegionOutput, ...]
    layout: Layout
    stage: int


Root: TypeAlias = InputRoot | AccumulatorRoot | OutputRoot | TensorRoot | PairRoot


@dataclass(frozen=True, eq=False)
class PendingMove:
    """A data movement that waits for codes: elementwise nodes after it are computed before it.

    Attributes:
        layout: Layout before the movement.
        kind, fields: Its instruction. A Gather has the `numbers` of its elements in place of lines.
    """

    layout: Layout
    kind: type[Any]
    fields: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Expression:
    """A value whose elements are functions of the elements of a root at the same positions.

    Attributes:
        root: The root.
        value: The value of the graph.
        layout: Its layout.
        before: The function that is applied to the root first.
        starts: The inputs of the nodes: the root, both of a pair, or a moved copy of the root.
        nodes: The nodes that are applied then, in topological order.
        same: Whether these do the same in all channels.
        quantized: The last expression on the way whose value is on a grid, perhaps this one.
        moved_from: The expression before a data movement that gave it another layout or name.
        pending: The data movement that `nodes` were pulled before, if there is one.
    """

    root: Root
    value: ir.Value
    layout: Layout
    before: ElementFunction = field(default_factory=ElementFunction)
    starts: tuple[ir.Value, ...] = ()
    nodes: tuple[ir.Node, ...] = ()
    same: bool = True
    quantized: "Expression | None" = None
    moved_from: "Expression | None" = None
    pending: PendingMove | None = None

    @property
    def root_layout(self) -> Layout:
        """The layout before the pending data movement."""
        return self.layout if self.pending is None else self.pending.layout

    @property
    def uniform(self) -> bool:
        """True if the function is the same for all channels."""
        return self.before.uniform and self.same

    @property
    def all_nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that are applied to the root, also those before data movements."""
        before = () if self.moved_from is None else self.moved_from.all_nodes
        return (*before, *self.nodes)

    @property
    def before_renaming(self) -> "Expression":
        """The same elements before the data movements at the end, which only gave other layouts.

        No movement is pending.
        """
        if self.nodes or self.moved_from is None:
            return self
        return self.moved_from.before_renaming

    def function(self, model: ir.Model) -> ElementFunction:
        """Return the function from elements of the root to elements of the value."""
        if not self.nodes:
            return self.before
        rank, axis = self.layout.rank, self.layout.axis
        part = NodeChain(model, self.nodes, self.starts, self.value, rank, axis)
        return self.before.then(part, monotone=part.monotone, uniform=self.uniform)


def have_one_root(first: Expression, second: Expression) -> bool:
    """Return whether two expressions are functions of the same elements."""
    roots = [
        (expression.root, expression.before, expression.starts, expression.pending)
        for expression in (first, second)
    ]
    return roots[0] == roots[1] and first.layout == second.layout
