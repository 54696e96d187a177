# SPDX-License-Identifier: Apache-2.0
"""Which operations of IEEE 754 nodes are: the steps that replay them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.partition.element_functions import AddConstant, Mean, NodeChain, Part
from anybit.compiler.partition.expressions import AccumulatorRoot
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import after_step
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.passes.batch_norm_to_affine import affine_of, parameters_of
from anybit.onnx.quantizers.quantizer import inputs_of

_PROBES = 2**12
_UNREAD = np.zeros(1, np.float32)


def replay_steps(parts: Sequence[Part], root: AccumulatorRoot) -> tuple[p.Step, ...] | None:
    """The steps of some parts behind a sum; None if one is not among the operations."""
    steps: list[p.Step] = []
    for part in parts:
        found = steps_of_part(part, len(root.weights))
        if found is None:
            return None
        steps += found
    return tuple(map(_narrowed, steps))


def is_defined_by_ieee(part: Part) -> bool:
    """Whether each step of a part is one operation that IEEE 754 has."""
    match part:
        case AddConstant():
            return True
        case Mean():
            return part.is_sum
        case NodeChain():
            return all(node.op_type in _RULES or _rounds_each(part, node) for node in part.nodes)
    return False


def _rounds_each(part: NodeChain, node: ir.Node) -> bool:
    """Whether the runtime rounds every operation by which a function is defined, not two at once.

    That is asked between the bounds of the function, where it shows.
    """
    if node.op_type not in _DEFINED:
        return False
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None, "it has one input"
    alpha, beta = (step.operands[0] for step in _DEFINED[node.op_type](node)[:2])
    with np.errstate(all="ignore"):
        points = np.linspace(-beta / alpha, (1 - beta) / alpha, _PROBES, dtype=np.float32)[:, None]
        wanted, kept = points, points
        for step in _of_nodes(replace(part, nodes=(node,), xs=(x,)), 1, quantizers=False) or ():
            wanted, kept = after_step(step, wanted, kept)
    return np.array_equal(replace(part, nodes=(node,), xs=(x,), y=y)(points), wanted)


def steps_of_part(part: Part, channels: int, *, quantizers: bool = False) -> list[p.Step] | None:
    """The steps of a part; quantizers are passed over if that is wanted. None if there are none."""
    match part:
        case AddConstant():
            return [p.Step(p.Operation.ADD, part.bias)]
        case Mean() if part.is_sum:
            return []
        case Mean():
            return [p.Step(p.Operation.DIVIDE, np.array([part.count], np.float32))]
        case NodeChain() if len(part.xs) == 1:
            return _of_nodes(part, channels, quantizers=quantizers)
    return None


def _of_nodes(part: NodeChain, channels: int, *, quantizers: bool) -> list[p.Step] | None:
    """The steps of a chain of nodes; quantizers are passed over if that is wanted.

    A value that is read again behind its place in the chain is kept, but only one at a time.
    """
    x, kept, steps = part.xs[0], None, list[p.Step]()
    for at, node in enumerate(part.nodes):
        again = {value for later in part.nodes[at + 1 :] for value in later.inputs}
        twice = list(node.inputs).count(x) > 1 or node.op_type == "HardSwish"
        if x is not kept and (x in again or twice):
            if kept is not None and kept in (*again, *node.inputs):
                return None
            kept = x
            steps.append(p.Step(p.Operation.KEEP, _UNREAD))
        found = None
        if quantizers and inputs_of(node):
            found = list[p.Step]()
        elif kept is not None and len(node.inputs) == 2 and set(node.inputs) == {x, kept}:
            found = _with_kept(node)
        elif x in node.inputs:
            found = _steps(node, x, channels)
        if found is None:
            return None
        steps += found
        x = node.outputs[0]
    return steps


def _with_kept(node: ir.Node) -> list[p.Step] | None:
    if node.domain:
        return None
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
    if node.op_type in _DEFINED:
        return _DEFINED[node.op_type](node)
    rule = _RULES.get(node.op_type)
    others = [value for value in node.inputs if value is not None and value is not x]
    operands = {value: _operand(value, channels) for value in others}
    # Once more as an operand, x is not a constant; attributes have been inputs in other versions.
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


def _hard_sigmoid(alpha: float, beta: float) -> list[p.Step]:
    steps = (_O.MULTIPLY, alpha), (_O.ADD, beta), (_O.MINIMUM, 1), (_O.MAXIMUM, 0)
    return [p.Step(operation, np.array([operand], np.float32)) for operation, operand in steps]


_DEFINED: dict[str, Callable[[ir.Node], list[p.Step]]] = {
    "HardSigmoid": lambda node: _hard_sigmoid(
        attribute_of(node, "alpha", 0.2), attribute_of(node, "beta", 0.5)
    ),
    "HardSwish": lambda node: [
        *_hard_sigmoid(1 / 6, 0.5),
        p.Step(_O.MULTIPLY_KEPT, _UNREAD),
    ],
}
"""Functions that the standard defines by operations; the first two multiply and add."""

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
