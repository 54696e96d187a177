# SPDX-License-Identifier: Apache-2.0
"""What a region is planned as before it is a program: tensors of codes, and functions of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.lowbit import program as p
from anybit.lowbit.functions import Function, Nodes
from anybit.lowbit.layers import CompiledLayer
from anybit.lowbit.places import Place
from anybit.lowbit.tails import Sum
from anybit.lowbit.uncovered import Uncovered
from anybit.onnx.graph.constants import Array
from anybit.quant_types.layer_info import LayerInfo


@dataclass(frozen=True)
class Codes:
    """The integers of a tensor: lowest, lowest + step, ... ; each times the scale is a value."""

    scale: float
    lowest: int
    step: int
    levels: int

    @property
    def highest(self) -> int:
        return self.lowest + self.step * (self.levels - 1)

    @property
    def shift(self) -> int:
        """The index that a code of 0 has, or would have; about, where that is far away."""
        return max(-p.MOST_SHIFT, min(-round(self.lowest / self.step), p.MOST_SHIFT))

    @property
    def all(self) -> Array:
        return self.lowest + self.step * np.arange(self.levels)

    def decode(self, integers: Array) -> Array:
        """The values, as the float graph computes them."""
        with np.errstate(over="ignore"):
            return np.asarray(integers.astype(np.float32) * np.float32(self.scale))

    def nearest(self, values: Array) -> Array:
        """The value of a code that is nearest to each; NaN stays."""
        with np.errstate(all="ignore"):
            position = np.rint((values.astype(np.float64) / self.scale - self.lowest) / self.step)
        integers = self.lowest + self.step * np.clip(position, 0, self.levels - 1)
        return self.decode(integers)

    def index(self, values: Array) -> Array:
        """The index of each value.

        Raises:
            Uncovered: One that is not on the grid.
        """
        with np.errstate(all="ignore"):
            integers = np.rint(values.astype(np.float64) / self.scale)
        if not np.array_equal(self.decode(integers), values):
            raise Uncovered("values that are NaN or infinite, or off their grid")
        index = integers - self.lowest
        if self.step != 1:
            with np.errstate(invalid="ignore"):
                index, rest = np.divmod(index, self.step)
            if rest.any():
                raise Uncovered("values that are not among the codes")
        if index.min(initial=0) < 0 or index.max(initial=0) >= self.levels:
            raise Uncovered("values that are not among the codes")
        return np.asarray(index, np.int64)


@dataclass(frozen=True, eq=False)
class Coded:
    """A value of the graph that a program holds as a tensor of codes.

    Attributes:
        value: The value.
        place: How it lies.
        codes: The codes.
        stage: How often floats came in on the way to it.
        tensor: What tells tensors apart: two values may be one, by two names.
    """

    value: ir.Value
    place: Place
    codes: Codes
    stage: int
    tensor: object = field(default_factory=object)


@dataclass(frozen=True, eq=False)
class PortRoot:
    """Any float value of the graph: a function of it can be quantized where it comes in."""

    value: ir.Value
    sizes: tuple[int, ...]
    stage: int


@dataclass(frozen=True, eq=False)
class SumRoot:
    """The accumulators of a sum of products.

    Attributes:
        node: Conv, Gemm, MatMul, or a mean, which is a sum with weights of 1.
        weights: Integers as target channel x kernel row x kernel column x source channel.
        layer: What is known of it.
    """

    node: ir.Node
    source: Coded
    window: p.Window
    groups: int
    weights: Array
    sum: Sum
    layer: LayerInfo

    @property
    def stage(self) -> int:
        return self.source.stage


@dataclass(frozen=True, eq=False)
class CodesRoot:
    """A tensor of codes."""

    coded: Coded

    @property
    def stage(self) -> int:
        return self.coded.stage


@dataclass(frozen=True, eq=False)
class OutletRoot:
    """The float result of a sum: an output of the region, which the region quantizes, too.

    Attributes:
        outlet: The output.
        layer: What is known of the sum.
    """

    outlet: "Outlet"
    layer: LayerInfo

    @property
    def stage(self) -> int:
        return self.outlet.stage


@dataclass(frozen=True, eq=False)
class PairRoot:
    """Two tensors of codes, element by element."""

    first: Coded
    second: Coded

    @property
    def stage(self) -> int:
        return max(self.first.stage, self.second.stage)


@dataclass(frozen=True, eq=False)
class Inlet:
    """A float value as a region reads it."""

    value: ir.Value
    sizes: tuple[int, ...]
    place: Place


@dataclass(frozen=True, eq=False)
class Outlet:
    """A float value that a region gives."""

    value: ir.Value
    place: Place
    stage: int


@dataclass(frozen=True, eq=False)
class Planned:
    """An instruction of which only the numbers of tensors and ports are missing.

    Attributes:
        kind: Its class.
        reads, writes: What its sources and its target are.
        fields: The others by name.
        layer: What it computes of the graph, for the report.
        origin: The function of a sum that a product computes.
    """

    kind: type[Any]
    reads: "tuple[Inlet | Outlet | Coded, ...]"
    writes: Coded | Outlet
    fields: Mapping[str, Any]
    layer: CompiledLayer | None = None
    origin: "Expression | None" = None


Root: TypeAlias = PortRoot | SumRoot | OutletRoot | CodesRoot | PairRoot


@dataclass(frozen=True, eq=False)
class Pending:
    """A move that is done when there are codes: what lies behind it is computed before it.

    Attributes:
        place: How the values before it lie.
        kind, fields: Its instruction.
    """

    place: Place
    kind: type[Any]
    fields: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Expression:
    """A value each of whose elements is a function of the element of a root at its own place.

    Attributes:
        root: The root.
        value: The value of the graph.
        place: How it lies.
        before: What is done first.
        starts: What the nodes read: the root, or both, or what a move has made of it.
        nodes: What is done then, in an order in which it can run.
        same: Whether each of these does the same in all channels.
        quantized: The last value on the way that was one of codes; it may be this one.
        behind: The expression that a move has given another place or name.
        pending: The move that `nodes` have been pulled before, if there is one.
    """

    root: Root
    value: ir.Value
    place: Place
    before: Function = field(default_factory=Function)
    starts: tuple[ir.Value, ...] = ()
    nodes: tuple[ir.Node, ...] = ()
    same: bool = True
    quantized: "Expression | None" = None
    behind: "Expression | None" = None
    pending: Pending | None = None

    @property
    def root_place(self) -> Place:
        """How the values lie before the move that is pending."""
        return self.place if self.pending is None else self.pending.place

    @property
    def uniform(self) -> bool:
        """Whether the function is the same for all channels."""
        return self.before.uniform and self.same

    def function(self, model: ir.Model) -> Function:
        """The whole function."""
        if not self.nodes:
            return self.before
        part = Nodes(model, self.nodes, self.starts, self.value, self.place.rank, self.place.axis)
        return self.before.then(part, monotone=part.monotone, uniform=self.uniform)
