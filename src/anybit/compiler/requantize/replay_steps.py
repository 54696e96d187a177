# SPDX-License-Identifier: Apache-2.0
"""Float nodes as steps of IEEE 754 operations, which replay them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.partition.element_functions import AddConstant, Mean, NodeChain, Part
from anybit.compiler.partition.expressions import AccumulatorRoot
from anybit.compiler.program import program as p
from anybit.compiler.program.open_bits import OPEN_OPERATORS, has_open_bits
from anybit.compiler.program.reference import apply_step, apply_steps
from anybit.compiler.requantize.gelu_chains import Gelu, find_gelu, split_gelus
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.require import require_input
from anybit.onnx.passes.batch_norm_to_affine import compute_affine, read_parameters
from anybit.onnx.quantizers.quantizer import get_declared_inputs

_PROBES = 2**12
_SAMPLE = np.sort(np.concatenate([s * np.geomspace(1e-6, 1e6, 32) for s in (-1, 1)])).astype(
    np.float32
)
_UNREAD = np.zeros(1, np.float32)
_CLOSE = 1e-6
"""Largest error of open functions, relative to their argument and result. That of a sigmoid in ONNX
Runtime is absolute below -18."""


def replay_steps(
    parts: Sequence[Part], root: AccumulatorRoot, *, open_functions: bool = False
) -> tuple[p.Step, ...] | None:
    """Return the steps of the parts after a sum; None if a part is not made of operations.

    A GELU is none: a layer with exact sums keeps its guarantee.

    Args:
        parts: The parts.
        root: The sum.
        open_functions: Whether functions count whose last bits ONNX leaves open.
    """
    steps: list[p.Step] = []
    for part in parts:
        node_steps = make_part_steps(part, root.channels, open_functions=open_functions)
        if node_steps is None or _has_gelu(part):
            return None
        steps += node_steps
    return tuple(map(_narrow_operands, steps))


def _has_gelu(part: Part) -> bool:
    pieces = split_gelus(part.nodes, part.xs[0]) if isinstance(part, NodeChain) else []
    return any(find_gelu(nodes, x) is not None for x, nodes in pieces)


def find_float_steps(
    chain: NodeChain, channels: int, *, open_functions: bool = False
) -> tuple[p.Step, ...] | None:
    """Return the steps of nodes on float32; None if they are not IEEE 754 operations.

    Args:
        chain: The nodes.
        channels: Number of channels.
        open_functions: Whether functions count whose last bits ONNX leaves open.
    """
    if not is_defined_by_ieee(chain, open_functions=open_functions):
        return None
    steps = make_part_steps(chain, channels, open_functions=open_functions)
    if steps is None:
        return None
    # The proof does not cover errors in this code: a sample is compared all the same.
    points = np.repeat(_SAMPLE[:, None], channels, axis=1)
    with np.errstate(all="ignore"):
        y = apply_steps(steps, points)
    same = agree(steps, points, chain(points), y)
    return tuple(map(_narrow_operands, steps)) if same else None


def agree(steps: Sequence[p.Step], x: Array, expected: Array, y: Array) -> bool:
    """Return whether steps from x give the expected results, up to bits that ONNX leaves open."""
    if not has_open_bits(steps):
        return np.array_equal(expected, y, equal_nan=True)
    with np.errstate(all="ignore"):
        close = np.abs(y - expected) <= _CLOSE * (np.abs(expected) + np.abs(x) + 1)
    return bool(np.all(close | (np.isnan(y) & np.isnan(expected))))


def is_defined_by_ieee(part: Part, *, open_functions: bool = False) -> bool:
    """Return whether every step of a part is one IEEE 754 operation, or perhaps open."""
    match part:
        case AddConstant():
            return True
        case Mean():
            return part.is_sum
        case NodeChain():
            return all(
                node.op_type in _RULES
                or (open_functions and node.op_type in OPEN_OPERATORS)
                or _rounds_every_step(part, node)
                for node in part.nodes
            )
    return False


def _rounds_every_step(part: NodeChain, node: ir.Node) -> bool:
    """Return whether the runtime rounds after every operation that defines a function.

    It may fuse two. That shows between the bounds of the function, where it is evaluated.
    """
    if node.op_type not in _DEFINED:
        return False
    x, (y,) = require_input(node), node.outputs
    alpha, beta = (step.operands[0] for step in _DEFINED[node.op_type](node)[:2])
    with np.errstate(all="ignore"):
        points = np.linspace(-beta / alpha, (1 - beta) / alpha, _PROBES, dtype=np.float32)[:, None]
        expected, kept = points, points
        for step in (
            _make_chain_steps(replace(part, nodes=(node,), xs=(x,)), 1, skip_quantizers=False) or ()
        ):
            expected, kept = apply_step(step, expected, kept)
    return np.array_equal(replace(part, nodes=(node,), xs=(x,), y=y)(points), expected)


def make_part_steps(
    part: Part, channels: int, *, skip_quantizers: bool = False, open_functions: bool = False
) -> list[p.Step] | None:
    """Return the steps of a part, perhaps without quantizers; None if it has none."""
    match part:
        case AddConstant():
            return [p.Step(p.Operation.ADD, part.bias)]
        case Mean() if part.is_sum:
            return []
        case Mean():
            return [p.Step(p.Operation.DIVIDE, np.array([part.count], np.float32))]
        case NodeChain() if len(part.xs) == 1:
            steps = _make_chain_steps(part, channels, skip_quantizers=skip_quantizers)
            return None if has_open_bits(steps or ()) and not open_functions else steps
    return None


def _make_chain_steps(
    part: NodeChain, channels: int, *, skip_quantizers: bool
) -> list[p.Step] | None:
    """Return the steps of a chain of nodes, without quantizers if they are to be skipped.

    A value that later nodes read again is kept, but only one at a time.
    """
    kept, steps = None, list[p.Step]()
    pieces = split_gelus(part.nodes, part.xs[0])
    for at, (x, nodes) in enumerate(pieces):
        node, later_nodes = nodes[0], [node for _, more in pieces[at + 1 :] for node in more]
        later_inputs = {value for later in later_nodes for value in later.inputs}
        gelu = find_gelu(nodes, x)
        twice = gelu == Gelu.TANH if gelu is not None else _reads_twice(node, x)
        if x is not kept and (x in later_inputs or twice):
            if kept is not None and kept in (*later_inputs, *node.inputs):
                return None
            kept = x
            steps.append(p.Step(p.Operation.KEEP, _UNREAD))
        node_steps = None
        if gelu is not None:
            node_steps = gelu.make_steps()
        elif skip_quantizers and get_declared_inputs(node):
            node_steps = list[p.Step]()
        elif kept is not None and len(node.inputs) == 2 and set(node.inputs) == {x, kept}:
            node_steps = _make_kept_steps(node)
        elif x in node.inputs:
            node_steps = _make_node_steps(node, x, channels)
        if node_steps is None:
            return None
        steps += node_steps
    return steps


def _reads_twice(node: ir.Node, x: ir.Value) -> bool:
    return list(node.inputs).count(x) > 1 or node.op_type == "HardSwish"


def _make_kept_steps(node: ir.Node) -> list[p.Step] | None:
    if node.domain:
        return None
    operation = {"Add": p.Operation.ADD_KEPT, "Mul": p.Operation.MULTIPLY_KEPT}.get(node.op_type)
    return None if operation is None else [p.Step(operation, _UNREAD)]


def _narrow_operands(step: p.Step) -> p.Step:
    """Return a step with one operand if all channels have the same one."""
    bits = step.operands.view(np.uint32)
    same = np.all(bits == bits[0])
    return p.Step(int(step.operation), step.operands[:1] if same else step.operands)


def _make_node_steps(node: ir.Node, x: ir.Value, channels: int) -> list[p.Step] | None:
    """Return the steps of a node from x; None if it is not made of operations."""
    if node.domain:
        return None
    if node.op_type == "BatchNormalization":
        parameters = read_parameters(node)
        if parameters is None:
            return None
        factor, offset = compute_affine(node, *parameters)
        return [p.Step(p.Operation.MULTIPLY, factor), p.Step(p.Operation.ADD, offset)]
    if node.op_type in _DEFINED:
        return _DEFINED[node.op_type](node)
    if node.op_type == "Sigmoid":
        return [p.Step(p.Operation.SIGMOID, _UNREAD)]
    rule = _RULES.get(node.op_type)
    others = [value for value in node.inputs if value is not None and value is not x]
    operands = {value: _read_operand(value, channels) for value in others}
    # x as a second operand is not constant. Attributes are inputs in other versions.
    twice = node.inputs.count(x) > 1 or (node.attributes and node.op_type != "Dropout")
    if rule is None or twice or any(operand is None for operand in operands.values()):
        return None
    return rule([None if value is None else operands.get(value) for value in node.inputs])


def _read_operand(value: ir.Value, channels: int) -> Array | None:
    """Return a constant as one number, or as one per channel; None for others."""
    if not is_constant(value):
        return None
    array = read_array(value)
    if array.dtype != np.float32 or array.size not in (1, channels):
        return None
    return np.asarray(array.reshape(-1))


def _make_binary_rule(
    operation: p.Operation, swapped: p.Operation
) -> Callable[..., list[p.Step] | None]:
    def rule(operands: Sequence[Array | None]) -> list[p.Step] | None:
        if len(operands) != 2:
            return None
        first, second = operands
        if second is not None:
            return [p.Step(operation, second)]
        return None if first is None else [p.Step(swapped, first)]

    return rule


def _make_clip_steps(operands: Sequence[Array | None]) -> list[p.Step] | None:
    operations = (p.Operation.MAXIMUM, p.Operation.MINIMUM)
    if operands[0] is not None:
        return None
    return list(_make_present_steps(operations, operands[1:]))


def _make_present_steps(
    operations: Sequence[p.Operation], operands: Sequence[Array | None]
) -> Iterator[p.Step]:
    for operation, operand in zip(operations, operands, strict=False):
        if operand is not None:
            yield p.Step(operation, operand)


_O = p.Operation


def _make_hard_sigmoid_steps(alpha: float, beta: float) -> list[p.Step]:
    steps = (_O.MULTIPLY, alpha), (_O.ADD, beta), (_O.MINIMUM, 1), (_O.MAXIMUM, 0)
    return [p.Step(operation, np.array([operand], np.float32)) for operation, operand in steps]


_DEFINED: dict[str, Callable[[ir.Node], list[p.Step]]] = {
    "HardSigmoid": lambda node: _make_hard_sigmoid_steps(
        get_attribute(node, "alpha", 0.2), get_attribute(node, "beta", 0.5)
    ),
    "HardSwish": lambda node: [
        *_make_hard_sigmoid_steps(1 / 6, 0.5),
        p.Step(_O.MULTIPLY_KEPT, _UNREAD),
    ],
}
"""Functions that ONNX defines by operations; the first two of these multiply and add."""

_RULES: dict[str, Callable[[Sequence[Array | None]], list[p.Step] | None]] = {
    "Add": _make_binary_rule(_O.ADD, _O.ADD),
    "Sub": _make_binary_rule(_O.SUBTRACT, _O.SUBTRACT_FROM),
    "Mul": _make_binary_rule(_O.MULTIPLY, _O.MULTIPLY),
    "Div": lambda operands: (
        None
        if len(operands) != 2 or operands[1] is None
        else [p.Step(p.Operation.DIVIDE, operands[1])]
    ),
    "Relu": lambda operands: [p.Step(p.Operation.MAXIMUM, np.zeros(1, np.float32))],
    "Max": _make_binary_rule(_O.MAXIMUM, _O.MAXIMUM),
    "Min": _make_binary_rule(_O.MINIMUM, _O.MINIMUM),
    "Clip": _make_clip_steps,
    "Identity": lambda operands: [],
    "Dropout": lambda operands: [],
}
