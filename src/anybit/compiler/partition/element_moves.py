# SPDX-License-Identifier: Apache-2.0
"""Moves of single elements as instructions: a Gather, or changes of the layout around one."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from anybit.compiler.partition.expressions import IntegerTensor, PlannedInstruction
from anybit.compiler.partition.layout import Layout
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.constants import Array
from anybit.quant_types.grids import TensorGrid


def plan_moves(
    source: IntegerTensor, target: IntegerTensor, numbers: Array
) -> list[PlannedInstruction]:
    """Return the instructions that move elements from a tensor to another one.

    Args:
        source: The tensor.
        target: Another one of the same grid.
        numbers: For each element of the target the number of an element of the source, or -1 for a
            zero; both in the order of the graph.

    Raises:
        Unsupported: There is a zero, which is not a code.
    """
    fill = find_zero(source.grid) if (numbers < 0).any() else 0
    lines = _separate_axes(numbers, source.layout, target.layout)
    if lines is not None:
        return [plan_gather(source, target, fill, lines)]
    runs = _find_longest_runs(numbers, source.layout, target.layout)
    return list(_move_runs(source, target, fill, runs))


def plan_gather(
    source: IntegerTensor, target: IntegerTensor, fill: int, indices: dict[str, Array]
) -> PlannedInstruction:
    """Return a Gather of all channels of its target."""
    fields = {**indices, "first_channel": 0, "fill": fill}
    return PlannedInstruction(p.Gather, (source,), target, fields)


def find_zero(grid: TensorGrid) -> int:
    """Return the index of the code 0.

    Raises:
        Unsupported: It is not a code.
    """
    zero, rest = divmod(-grid.lowest, grid.step)
    if rest or not 0 <= zero < grid.levels:
        raise Unsupported("it pads with 0, which is not a code of its input")
    return zero


def _separate_axes(numbers: Array, source: Layout, target: Layout) -> dict[str, Array] | None:
    """Split numbers of elements into indices of rows, of columns and of channels.

    The result is None if an index depends on more than its own axis.
    """
    numbers = _order_as_stored(numbers, target)
    numbers = numbers.reshape(target.height, target.width, target.channels)
    if source.channels_first:
        channel, position = np.divmod(numbers, source.height * source.width)
        row, column = np.divmod(position, source.width)
    else:
        position, channel = np.divmod(numbers, source.channels)
        row, column = np.divmod(position, source.width)
    missing = numbers < 0
    lines = []
    for axis, index in enumerate((row, column, channel)):
        others = tuple(other for other in range(3) if other != axis)
        filled = np.where(missing, -1, index).max(axis=others)
        lines.append(np.asarray(filled, np.int32))
    rows, columns, channels = lines
    whole = np.ix_(rows, columns, channels)
    empty = (whole[0] < 0) | (whole[1] < 0) | (whole[2] < 0)
    fits = all(
        np.array_equal(np.where(missing, 0, index), np.where(empty, 0, line))
        for index, line in zip((row, column, channel), np.broadcast_arrays(*whole), strict=True)
    )
    if not fits or not np.array_equal(missing, empty):
        return None
    return {"rows": rows, "columns": columns, "channels": channels}


@dataclass(frozen=True, eq=False)
class _Runs:
    """A move of runs of elements that lie side by side in both tensors.

    Attributes:
        length: Elements of a run.
        sources: The run of the source for each run of the target; -1 for zeros.
        before, after: Orders of the channels of the source before the move, and of those of the
            target after it; None where it keeps them.
    """

    length: int
    sources: Array
    before: Array | None = None
    after: Array | None = None


def _find_longest_runs(numbers: Array, source: Layout, target: Layout) -> _Runs:
    """Return the move with the longest runs; another order of the channels may lengthen them."""
    count = source.height * source.width * source.channels
    places = np.empty(count, np.int64)
    places[_order_as_stored(np.arange(count), source)] = np.arange(count)
    numbers = _order_as_stored(numbers, target)
    sources = np.where(numbers < 0, -1, places[numbers])
    best = _make_runs(sources, count)
    position, channel = np.divmod(sources, source.channels)
    order, first = np.unique(channel[sources >= 0], return_index=True)
    if len(order) == source.channels:
        before = order[np.argsort(first)]
        permuted = position * source.channels + np.argsort(before)[channel]
        runs = _make_runs(np.where(sources < 0, -1, permuted), count)
        if runs.length > best.length:
            best = replace(runs, before=before)
    by_pixel = sources.reshape(-1, target.channels)
    after = np.argsort(by_pixel[0], kind="stable")
    runs = _make_runs(by_pixel[:, after].ravel(), count)
    return replace(runs, after=np.argsort(after)) if runs.length > best.length else best


def _make_runs(sources: Array, count: int) -> _Runs:
    follows = np.where(sources[1:] < 0, sources[:-1] < 0, sources[1:] == sources[:-1] + 1)
    follows &= (sources[1:] < 0) == (sources[:-1] < 0)
    starts = np.append(0, np.flatnonzero(~follows) + 1)
    filled = np.maximum(sources[starts], 0)
    length = math.gcd(count, len(sources), *starts.tolist(), *filled.tolist())
    first = sources[::length]
    return _Runs(length, np.where(first < 0, -1, first // length))


def _move_runs(
    source: IntegerTensor, target: IntegerTensor, fill: int, runs: _Runs
) -> Iterator[PlannedInstruction]:
    if runs.before is not None:
        permuted = replace(source, identity=object())
        yield plan_gather(source, permuted, fill, _permute_channels(source.layout, runs.before))
        source = permuted
    layout = source.layout
    count = layout.height * layout.width * layout.channels // runs.length
    flat = replace(source, layout=_make_line(count, runs.length), identity=object())
    yield _keep_order(source, flat)
    moved = replace(target, layout=_make_line(len(runs.sources), runs.length), identity=object())
    indices = {**_permute_channels(moved.layout, np.arange(runs.length)), "columns": runs.sources}
    yield plan_gather(flat, moved, fill, {key: _to_int32(line) for key, line in indices.items()})
    if runs.after is None:
        yield _keep_order(moved, target)
        return
    permuted = replace(target, identity=object())
    yield _keep_order(moved, permuted)
    yield plan_gather(permuted, target, fill, _permute_channels(target.layout, runs.after))


def _keep_order(source: IntegerTensor, target: IntegerTensor) -> PlannedInstruction:
    """Return a Reshape in the order in which tensors are stored."""
    fields = {"source_channels_first": 0, "target_channels_first": 0}
    return PlannedInstruction(p.Reshape, (source,), target, fields)


def _make_line(pixels: int, channels: int) -> Layout:
    return Layout(3, 2, 1, pixels, channels)


def _permute_channels(layout: Layout, channels: Array) -> dict[str, Array]:
    rows, columns = np.arange(layout.height), np.arange(layout.width)
    lines = {"rows": rows, "columns": columns, "channels": channels}
    return {key: _to_int32(line) for key, line in lines.items()}


def _to_int32(line: Array) -> Array:
    return np.asarray(line, np.int32)


def _order_as_stored(elements: Array, layout: Layout) -> Array:
    """Return elements in the order height, width, channels."""
    if layout.channels_first:
        elements = elements.reshape(layout.channels, layout.height, layout.width)
        elements = elements.transpose(1, 2, 0)
    return elements.ravel()
