# SPDX-License-Identifier: Apache-2.0
"""Float results of a region: the arithmetic behind a sum, replayed operation by operation.

A replay is a guess that is tried out. It counts if it gives the bits of the evaluated nodes on
every accumulator, or, where these are too many, on a dense sample with both ends.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from anybit.lowbit import program as p
from anybit.lowbit.functions import AddConstant, Function, Mean, Nodes, Part
from anybit.lowbit.parts import Codes, SumRoot
from anybit.lowbit.reference import result_of
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.passes.batch_norm_to_affine import affine_of, parameters_of
from anybit.onnx.quantizers.quantizer import inputs_of

_MOST_POINTS = 2**21


def arithmetic_of(function: Function, root: SumRoot) -> p.Arithmetic | None:
    """The tail that gives a float function of a sum; None if no replay is known, or it differs."""
    steps: list[p.Step] = []
    for part in function.parts:
        found = _of_part(part, len(root.weights))
        if found is None:
            return None
        steps += found
    tail = p.Arithmetic(root.sum.scales, tuple(map(_narrowed, steps)))
    points = _points(root)
    wanted, got = function(root.sum.values(points)), result_of(tail, points)
    return tail if np.array_equal(wanted, got, equal_nan=True) else None


def guessed(function: Function, root: SumRoot, codes: Codes) -> p.Affine | None:
    """What the arithmetic before a quantizer is as one gain and one offset, in steps of its codes.

    With scales that are powers of two it is what the graph computes, rounding by rounding.
    """
    gains = root.sum.scales.astype(np.float64)
    offsets = np.zeros_like(gains)
    for part in function.parts:
        steps = _of_part(part, len(root.weights), quantizers=True)
        for step in steps or ():
            with np.errstate(all="ignore"):
                gains, offsets = _after(step, gains, offsets)
        if steps is None:
            return None
    unit = codes.scale * codes.step
    with np.errstate(all="ignore"):
        return p.Affine(
            (gains / unit).astype(np.float32),
            (offsets / unit - codes.lowest / codes.step).astype(np.float32),
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
    """The steps of a chain of nodes; quantizers are passed over if that is wanted."""
    x, steps = part.xs[0], []
    for node in part.nodes:
        passed = quantizers and bool(inputs_of(node))
        found = [] if passed else _steps(node, x, channels) if x in node.inputs else None
        if found is None:
            return None
        steps += found
        x = node.outputs[0]
    return steps


def _points(root: SumRoot) -> Array:
    """Accumulators to try, points x channels."""
    reach = root.sum.reach
    count = min(reach.longest, max(_MOST_POINTS // reach.lowest.size, 64))
    share = np.linspace(0, 1, count)[:, None]
    return np.asarray(
        reach.lowest + np.rint(share * (reach.highest - reach.lowest)).astype(np.int64)
    )


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
    operands = [None if value is x else _operand(value, channels) for value in node.inputs]
    rule = _RULES.get(node.op_type)
    return None if rule is None else rule(operands)


def _operand(value: ir.Value | None, channels: int) -> Array | None:
    """A constant as one number per channel, or as one."""
    if value is None or not is_constant(value):
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


def _clip(operands: Sequence[Array | None]) -> list[p.Step]:
    operations = (p.Operation.MAXIMUM, p.Operation.MINIMUM)
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
