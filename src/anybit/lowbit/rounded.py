# SPDX-License-Identifier: Apache-2.0
"""Codes by arithmetic: what lies behind a sum is replayed, and its quantizer rounds the result.

For functions that bend over more accumulators than a table has entries. The replay of what lies
before the quantizer is as good as that of floats; the quantizer rises everywhere, so that one that
has the same index at all of its thresholds, and just before them, is the same.
"""

from dataclasses import dataclass, replace

import numpy as np

from anybit.lowbit import program as p
from anybit.lowbit.arithmetic import blocks, bounds_of, holds, is_proven
from anybit.lowbit.elementwise import quantizing
from anybit.lowbit.functions import Function, Nodes, Part, is_monotone
from anybit.lowbit.operations import steps_of
from anybit.lowbit.parts import Codes, SumRoot
from anybit.lowbit.reference import KEPT, after_step, result_of, rounded
from anybit.lowbit.tails import MOST_RISKS, Sum, Tabled, risks_near_zero
from anybit.lowbit.thresholds import highest_index, quantized
from anybit.lowbit.uncovered import Uncovered
from anybit.onnx.graph.constants import Array, array_of
from anybit.onnx.quantizers.quantizer import inputs_of
from anybit.ops.domain import Role

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


def rounded_of(function: Function, root: SumRoot, codes: Codes) -> Tabled | None:
    """The tail that replays a function, and its risks; None if none is known to give the same."""
    replay = replay_of(function, root, codes)
    if replay is None:
        return None
    return risks_near_zero(replay.tail, function, codes.index, root.sum)


def replay_of(
    function: Function, root: SumRoot, codes: Codes, stairs: p.Tail | None = None
) -> Replay | None:
    """The replay of a function; None if none is known to give the same.

    Where `stairs` are the thresholds of the function, and the steps of the replay rise or fall
    everywhere, as the function does, both are equal if they are so on both sides of each threshold.
    """
    split = _split(function)
    steps = None if split is None else steps_of(split[0], root)
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
        elif not holds(same, split[0], before, root):
            return None
    except Uncovered:
        return None
    return Replay(tail, is_proven(split[0], before, root.sum.reach))


def _is_monotone(tail: p.Rounded) -> bool:
    """Return whether each step rises or falls everywhere: all do but those that look back."""
    return all(step.operation not in (p.Operation.KEEP, *KEPT) for step in tail.steps)


def _beside(stairs: p.Tail | None, root: SumRoot, codes: Codes) -> Array | None:
    """Return the accumulators on both sides of each threshold, and the ends, of each channel."""
    if not isinstance(stairs, p.Thresholds):
        return None
    reach = root.sum.reach
    reached = stairs.thresholds.reshape(-1, codes.levels - 1).T.astype(np.int64)
    both = np.concatenate([reached, reached - 1]) * stairs.directions
    ends = np.stack([reach.lowest, reach.highest]).astype(np.int64)
    return np.asarray(np.clip(np.concatenate([both, ends]), ends[0], ends[1]))


def with_all_risks(found: Tabled, replay: Replay | None, of: Sum, levels: int) -> Tabled:
    """With all accumulators at risk, or the note that there may be more of them.

    A function that bends may leave an index and come back to it between two accumulators, and
    between two float32 sums: only bounds on its steps tell what it does there.
    """
    if replay is None or not replay.proven:
        return replace(found, more_risks=True)
    risks: list[tuple[int, int]] = []
    for points in blocks(of.reach, of.reach.longest):
        bounds = bounds_of(replay.tail, *of.around(points))
        lowest, highest = rounded(bounds, replay.tail.shift, levels)
        moved = (lowest != highest) | np.isnan(bounds).any(axis=0)
        rows, channels = np.nonzero(moved & (of.slack > 0))
        risks += zip(channels.tolist(), points[rows, channels].tolist(), strict=True)
        if len(risks) > MOST_RISKS:
            break
    listed = tuple(sorted(set(risks)))
    return replace(found, risks=listed[:MOST_RISKS], more_risks=len(listed) > MOST_RISKS)


def _split(function: Function) -> tuple[tuple[Part, ...], Function] | None:
    """What lies before the last quantizer, and that alone."""
    if not function.parts or not isinstance(last := function.parts[-1], Nodes):
        return None
    x, nodes = quantizing(last.nodes[-1])
    count = len(last.nodes) - len(nodes)
    if count < 0 or len(last.xs) != 1 or last.nodes[count:] != nodes or not is_monotone(nodes, x):
        return None
    before = (replace(last, nodes=last.nodes[:count], y=x),) if count else ()
    alone = replace(last, nodes=nodes, xs=(x,))
    return (*function.parts[:-1], *before), Function((alone,), monotone=True, uniform=True)


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


def _ending(quantizer: Function, codes: Codes) -> _Ending | None:
    """What gives the same indices as a quantizer, for all float32; None if nothing is known to."""
    try:
        levels = highest_index(quantizer, codes.index, 1) + 1
        fields = quantized(quantizer, codes.index, levels, 1)
    except Uncovered:
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


def _guess(codes: Codes, zero: float, lowest: int, highest: int) -> _Ending:
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


def _zero_point(quantizer: Function) -> float:
    (part,) = quantizer.parts
    assert isinstance(part, Nodes), "it has been made of nodes"
    node = part.nodes[-1]
    for declared, value in zip(inputs_of(node), node.inputs, strict=False):
        if declared.role is Role.ZERO_POINT and value is not None:
            return float(array_of(value).flat[0])
    return 0.0
