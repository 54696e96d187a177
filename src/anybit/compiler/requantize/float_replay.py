# SPDX-License-Identifier: Apache-2.0
"""Float results of a region: the arithmetic behind a sum, replayed operation by operation.

A replay counts as the graph where IEEE 754 leaves nothing open: its steps are the operations of the
nodes, in their order and on their constants, and every number on the way is finite. A mean or a
batch normalization is not defined by operations: its replay is a guess, which counts if it gives
the bits of the evaluated nodes on every accumulator that there can be.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anybit.compiler.operators import quantizing
from anybit.compiler.partition.element_functions import (
    ElementFunction,
    NodeChain,
    Part,
    is_monotone,
)
from anybit.compiler.partition.expressions import AccumulatorRoot, IntegerGrid
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import KEPT, after_step, result_of, rounded
from anybit.compiler.reason import Unsupported
from anybit.compiler.requantize.epilogue import (
    MOST_RISKS,
    Requantization,
    Sum,
    find_risks_near_zero,
)
from anybit.compiler.requantize.replay_steps import is_defined_by_ieee, replay_steps, steps_of_part
from anybit.compiler.requantize.step_function import Range
from anybit.compiler.requantize.thresholds import find_highest_index, find_thresholds
from anybit.onnx.graph.constants import Array, array_of
from anybit.onnx.quantizers.quantizer import inputs_of
from anybit.ops.domain import Role

_MOST_EVALUATIONS = 2**24
"""So many results of a guess are compared, in all channels together."""

_SAMPLES = 2**17
_FEWEST_SAMPLES = 64
_BLOCK = 2**16

_KEEPING = (p.Operation.KEEP, *KEPT)


def replay_floats(function: ElementFunction, root: AccumulatorRoot) -> p.Arithmetic | None:
    """The tail that gives a float function of a sum; None if no replay is known to."""
    steps = replay_steps(function.parts, root)
    if steps is None:
        return None
    tail = p.Arithmetic(root.sum.scales, steps)

    def same(points: Array) -> bool:
        wanted, got = function(root.sum.values(points)), result_of(tail, points)
        return np.array_equal(wanted, got, equal_nan=True)

    return tail if matches_graph(same, function.parts, tail, root) else None


def matches_graph(
    same: Callable[[Array], bool],
    parts: Sequence[Part],
    replay: p.Arithmetic,
    root: AccumulatorRoot,
) -> bool:
    """Whether a replay of parts may count as they do.

    Args:
        same: Whether both give the same at accumulators.
        parts: What is replayed.
        replay: The replay.
        root: The sum.
    """
    reach = root.sum.reach
    count, channels = reach.longest, reach.lowest.size
    if is_proven(parts, replay, reach):
        # A proof is right, what is written here need not be: a sample is compared all the same.
        count = min(count, max(_SAMPLES // channels, _FEWEST_SAMPLES))
    elif count * channels > _MOST_EVALUATIONS:
        return False
    return all(map(same, blocks(reach, count)))


def is_proven(parts: Sequence[Part], replay: p.Arithmetic, reach: Range) -> bool:
    """Whether IEEE 754 leaves nothing open in a replay of parts."""
    return all(map(is_defined_by_ieee, parts)) and _stays_finite(replay, reach)


def propagate_bounds(replay: p.Arithmetic | p.Rounded, lowest: Array, highest: Array) -> Array:
    """Between which two numbers results are, if float32 sums are between two.

    Every step rises or falls in what it is given, and so does rounding: the ends tell for what lies
    between them, all of them where a step is given two numbers. NaN if any number on the way is
    not finite.
    """
    with np.errstate(all="ignore"):
        y = np.stack([lowest, highest])
        kept = np.zeros_like(y)
        known = np.isfinite(y).all(axis=0)
        for step in replay.steps:
            pairs = y[[0, 0, 1, 1]], kept[[0, 1, 0, 1]]
            y, kept = (
                np.stack([each.min(axis=0), each.max(axis=0)]) for each in after_step(step, *pairs)
            )
            known &= np.isfinite(y).all(axis=0)
        return np.where(known, y, np.float32(np.nan))


def _stays_finite(replay: p.Arithmetic, reach: Range) -> bool:
    """Whether there is neither NaN nor infinity between the steps."""
    with np.errstate(all="ignore"):
        ends = np.stack([reach.lowest, reach.highest]).astype(np.float32) * replay.scales
    return bool(np.isfinite(propagate_bounds(replay, ends.min(axis=0), ends.max(axis=0))).all())


def blocks(reach: Range, count: int) -> Iterator[Array]:
    """So many accumulators of each channel, both ends among them, points x channels by blocks."""
    length = reach.highest - reach.lowest
    each = max(1, _BLOCK // reach.lowest.size)
    for first in range(0, count, each):
        at = np.arange(first, min(first + each, count))[:, None]
        yield reach.lowest + length * at // max(count - 1, 1)


def guess_affine(
    function: ElementFunction, root: AccumulatorRoot, codes: IntegerGrid
) -> p.Affine | None:
    """What the arithmetic before a quantizer is as one gain and one offset, in steps of its codes.

    With scales that are powers of two it is what the graph computes, rounding by rounding.
    """
    gains = root.sum.scales.astype(np.float64)
    offsets = np.zeros_like(gains)
    for part in function.parts:
        steps = steps_of_part(part, len(root.weights), quantizers=True)
        if any(step.operation in _KEEPING for step in steps or ()):
            return None
        for step in steps or ():
            with np.errstate(all="ignore"):
                gains, offsets = _after(step, gains, offsets)
        if steps is None:
            return None
    unit = codes.scale * codes.step
    with np.errstate(all="ignore"):
        return p.Affine(
            (gains / unit).astype(np.float32),
            (offsets / unit - codes.lowest / codes.step - codes.shift).astype(np.float32),
            codes.shift,
        )


def _after(step: p.Step, gains: Array, offsets: Array) -> tuple[Array, Array]:
    """Gain and offset behind one more step; functions that bend are passed over."""
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
    """A tail that replays a function and rounds.

    Attributes:
        tail: The tail.
        proven: Whether IEEE 754 leaves nothing open in it; else it has been compared.
    """

    tail: p.Rounded
    proven: bool


def requantize_by_replay(
    function: ElementFunction, root: AccumulatorRoot, codes: IntegerGrid
) -> Requantization | None:
    """The tail that replays a function, and its risks; None if none is known to give the same."""
    replay = find_replay(function, root, codes)
    if replay is None:
        return None
    return find_risks_near_zero(replay.tail, function, codes.index, root.sum)


def find_replay(
    function: ElementFunction,
    root: AccumulatorRoot,
    codes: IntegerGrid,
    stairs: p.Tail | None = None,
) -> Replay | None:
    """The replay of a function; None if none is known to give the same.

    Where `stairs` are the thresholds of the function, and the steps of the replay rise or fall
    everywhere, as the function does, both are equal if they are so on both sides of each threshold.
    """
    split = _split(function)
    steps = None if split is None else replay_steps(split[0], root)
    ending = None if split is None or steps is None else _ending(split[1], codes)
    if split is None or steps is None or ending is None:
        return None
    before = p.Arithmetic(root.sum.scales, steps)
    tail = p.Rounded(root.sum.scales, (*steps, *ending.steps), ending.shift)

    def same(points: Array) -> bool:
        wanted = codes.index(function(root.sum.values(points)))
        got = rounded(result_of(tail, points), tail.shift, codes.levels)
        return np.array_equal(wanted, got)

    points = _beside(stairs, root, codes) if function.monotone and _is_monotone(tail) else None
    try:
        if points is not None:
            if not same(points):
                return None
        elif not matches_graph(same, split[0], before, root):
            return None
    except Unsupported:
        return None
    return Replay(tail, is_proven(split[0], before, root.sum.reach))


def _is_monotone(tail: p.Rounded) -> bool:
    """Return whether each step rises or falls everywhere: all do but those that look back."""
    return all(step.operation not in (p.Operation.KEEP, *KEPT) for step in tail.steps)


def _beside(stairs: p.Tail | None, root: AccumulatorRoot, codes: IntegerGrid) -> Array | None:
    """Return the accumulators on both sides of each threshold, and the ends, of each channel."""
    if not isinstance(stairs, p.Thresholds):
        return None
    reach = root.sum.reach
    reached = stairs.thresholds.reshape(-1, codes.levels - 1).T.astype(np.int64)
    both = np.concatenate([reached, reached - 1]) * stairs.directions
    ends = np.stack([reach.lowest, reach.highest]).astype(np.int64)
    return np.asarray(np.clip(np.concatenate([both, ends]), ends[0], ends[1]))


def add_all_risks(
    found: Requantization, replay: Replay | None, of: Sum, levels: int
) -> Requantization:
    """With all accumulators at risk, or the note that there may be more of them.

    A function that bends may leave an index and come back to it between two accumulators, and
    between two float32 sums: only bounds on its steps tell what it does there.
    """
    if replay is None or not replay.proven:
        return replace(found, more_risks=True)
    risks: list[tuple[int, int]] = []
    for points in blocks(of.reach, of.reach.longest):
        bounds = propagate_bounds(replay.tail, *of.around(points))
        lowest, highest = rounded(bounds, replay.tail.shift, levels)
        moved = (lowest != highest) | np.isnan(bounds).any(axis=0)
        rows, channels = np.nonzero(moved & (of.slack > 0))
        risks += zip(channels.tolist(), points[rows, channels].tolist(), strict=True)
        if len(risks) > MOST_RISKS:
            break
    listed = tuple(sorted(set(risks)))
    return replace(found, risks=listed[:MOST_RISKS], more_risks=len(listed) > MOST_RISKS)


def _split(function: ElementFunction) -> tuple[tuple[Part, ...], ElementFunction] | None:
    """What lies before the last quantizer, and that alone."""
    if not function.parts or not isinstance(last := function.parts[-1], NodeChain):
        return None
    x, nodes = quantizing(last.nodes[-1])
    count = len(last.nodes) - len(nodes)
    if count < 0 or len(last.xs) != 1 or last.nodes[count:] != nodes or not is_monotone(nodes, x):
        return None
    before = (replace(last, nodes=last.nodes[:count], y=x),) if count else ()
    alone = replace(last, nodes=nodes, xs=(x,))
    return (*function.parts[:-1], *before), ElementFunction((alone,), monotone=True, uniform=True)


@dataclass(frozen=True)
class _Ending:
    """The steps from floats to numbers that only need to be rounded and shifted."""

    steps: tuple[p.Step, ...]
    shift: int

    def __call__(self, y: Array, levels: int) -> Array:
        with np.errstate(all="ignore"):
            for step in self.steps:
                y, _ = after_step(step, y, y)
        return rounded(y, self.shift, levels)


def _ending(quantizer: ElementFunction, codes: IntegerGrid) -> _Ending | None:
    """What gives the same indices as a quantizer, for all float32; None if nothing is known to."""
    try:
        levels = find_highest_index(quantizer, codes.index, 1) + 1
        fields = find_thresholds(quantizer, codes.index, levels, 1)
    except Unsupported:
        return None
    if fields["directions"][0] < 0:
        return None
    thresholds = fields["thresholds"]
    near = np.concatenate([thresholds, np.nextafter(thresholds, np.float32(-np.inf))])
    points = np.clip(near, -_LARGEST, _LARGEST)
    wanted = np.searchsorted(thresholds, points, side="right")
    lowest = int(np.searchsorted(thresholds, -_LARGEST, side="right"))
    for zero in (0.0, _zero_point(quantizer)):
        found = _guess(codes, zero, lowest, levels - 1)
        short = abs(found.shift) <= p.MOST_SHIFT
        if short and np.array_equal(found(points, codes.levels), wanted):
            return found
    return None


def _guess(codes: IntegerGrid, zero: float, lowest: int, highest: int) -> _Ending:
    """Division by the scale, a zero-point, and the ends where these are not those of the codes."""

    def step(operation: p.Operation, operand: float) -> p.Step:
        return p.Step(operation, np.array([operand], np.float32))

    shift = codes.shift - round(zero)
    steps = [step(p.Operation.DIVIDE, codes.scale * codes.step)]
    if zero:
        steps.append(step(p.Operation.ADD, zero))
    if lowest:
        steps.append(step(p.Operation.MAXIMUM, lowest - shift))
    if highest < codes.levels - 1:
        steps.append(step(p.Operation.MINIMUM, highest - shift))
    return _Ending(tuple(steps), shift)


def _zero_point(quantizer: ElementFunction) -> float:
    (part,) = quantizer.parts
    assert isinstance(part, NodeChain), "it has been made of nodes"
    node = part.nodes[-1]
    for declared, value in zip(inputs_of(node), node.inputs, strict=False):
        if declared.role is Role.ZERO_POINT and value is not None:
            return float(array_of(value).flat[0])
    return 0.0
