# SPDX-License-Identifier: Apache-2.0
"""Float results of a region: the arithmetic behind a sum, replayed operation by operation.

A replay counts as the graph where IEEE 754 leaves nothing open: its steps are the operations of the
nodes, in their order and on their constants, and every number on the way is finite. A mean or a
batch normalization is no single operation: its replay is a guess, which counts if it gives the bits
of the evaluated nodes on every accumulator that there can be.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from anybit.lowbit import program as p
from anybit.lowbit.functions import AddConstant, Function, Mean, Nodes, Part
from anybit.lowbit.parts import Codes, SumRoot
from anybit.lowbit.reference import KEPT, after_step, result_of
from anybit.lowbit.staircases import Range
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.passes.batch_norm_to_affine import affine_of, parameters_of
from anybit.onnx.quantizers.quantizer import inputs_of

_MOST_EVALUATIONS = 2**24
"""So many results of a guess are compared, in all channels together."""

_SAMPLES = 2**17
_FEWEST_SAMPLES = 64
_BLOCK = 2**16

_UNREAD = np.zeros(1, np.float32)
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


def steps_of(parts: Sequence[Part], root: SumRoot) -> tuple[p.Step, ...] | None:
    """The steps of some parts behind a sum; None if one is not among the operations."""
    steps: list[p.Step] = []
    for part in parts:
        found = _of_part(part, len(root.weights))
        if found is None:
            return None
        steps += found
    return tuple(map(_narrowed, steps))


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
    return all(map(_is_settled, parts)) and _stays_finite(replay, reach)


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


def _is_settled(part: Part) -> bool:
    """Whether each step of a part is one operation that IEEE 754 has."""
    match part:
        case AddConstant():
            return True
        case Mean():
            return part.is_sum
        case Nodes():
            return all(node.op_type in _RULES for node in part.nodes)
    return False


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
        steps = _of_part(part, len(root.weights), quantizers=True)
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


def _of_part(part: Part, channels: int, *, quantizers: bool = False) -> list[p.Step] | None:
    match part:
        case AddConstant():
            return [p.Step(p.Operation.ADD, part.bias)]
        case Mean() if part.is_sum:
            return []
        case Mean():
            return [p.Step(p.Operation.DIVIDE, np.array([part.count], np.float32))]
        case Nodes() if len(part.xs) == 1:
            return _of_nodes(part, channels, quantizers=quantizers)
    return None


def _of_nodes(part: Nodes, channels: int, *, quantizers: bool) -> list[p.Step] | None:
    """The steps of a chain of nodes; quantizers are passed over if that is wanted.

    A value that is read again behind its place in the chain is kept, but only one at a time.
    """
    x, kept, steps = part.xs[0], None, list[p.Step]()
    for at, node in enumerate(part.nodes):
        again = {value for later in part.nodes[at + 1 :] for value in later.inputs}
        if x is not kept and (x in again or list(node.inputs).count(x) > 1):
            if kept is not None and kept in (*again, *node.inputs):
                return None
            kept = x
            steps.append(p.Step(p.Operation.KEEP, _UNREAD))
        found = None
        if quantizers and inputs_of(node):
            found = list[p.Step]()
        elif kept is not None and not node.domain and set(node.inputs) == {x, kept}:
            found = _with_kept(node)
        elif x in node.inputs:
            found = _steps(node, x, channels)
        if found is None:
            return None
        steps += found
        x = node.outputs[0]
    return steps


def _with_kept(node: ir.Node) -> list[p.Step] | None:
    operation = {"Add": p.Operation.ADD_KEPT, "Mul": p.Operation.MULTIPLY_KEPT}.get(node.op_type)
    return None if operation is None else [p.Step(operation, _UNREAD)]


def _narrowed(step: p.Step) -> p.Step:
    """With one operand where all channels have the same."""
    bits = step.operands.view(np.uint32)
    same = np.all(bits == bits[0])
    return p.Step(int(step.operation), step.operands[:1] if same else step.operands)


def _steps(node: ir.Node, x: ir.Value, channels: int) -> list[p.Step] | None:
    """What a node does to x; None if that is not among the operations."""
    if node.domain:
        return None
    if node.op_type == "BatchNormalization":
        parameters = parameters_of(node)
        if parameters is None:
            return None
        factor, offset = affine_of(node, *parameters)
        return [p.Step(p.Operation.MULTIPLY, factor), p.Step(p.Operation.ADD, offset)]
    rule = _RULES.get(node.op_type)
    others = [value for value in node.inputs if value is not None and value is not x]
    operands = {value: _operand(value, channels) for value in others}
    # Once more as an operand, x is no constant; attributes have been inputs in other versions.
    twice = node.inputs.count(x) > 1 or (node.attributes and node.op_type != "Dropout")
    if rule is None or twice or any(operand is None for operand in operands.values()):
        return None
    return rule([None if value is None else operands.get(value) for value in node.inputs])


def _operand(value: ir.Value, channels: int) -> Array | None:
    """A constant as one number per channel, or as one."""
    if not is_constant(value):
        return None
    array = array_of(value)
    if array.dtype != np.float32 or array.size not in (1, channels):
        return None
    return np.asarray(array.reshape(-1))


def _binary(operation: p.Operation, swapped: p.Operation) -> Callable[..., list[p.Step] | None]:
    def rule(operands: Sequence[Array | None]) -> list[p.Step] | None:
        if len(operands) != 2:
            return None
        first, second = operands
        if second is not None:
            return [p.Step(operation, second)]
        return None if first is None else [p.Step(swapped, first)]

    return rule


def _clip(operands: Sequence[Array | None]) -> list[p.Step] | None:
    operations = (p.Operation.MAXIMUM, p.Operation.MINIMUM)
    if operands[0] is not None:
        return None
    return list(_given(operations, operands[1:]))


def _given(operations: Sequence[p.Operation], operands: Sequence[Array | None]) -> Iterator[p.Step]:
    for operation, operand in zip(operations, operands, strict=False):
        if operand is not None:
            yield p.Step(operation, operand)


_O = p.Operation
_RULES: dict[str, Callable[[Sequence[Array | None]], list[p.Step] | None]] = {
    "Add": _binary(_O.ADD, _O.ADD),
    "Sub": _binary(_O.SUBTRACT, _O.SUBTRACT_FROM),
    "Mul": _binary(_O.MULTIPLY, _O.MULTIPLY),
    "Div": lambda operands: (
        None
        if len(operands) != 2 or operands[1] is None
        else [p.Step(p.Operation.DIVIDE, operands[1])]
    ),
    "Relu": lambda operands: [p.Step(p.Operation.MAXIMUM, np.zeros(1, np.float32))],
    "Max": _binary(_O.MAXIMUM, _O.MAXIMUM),
    "Min": _binary(_O.MINIMUM, _O.MINIMUM),
    "Clip": _clip,
    "Identity": lambda operands: [],
    "Dropout": lambda operands: [],
}
