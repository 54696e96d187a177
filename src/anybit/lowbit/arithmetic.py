# SPDX-License-Identifier: Apache-2.0
"""Float results of a region: the arithmetic behind a sum, replayed operation by operation.

A replay counts as the graph where IEEE 754 leaves nothing open: its steps are the operations of the
nodes, in their order and on their constants, and every number on the way is finite. A mean or a
batch normalization is not defined by operations: its replay is a guess, which counts if it gives
the bits of the evaluated nodes on every accumulator that there can be.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from anybit.lowbit import program as p
from anybit.lowbit.functions import Function, Part
from anybit.lowbit.operations import is_settled, of_part, steps_of
from anybit.lowbit.parts import Codes, SumRoot
from anybit.lowbit.reference import KEPT, after_step, result_of
from anybit.lowbit.staircases import Range
from anybit.onnx.graph.constants import Array

_MOST_EVALUATIONS = 2**24
"""So many results of a guess are compared, in all channels together."""

_SAMPLES = 2**17
_FEWEST_SAMPLES = 64
_BLOCK = 2**16

_KEEPING = (p.Operation.KEEP, *KEPT)


def arithmetic_of(function: Function, root: SumRoot) -> p.Arithmetic | None:
    """The tail that gives a float function of a sum; None if no replay is known to."""
    steps = steps_of(function.parts, root)
    if steps is None:
        return None
    tail = p.Arithmetic(root.sum.scales, steps)

    def same(points: Array) -> bool:
        wanted, got = function(root.sum.values(points)), result_of(tail, points)
        return np.array_equal(wanted, got, equal_nan=True)

    return tail if holds(same, function.parts, tail, root) else None


def holds(
    same: Callable[[Array], bool], parts: Sequence[Part], replay: p.Arithmetic, root: SumRoot
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
    return all(map(is_settled, parts)) and _stays_finite(replay, reach)


def bounds_of(replay: p.Arithmetic | p.Rounded, lowest: Array, highest: Array) -> Array:
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
    return bool(np.isfinite(bounds_of(replay, ends.min(axis=0), ends.max(axis=0))).all())


def blocks(reach: Range, count: int) -> Iterator[Array]:
    """So many accumulators of each channel, both ends among them, points x channels by blocks."""
    length = reach.highest - reach.lowest
    each = max(1, _BLOCK // reach.lowest.size)
    for first in range(0, count, each):
        at = np.arange(first, min(first + each, count))[:, None]
        yield reach.lowest + length * at // max(count - 1, 1)


def guessed(function: Function, root: SumRoot, codes: Codes) -> p.Affine | None:
    """What the arithmetic before a quantizer is as one gain and one offset, in steps of its codes.

    With scales that are powers of two it is what the graph computes, rounding by rounding.
    """
    gains = root.sum.scales.astype(np.float64)
    offsets = np.zeros_like(gains)
    for part in function.parts:
        steps = of_part(part, len(root.weights), quantizers=True)
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
