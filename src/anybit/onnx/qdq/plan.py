# SPDX-License-Identifier: Apache-2.0
"""The native type of a quantizer, and the nodes to write around it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import onnx_ir as ir

from anybit.formats import LARGEST_FLOAT32, FloatFormat
from anybit.onnx.forms import Form
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.require import require_input
from anybit.onnx.qdq.blocks import JoinedBlocks, find_blocks, find_joined_blocks
from anybit.onnx.qdq.fusions import Fence, Neighbour, choose_fence, find_neighbours
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.native_types import (
    FLOATS,
    INTEGERS,
    PER_AXIS_OPSET,
    PER_BLOCK_OPSET,
    NativeType,
)
from anybit.onnx.quantizers.quantizer import find_quantizer
from anybit.onnx.quantizers.trace import Traces
from anybit.ops import Operator
from anybit.ops.grids import Channels, Coding, FloatGrid, Grid, IntegerGrid

_FLOATING = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

# Opsets of Clip for integers and of GreaterOrEqual, which are newer than QuantizeLinear.
_INTEGER_CLIP_OPSET = 12
_COMPARISON_OPSET = 12
_BFLOAT16_OPSET = 13  # of Cast

# Widths of codes that index a table, and of packed codes.
_LARGEST_TABLE, _PACKED = 8, 4


class Limit(Enum):
    """The position of the nodes that limit a range narrower than its type."""

    NOWHERE = "nothing"
    CODES = "a Clip of the codes"
    """Between QuantizeLinear and DequantizeLinear."""
    VALUES = "Max and Min before it"
    """With lowest * scale and highest * scale: exact, since
    RN(RN(n * s) / s) is nearer to n than to any other integer, for |n| < 2^22 and any s; where
    n * s overflows nothing is clipped, and the result is infinite either way."""


@dataclass(frozen=True)
class Options:
    """The requirements of the caller; the style is QDQ or QCDQ."""

    style: Form
    opset: int
    allow_approximate: bool = False


@dataclass(frozen=True)
class QdqPlan:
    """The form of one node. `approximation` describes the difference, or is empty."""

    grid: Grid
    layout: Channels
    type: NativeType
    dtype: ir.DataType
    constant: bool
    limit: Limit
    approximation: str = ""
    joined: JoinedBlocks | None = None

    @property
    def table(self) -> FloatFormat | None:
        """Return the format of codes that index a table of its values; None for native types."""
        if isinstance(self.grid, IntegerGrid) or self.type.format is not None:
            return None
        return self.grid.format

    @property
    def sign(self) -> bool:
        return self.grid.coding is Coding.SIGN

    @property
    def remark(self) -> str:
        """Return a remark about the result; empty if there is none."""
        if self.table is not None:
            return f"codes of {self.table}, whose values stand in a table"
        if self.approximation or not isinstance(self.grid, IntegerGrid):
            return self.approximation
        narrower = (self.grid.lowest, self.grid.highest) != (self.type.lowest, self.type.highest)
        if not narrower or self.sign:
            return ""
        codes = f"codes {self.grid.lowest} .. {self.grid.highest}"
        if self.limit is Limit.NOWHERE:
            return f"{codes}, recorded in the node's metadata"
        return f"{codes}, limited by {self.limit.value}"

    @property
    def opset(self) -> int:
        """Return the lowest opset with everything that is written."""
        needed = self.type.opset
        if self.table is not None:  # DequantizeLinear returns the codes as floats, without scales
            return needed
        if self.layout.axis is not None:
            needed = max(needed, PER_AXIS_OPSET)
        if self.layout.block:
            needed = max(needed, PER_BLOCK_OPSET)
        if self.limit is Limit.CODES:
            needed = max(needed, _INTEGER_CLIP_OPSET)
        if self.sign and not self.constant:
            needed = max(needed, _COMPARISON_OPSET)
        if self.dtype == ir.DataType.BFLOAT16:
            needed = max(needed, _BFLOAT16_OPSET)
        return needed


def plan_quantizer(node: ir.Node, operator: Operator, options: Options) -> QdqPlan:
    """Return the plan with the narrowest type.

    Raises:
        Inexpressible: The values cannot be represented, or not in the allowed opset.
        ModelError: The operator would refuse a parameter.
    """
    x = require_input(node)
    dtype = x.const_value.dtype if x.const_value is not None else x.dtype
    if dtype is None:
        raise Inexpressible("the type of x is not known")
    if dtype not in _FLOATING:
        raise Inexpressible(f"x is {dtype.name.lower()}, and QuantizeLinear computes in float32")
    grid = _get_grid(node, operator)
    constant = is_constant(x)
    if grid.coding is Coding.OTHER and not constant:
        raise Inexpressible("QuantizeLinear has another way of rounding")
    layout = _find_layout(grid, x, constant and options.style is Form.QDQ)
    approximation = "" if constant else _describe_approximation(layout, options)

    neighbours = frozenset() if constant else find_neighbours(node)
    opsets = []
    subject = _Subject(grid, layout, constant, neighbours, options.style)
    for native, limit in _iter_candidates(subject):
        candidate = QdqPlan(grid, layout, native, dtype, constant, limit, approximation)
        if layout.block and candidate.table is None and (join := find_joined_blocks(node, layout)):
            candidate = replace(candidate, layout=join.layout, joined=join)
        if candidate.opset <= options.opset:
            return candidate
        opsets.append(candidate.opset)
    if not opsets:
        raise Inexpressible(_explain_missing_type(grid, layout, options.style))
    raise Inexpressible(f"the type that holds its range needs opset {min(opsets)}")


def _get_grid(node: ir.Node, operator: Operator) -> Grid:
    quantizer = find_quantizer(node, Traces())
    if quantizer is None:
        raise Inexpressible("it is not a quantizer of this package")
    grid = quantizer.check_grid()
    if grid is None and operator.grid is not None and not quantizer.static:
        raise Inexpressible(f"its {quantizer.computed[0]} is computed when the model runs")
    if grid is None:
        raise Inexpressible("no single integer range or float format has its values")
    return grid


def _find_layout(grid: Grid, x: ir.Value, in_blocks: bool) -> Channels:
    layout = grid.channels or (find_blocks(grid, x) if in_blocks else None)
    if layout is None:
        raise Inexpressible("its scale and zero-point vary along more than one axis, or are empty")
    if not np.all(np.isfinite(layout.scale) & (layout.scale > 0)):
        raise Inexpressible("its scale is not finite and positive")
    if layout.axis is not None and x.shape is not None and not layout.block:
        size = x.shape[layout.axis] if -layout.axis <= x.shape.rank() else 1
        if isinstance(size, int) and size != layout.scale.size:
            raise Inexpressible(f"{layout.scale.size} scales do not broadcast to x")
    return layout


def _describe_approximation(layout: Channels, options: Options) -> str:
    """Return the difference that a zero-point causes, if that is allowed."""
    if not np.any(layout.zeropt):
        return ""
    words = f"zero-point {layout.zeropt.flat[np.flatnonzero(layout.zeropt)[0]]:g}"
    if not options.allow_approximate:
        raise Inexpressible(f"{words} is added before rounding, by QuantizeLinear after it")
    return f"differs by one step at ties and next to them: {words} is added after rounding"


@dataclass(frozen=True)
class _Subject:
    """The properties that decide about the type."""

    grid: Grid
    layout: Channels
    constant: bool
    neighbours: frozenset[Neighbour]
    style: Form

    def choose_fence(self, native: NativeType) -> Fence:
        return choose_fence(self.neighbours, native, self.layout)


def _iter_candidates(subject: _Subject) -> Iterator[tuple[NativeType, Limit]]:
    """Yield all types with the limits that keep the range, the best first."""
    grid, zeropt = subject.grid, subject.layout.zeropt
    if isinstance(grid, FloatGrid):
        for native in FLOATS if subject.style is Form.QDQ else ():
            if native.format == grid.format:
                yield native, Limit.VALUES if subject.choose_fence(native) else Limit.NOWHERE
        yield from ((native, Limit.NOWHERE) for native in _iter_table_types(grid, subject))
        return
    if np.any(zeropt != np.rint(zeropt)):
        return
    low = min(grid.lowest, int(np.clip(zeropt.min(), -(2.0**40), 0)))
    high = max(grid.highest, int(np.clip(zeropt.max(), 0, 2.0**40)))
    for native in _list_types(grid, subject.style):
        if not native.holds(low, high) or (
            native.wide and (not subject.constant or np.any(zeropt))
        ):
            continue
        limit = _choose_limit(native, grid, subject)
        if limit is not None:
            yield native, limit


def _iter_table_types(grid: FloatGrid, subject: _Subject) -> Iterator[NativeType]:
    """Yield the types for table indices of constants whose format is not a native type."""
    narrow = grid.bits <= _LARGEST_TABLE and subject.style is Form.QDQ and subject.constant
    is_native = any(native.format == grid.format for native in FLOATS)
    held = grid.format.largest <= LARGEST_FLOAT32  # by the table
    for native in INTEGERS if narrow and held and not is_native else ():
        if not native.signed and native.bits >= max(grid.bits, _PACKED):
            yield native


def _choose_limit(native: NativeType, grid: IntegerGrid, subject: _Subject) -> Limit | None:
    """Return how the range is limited in a type; None if the type is unsuitable."""
    whole = (native.lowest, native.highest) == (grid.lowest, grid.highest)
    # The nodes of a sign come before.
    fence = Fence.NONE if grid.coding is Coding.SIGN else subject.choose_fence(native)
    if subject.style is Form.QCDQ and (subject.constant or grid.coding is Coding.SIGN):
        return Limit.NOWHERE if whole else Limit.CODES
    if subject.constant or grid.coding is Coding.SIGN:
        return Limit.NOWHERE
    per_channel = subject.layout.axis is not None
    if native.bits == 2 and per_channel:
        return None  # ONNX Runtime 1.26 returns other codes
    if whole and (native.bits == 2 or (native.bits == 4 and (per_channel or fence))):
        # From 2^31 on, these kernels of ONNX Runtime 1.31 return the lowest code instead of
        # saturating; with an infinite highest value, a limit cannot prevent that.
        finite = float(subject.layout.scale.max()) * native.highest < LARGEST_FLOAT32
        return Limit.VALUES if finite else None
    if whole and not fence:
        return Limit.NOWHERE
    if native.bits == 8:
        return Limit.VALUES if fence is Fence.BEFORE else Limit.CODES
    # ONNX's Clip takes no 2- and 4-bit integers, and ONNX Runtime's none of 16 bits.
    return Limit.VALUES if native.bits == 16 else None


def _list_types(grid: IntegerGrid, style: Form) -> list[NativeType]:
    """Return the integer types of a style by width, first those with the grid's sign."""
    types = [integer for integer in INTEGERS if style is Form.QDQ or integer.bits in (8, 32)]
    return sorted(types, key=lambda native: (native.bits, native.signed != (grid.lowest < 0)))


def _explain_missing_type(grid: Grid, layout: Channels, style: Form) -> str:
    if np.any(layout.zeropt != np.rint(layout.zeropt)):
        return "a zero-point is not an integer"
    holder = "no native type" if style is Form.QDQ else "no 8-bit type"
    if not isinstance(grid, IntegerGrid):
        return f"{holder} has the values of {grid.format}"
    zeropt = " and the zero-point" if np.any(layout.zeropt) else ""
    return f"{holder} holds {grid.lowest} .. {grid.highest}{zeropt}"
