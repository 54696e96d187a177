# SPDX-License-Identifier: Apache-2.0
"""Epilogues that replay the float nodes after a sum, operation by operation.

A replay equals the graph if IEEE 754 leaves nothing open: its steps are the operations of the
nodes, in their order and on their constants, and all intermediate results are finite. Means and
batch normalizations are not defined by operations: their replay counts if it gives the bits of the
evaluated nodes on every accumulator that can occur.

With a rounding at the end, a replay gives codes. This is for functions that are not monotonic over
more accumulators than a table has entries. The last quantizer is monotonic: a rounding that has the
same index at all of its thresholds, and just before them, equals it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anybit.compiler.lower.requantization import Requantization, get_zero_index
from anybit.compiler.operators import is_monotone, split_quantizer
from anybit.compiler.partition.element_functions import (
    ElementFunction,
    NodeChain,
    Part,
)
from anybit.compiler.partition.expressions import AccumulatorRoot, Accumulators, IntegerRange
from anybit.compiler.program import program as p
from anybit.compiler.program.open_bits import has_open_bits
from anybit.compiler.program.reference import KEPT, apply_step, compute_result, round_to_index
from anybit.compiler.reason import UNSUPPORTED
from anybit.compiler.requantize.epilogue import (
    MOST_RISKS,
    find_risks_near_zero,
)
from anybit.compiler.requantize.replay_steps import (
    agree,
    is_defined_by_ieee,
    make_part_steps,
    replay_steps,
)
from anybit.compiler.requantize.thresholds import find_highest_index, find_thresholds
from anybit.onnx.graph.constants import Array, read_array
from anybit.onnx.quantizers.quantizer import get_declared_inputs
from anybit.ops.domain import Role
from anybit.quant_types.grids import TensorGrid

_MOST_EVALUATIONS = 2**24
"""Most results that are compared for an unproven replay, in all channels together."""

_SAMPLES = 2**17
_FEWEST_SAMPLES = 64
_BLOCK = 2**16

_KEEPING = (p.Operation.KEEP, *KEPT)


def replay_floats(
    function: ElementFunction, root: AccumulatorRoot, *, open_functions: bool = False
) -> p.Arithmetic | None:
    """Return the epilogue to float32 of a function; None if no replay equals it.

    Args:
        function: The function.
        root: The sum.
        open_functions: Whether functions count whose last bits ONNX leaves open.
    """
    steps = replay_steps(function.parts, root, open_functions=open_functions)
    if steps is None:
        return None
    epilogue = p.Arithmetic(root.accumulators.scales, steps)

    def same(points: Array) -> bool:
        x = root.accumulators.values(points)
        return agree(steps, x, function(x), compute_result(epilogue, points))

    is_open = has_open_bits(steps)
    return (
        epilogue if matches_graph(same, function.parts, epilogue, root, is_open=is_open) else None
    )


def matches_graph(
    same: Callable[[Array], bool],
    parts: Sequence[Part],
    replay: p.Arithmetic,
    root: AccumulatorRoot,
    *,
    is_open: bool = False,
) -> bool:
    """Return whether a replay equals the graph.

    Args:
        same: Whether both give the same at some accumulators.
        parts: The parts that are replayed.
        replay: The replay.
        root: The sum.
        is_open: Whether ONNX leaves the last bits of a part open.
    """
    reach = root.accumulators.reach
    count, channels = reach.longest, reach.lowest.size
    if is_proven(parts, replay, reach, is_open=is_open):
        # The proof does not cover errors in this code: a sample is compared all the same.
        count = min(count, max(_SAMPLES // channels, _FEWEST_SAMPLES))
    elif count * channels > _MOST_EVALUATIONS:
        return False
    return all(map(same, iterate_blocks(reach, count)))


def is_proven(
    parts: Sequence[Part], replay: p.Arithmetic, reach: IntegerRange, *, is_open: bool = False
) -> bool:
    """Return whether IEEE 754 leaves nothing open in a replay of parts, or only open functions."""
    defined = all(is_defined_by_ieee(part, open_functions=is_open) for part in parts)
    return defined and _stays_finite(replay, reach)


def propagate_bounds(replay: p.Arithmetic | p.Rounded, lowest: Array, highest: Array) -> Array:
    """Return bounds of the results for bounds of float32 sums, by interval arithmetic.

    Every step is monotonic in its operands, and so is rounding: the corners bound all results
    between them. NaN if an intermediate result is not finite.
    """
    with np.errstate(all="ignore"):
        y = np.stack([lowest, highest])
        kept = np.zeros_like(y)
        finite = np.isfinite(y).all(axis=0)
        for step in replay.steps:
            pairs = y[[0, 0, 1, 1]], kept[[0, 1, 0, 1]]
            y, kept = (
                np.stack([corners.min(axis=0), corners.max(axis=0)])
                for corners in apply_step(step, *pairs)
            )
            finite &= np.isfinite(y).all(axis=0)
        return np.where(finite, y, np.float32(np.nan))


def _stays_finite(replay: p.Arithmetic, reach: IntegerRange) -> bool:
    """Return whether all intermediate results are finite."""
    with np.errstate(all="ignore"):
        ends = np.stack([reach.lowest, reach.highest]).astype(np.float32) * replay.scales
    return bool(np.isfinite(propagate_bounds(replay, ends.min(axis=0), ends.max(axis=0))).all())


def iterate_blocks(reach: IntegerRange, count: int) -> Iterator[Array]:
    """Yield `count` accumulators per channel, both ends included, in blocks, points x channels."""
    length = reach.highest - reach.lowest
    size = max(1, _BLOCK // reach.lowest.size)
    for first in range(0, count, size):
        at = np.arange(first, min(first + size, count))[:, None]
        yield reach.lowest + length * at // max(count - 1, 1)


def guess_affine(
    function: ElementFunction, root: AccumulatorRoot, grid: TensorGrid
) -> p.Affine | None:
    """Return the arithmetic before a quantizer as one gain and one offset, in steps of its codes.

    With scales that are powers of two, it is what the graph computes, rounding by rounding.
    """
    gains = root.accumulators.scales.astype(np.float64)
    offsets = np.zeros_like(gains)
    for part in function.parts:
        steps = make_part_steps(part, root.channels, skip_quantizers=True)
        if any(step.operation in _KEEPING for step in steps or ()):
            return None
        for step in steps or ():
            with np.errstate(all="ignore"):
                gains, offsets = _apply_affine_step(step, gains, offsets)
        if steps is None:
            return None
    unit = grid.scale * grid.step
    with np.errstate(all="ignore"):
        return p.Affine(
            (gains / unit).astype(np.float32),
            (offsets / unit - grid.lowest / grid.step - get_zero_index(grid)).astype(np.float32),
            get_zero_index(grid),
        )


def _apply_affine_step(step: p.Step, gains: Array, offsets: Array) -> tuple[Array, Array]:
    """Return gain and offset after one more step; bounds do not change them."""
    operand = step.operands.astype(np.float64)
    match p.Operation(step.operation):
        case p.Operation.ADD:
            offsets = offsets + operand
        case p.Operation.SUBTRACT:
            offsets = offsets - operand
        case p.Operation.SUBTRACT_FROM:
            gains, offsets = -gains, operand - offsets
        case p.Operation.MULTIPLY:
            gains, offsets = gains * operand, offsets * operand
        case p.Operation.DIVIDE:
            gains, offsets = gains / operand, offsets / operand
    return gains, offsets


_LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True, eq=False)
class Replay:
    """An epilogue that replays a function and rounds.

    Attributes:
        epilogue: The epilogue.
        proven: Whether IEEE 754 leaves nothing open in it; else all results were compared.
    """

    epilogue: p.Rounded
    proven: bool


def requantize_by_replay(
    function: ElementFunction, root: AccumulatorRoot, grid: TensorGrid
) -> Requantization | None:
    """Return the replay of a function and its risks; None if no replay equals it."""
    replay = find_replay(function, root, grid)
    if replay is None:
        return None
    return find_risks_near_zero(replay.epilogue, function, grid.index, root.accumulators)


def find_replay(
    function: ElementFunction,
    root: AccumulatorRoot,
    grid: TensorGrid,
    stairs: p.Epilogue | None = None,
) -> Replay | None:
    """Return the replay of a function; None if no replay equals it.

    Where `stairs` are the thresholds of the function, and both are monotonic, they are equal if
    they are so on both sides of every threshold.
    """
    split = _split(function)
    steps = None if split is None else replay_steps(split[0], root)
    ending = None if split is None or steps is None else _find_ending(split[1], grid)
    if split is None or steps is None or ending is None:
        return None
    before = p.Arithmetic(root.accumulators.scales, steps)
    epilogue = p.Rounded(root.accumulators.scales, (*steps, *ending.steps), ending.shift)

    def same(points: Array) -> bool:
        expected = grid.index(function(root.accumulators.values(points)))
        got = round_to_index(compute_result(epilogue, points), epilogue.shift, grid.levels)
        return np.array_equal(expected, got)

    points = (
        _find_neighbors(stairs, root, grid)
        if function.monotone and _is_monotone(epilogue)
        else None
    )
    try:
        if points is not None:
            if not same(points):
                return None
        elif not matches_graph(same, split[0], before, root):
            return None
    except UNSUPPORTED:
        return None
    return Replay(epilogue, is_proven(split[0], before, root.accumulators.reach))


def _is_monotone(epilogue: p.Rounded) -> bool:
    """Return whether all steps are monotonic: those that read the kept value need not be."""
    return all(step.operation not in (p.Operation.KEEP, *KEPT) for step in epilogue.steps)


def _find_neighbors(
    stairs: p.Epilogue | None, root: AccumulatorRoot, grid: TensorGrid
) -> Array | None:
    """Return the accumulators on both sides of all thresholds, and the ends, per channel."""
    if not isinstance(stairs, p.Thresholds):
        return None
    reach = root.accumulators.reach
    thresholds = stairs.thresholds.reshape(-1, grid.levels - 1).T.astype(np.int64)
    both = np.concatenate([thresholds, thresholds - 1]) * stairs.directions
    ends = np.stack([reach.lowest, reach.highest]).astype(np.int64)
    return np.asarray(np.clip(np.concatenate([both, ends]), ends[0], ends[1]))


def add_all_risks(
    requantization: Requantization, replay: Replay | None, sums: Accumulators, levels: int
) -> Requantization:
    """Return a requantization with all accumulators at risk, or the note that there may be more.

    A function that is not monotonic may leave an index and come back to it between two
    accumulators, and between two float32 sums: only bounds of its steps tell.
    """
    if replay is None or not replay.proven:
        return replace(requantization, more_risks=True)
    risks: list[tuple[int, int]] = []
    for points in iterate_blocks(sums.reach, sums.reach.longest):
        bounds = propagate_bounds(replay.epilogue, *sums.bounds(points))
        lowest, highest = round_to_index(bounds, replay.epilogue.shift, levels)
        risky = (lowest != highest) | np.isnan(bounds).any(axis=0)
        rows, channels = np.nonzero(risky & (sums.slack > 0))
        risks += zip(channels.tolist(), points[rows, channels].tolist(), strict=True)
        if len(risks) > MOST_RISKS:
            break
    listed = tuple(sorted(set(risks)))
    return replace(requantization, risks=listed[:MOST_RISKS], more_risks=len(listed) > MOST_RISKS)


def _split(function: ElementFunction) -> tuple[tuple[Part, ...], ElementFunction] | None:
    """Split a function before its last quantizer; None if it has none."""
    if not function.parts or not isinstance(last := function.parts[-1], NodeChain):
        return None
    x, nodes = split_quantizer(last.nodes[-1])
    count = len(last.nodes) - len(nodes)
    if count < 0 or len(last.xs) != 1 or last.nodes[count:] != nodes or not is_monotone(nodes, x):
        return None
    before = (replace(last, nodes=last.nodes[:count], y=x),) if count else ()
    alone = replace(last, nodes=nodes, xs=(x,))
    return (*function.parts[:-1], *before), ElementFunction((alone,), monotone=True, uniform=True)


@dataclass(frozen=True)
class _Ending:
    """The steps from floats to numbers that are rounded and shifted only."""

    steps: tuple[p.Step, ...]
    shift: int

    def __call__(self, y: Array, levels: int) -> Array:
        with np.errstate(all="ignore"):
            for step in self.steps:
                y, _ = apply_step(step, y, y)
        return round_to_index(y, self.shift, levels)


def _find_ending(quantizer: ElementFunction, grid: TensorGrid) -> _Ending | None:
    """Return steps that equal a quantizer for all float32 numbers; None if none are found."""
    try:
        levels = find_highest_index(quantizer, grid.index, 1) + 1
        fields = find_thresholds(quantizer, grid.index, levels, 1)
    except UNSUPPORTED:
        return None
    if fields["directions"][0] < 0:
        return None
    thresholds = fields["thresholds"]
    near = np.concatenate([thresholds, np.nextafter(thresholds, np.float32(-np.inf))])
    points = np.clip(near, -_LARGEST, _LARGEST)
    expected = np.searchsorted(thresholds, points, side="right")
    lowest = int(np.searchsorted(thresholds, -_LARGEST, side="right"))
    for zero in (0.0, _get_zero_point(quantizer)):
        ending = _guess_ending(grid, zero, lowest, levels - 1)
        fits = abs(ending.shift) <= p.MOST_SHIFT
        if fits and np.array_equal(ending(points, grid.levels), expected):
            return ending
    return None


def _guess_ending(grid: TensorGrid, zero: float, lowest: int, highest: int) -> _Ending:
    """Return a division by the scale, a zero-point, and bounds other than those of the grid."""

    def step(operation: p.Operation, operand: float) -> p.Step:
        return p.Step(operation, np.array([operand], np.float32))

    shift = get_zero_index(grid) - round(zero)
    steps = [step(p.Operation.DIVIDE, grid.scale * grid.step)]
    if zero:
        steps.append(step(p.Operation.ADD, zero))
    if lowest:
        steps.append(step(p.Operation.MAXIMUM, lowest - shift))
    if highest < grid.levels - 1:
        steps.append(step(p.Operation.MINIMUM, highest - shift))
    return _Ending(tuple(steps), shift)


def _get_zero_point(quantizer: ElementFunction) -> float:
    (part,) = quantizer.parts
    assert isinstance(part, NodeChain), "it has been made of nodes"
    node = part.nodes[-1]
    for declared, value in zip(get_declared_inputs(node), node.inputs, strict=False):
        if declared.role is Role.ZERO_POINT and value is not None:
            return float(read_array(value).flat[0])
    return 0.0
