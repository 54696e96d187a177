# SPDX-License-Identifier: Apache-2.0
"""Products of two tensors of codes, whose operands are views of tensors before data movement."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.partition.expressions import (
    Accumulators,
    Expression,
    IntegerRange,
    IntegerTensor,
    MatMulRoot,
    PlannedInstruction,
)
from anybit.compiler.partition.layout import Layout
from anybit.compiler.partition.windows import SINGLE
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.products import count_bits
from anybit.onnx.analysis.sums import bound_error
from anybit.onnx.analysis.units import EXACT
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.quant_types.grids import TensorGrid
from anybit.quant_types.layer_info import Guarantee, LayerInfo

_MOST_FOLLOWED = 2**22
"""Larger operands are read as they are: arrays of their numbers would take much memory."""
_LARGEST_SUM = 2**30 - 1
_LARGEST_WORD = 2**15 - 1
_LARGEST_FLOAT, _SMALLEST_FLOAT = 2.0**127, 2.0**-126


def accumulate_matmul(
    node: ir.Node,
    layer: LayerInfo,
    operands: tuple[IntegerTensor, IntegerTensor],
    layout: Layout,
    values: tuple[AbstractValue, AbstractValue],
    instructions: Sequence[PlannedInstruction],
) -> MatMulRoot:
    """Return the accumulators of a product of two tensors, group by group.

    Args:
        node: The MatMul.
        layer: Its layer, for the report.
        operands: Its operands, with the last axis as channels.
        layout: Layout of its output, with the last axis as channels.
        values: Abstract values of the operands.
        instructions: The instructions so far: moves of operands become views.

    Raises:
        Unsupported: Sizes do not fit, or sums have more than 31 bits.
    """
    sizes = tuple(operand.layout.sizes for operand in operands)
    groups = layout.height
    depth = sizes[0][-1]
    expected = (layout.width, depth), (depth, layout.channels)
    for (*outer, rows, columns), pair in zip(sizes, expected, strict=True):
        if (rows, columns) != pair or math.prod(outer) != groups or len(outer) > 1:
            raise Unsupported("its operands differ in their groups")
    first = find_view(operands[0], instructions, (groups, layout.width, depth), transposed=False)
    second = find_view(operands[1], instructions, (groups, depth, layout.channels), transposed=True)
    if operands[0].stage != operands[1].stage:
        raise Unsupported("float32 nodes lie between its two inputs: no region has both")
    sums = _accumulate(operands, layout.channels, depth, values)
    fields = {
        "groups": groups,
        "rows": layout.width,
        "columns": layout.channels,
        "depth": depth,
        "first_view": first[1],
        "second_view": second[1],
        "merges": 0,
    }
    span = int(sums.reach.lowest.min()), int(sums.reach.highest.max())
    is_exact = not sums.slack.any()
    layer = replace(
        layer,
        guarantee=Guarantee.EXACT if is_exact else Guarantee.BOUNDED,
        reason="" if is_exact else "the scales of its inputs are not short numbers",
        accumulator=span,
        accumulator_bits=count_bits(*span),
    )
    return MatMulRoot(
        node=node,
        source=first[0],
        window=SINGLE,
        groups=1,
        weights=np.zeros((layout.channels, 1, 1, 0), np.int64),
        accumulators=sums,
        layer=layer,
        second=second[0],
        fields=fields,
    )


def _accumulate(
    operands: tuple[IntegerTensor, IntegerTensor],
    channels: int,
    depth: int,
    values: tuple[AbstractValue, AbstractValue],
) -> Accumulators:
    first, second = (operand.grid for operand in operands)
    largest = [_find_largest_code(grid) for grid in (first, second)]
    if max(largest) > _LARGEST_WORD or depth * largest[0] * largest[1] > _LARGEST_SUM:
        raise Unsupported("its sums need more than 31 bits")
    codes = (first.lowest, first.highest), (second.lowest, second.highest)
    ends = [depth * a * b for a in codes[0] for b in codes[1]]
    scale = first.scale * second.scale
    reach = depth * values[0].reach * values[1].reach
    if not abs(scale) >= _SMALLEST_FLOAT or not reach < _LARGEST_FLOAT:
        raise Unsupported("its sums are beyond the normal numbers of float32")
    exponents = [value.exponent for value in values]
    exact = None not in exponents and reach <= EXACT * 2.0 ** sum(filter(None, exponents))
    slack = 0.0 if exact else float(bound_error(np.asarray(reach), np.asarray(depth)))
    return Accumulators(
        np.full(channels, scale, np.float32),
        IntegerRange(np.full(channels, min(ends)), np.full(channels, max(ends))),
        np.full(channels, slack),
    )


def _find_largest_code(grid: TensorGrid) -> int:
    return max(abs(grid.lowest), abs(grid.highest))


def find_view(
    tensor: IntegerTensor,
    instructions: Sequence[PlannedInstruction],
    sizes: tuple[int, int, int],
    *,
    transposed: bool,
) -> tuple[IntegerTensor, Array]:
    """Return the earliest tensor that has the elements of an operand, and the view.

    Args:
        tensor: The operand.
        instructions: The instructions that compute it.
        sizes: Its groups, lines and columns.
        transposed: Whether the depth runs along the lines.
    """
    best = tensor, _view_whole(sizes, transposed)
    depth = sizes[1] if transposed else sizes[2]
    if math.prod(sizes) > _MOST_FOLLOWED:
        return best
    numbers = np.arange(math.prod(sizes))
    for instruction in reversed(instructions):
        if getattr(instruction.writes, "identity", None) is not tensor.identity:
            continue
        elements = max(math.prod(read.layout.sizes) for read in instruction.reads)
        if elements > _MOST_FOLLOWED:
            break
        moved = trace_instruction(instruction)
        if moved is None:
            break
        (source,) = instruction.reads
        assert isinstance(source, IntegerTensor), "moves read tensors"
        tensor, numbers = source, moved[numbers]
        view = _fit_view(numbers, sizes, transposed)
        if view is not None and elements >= depth:  # else a program refuses it
            best = tensor, view
    return best


def trace_instruction(instruction: PlannedInstruction) -> Array | None:
    """Return the number of the source of each element of a target; None for other instructions.

    Elements are numbered in the order in which tensors are stored.
    """
    fields = instruction.fields
    if instruction.kind is p.Reshape:
        source, target = instruction.reads[0].layout, instruction.writes.layout
        numbers = np.arange(source.height * source.width * source.channels)
        if fields["source_channels_first"]:
            numbers = numbers.reshape(-1, source.channels).T.ravel()
        if fields["target_channels_first"]:
            numbers = numbers.reshape(target.channels, -1).T.ravel()
        return numbers
    if instruction.kind is not p.Gather:
        return None
    layout = instruction.reads[0].layout
    rows, columns, channels = (fields[name] for name in ("rows", "columns", "channels"))
    if len(channels) != instruction.writes.layout.channels:
        return None
    if min(rows.min(), columns.min(), channels.min()) < 0:
        return None
    pixels = rows[:, None, None].astype(np.int64) * layout.width + columns[:, None]
    return np.asarray((pixels * layout.channels + channels).ravel())


def _view_whole(sizes: tuple[int, int, int], transposed: bool) -> Array:
    """Return the start and strides of all elements of a tensor in the order of its storage."""
    _, lines, columns = sizes
    strides = [lines * columns, columns, 1]
    if transposed:
        sizes, strides = (sizes[0], columns, lines), [strides[0], 1, columns]
    pairs = zip(sizes, strides, strict=True)
    return np.array([0, *(stride if size > 1 else 0 for size, stride in pairs)], np.int32)


def _fit_view(numbers: Array, sizes: tuple[int, int, int], transposed: bool) -> Array | None:
    """Return the start and strides of numbers, groups x lines x depth; None if they have none."""
    numbers = numbers.reshape(sizes)
    if transposed:
        numbers = numbers.swapaxes(1, 2)
    start = int(numbers[0, 0, 0])
    first = [
        numbers[tuple(int(axis == other) for other in range(3))] - start
        if numbers.shape[axis] > 1
        else 0
        for axis in range(3)
    ]
    groups, lines, depth = (
        stride * np.arange(size) for stride, size in zip(first, numbers.shape, strict=True)
    )
    fitted = start + groups[:, None, None] + lines[:, None] + depth
    if min(first) < 0 or not np.array_equal(fitted, numbers):
        return None
    return np.array([start, *first], np.int32)


def merge_groups(expression: Expression, layout: Layout) -> Expression | None:
    """Return the expression of groups that a movement turns into channels; None for other moves.

    Args:
        expression: A function of accumulators of a product, with a pending movement.
        layout: Layout after the movement.
    """
    root, pending = expression.root, expression.pending
    if not isinstance(root, MatMulRoot) or pending is None or not expression.uniform:
        return None
    groups, rows, columns = (root.fields[name] for name in ("groups", "rows", "columns"))
    if pending.fields["numbers"].size != groups * rows * columns:
        return None
    merged = np.arange(groups * rows * columns).reshape(groups, rows, columns).swapaxes(0, 1)
    sizes = layout.height * layout.width, layout.channels
    is_merged = sizes == (rows, groups * columns) and not layout.channels_first
    if not is_merged or not np.array_equal(pending.fields["numbers"].ravel(), merged.ravel()):
        return None
    sums = root.accumulators
    wide = replace(
        root,
        accumulators=Accumulators(
            np.tile(sums.scales, groups),
            IntegerRange(np.tile(sums.reach.lowest, groups), np.tile(sums.reach.highest, groups)),
            np.tile(sums.slack, groups),
        ),
        fields={**root.fields, "merges": 1},
    )
    return replace(expression, root=wide, layout=layout, pending=None)


def leads_to_merge(value: ir.Value) -> bool:
    """Return whether the only reader of a value moves its elements."""
    if value.is_graph_output() or len(value.uses()) != 1:
        return False
    ((reader, _),) = value.uses()
    return has_trait(reader, OpTrait.KEEPS_CODES) and reader.op_type == "Transpose"
