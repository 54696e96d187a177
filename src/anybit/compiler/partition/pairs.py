# SPDX-License-Identifier: Apache-2.0
"""Functions of two tensors of codes, element by element."""

from collections.abc import Sequence

import onnx_ir as ir

from anybit.compiler.operators import is_uniform
from anybit.compiler.partition.expressions import Expression, InputRoot, PairRoot, TensorRoot
from anybit.compiler.partition.layout import make_layout
from anybit.compiler.partition.values import Values
from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.op_traits import is_onnx_op

_MOST_PAIRS = 2**16
_LAST_AXIS = ("LayerNormalization", "MatMul")


def check_rows(pair: Sequence[ir.Value], values: Values) -> None:
    """Check that two values have the same number of rows.

    Raises:
        Unsupported: They may differ.
    """
    if len({values.rows(value) for value in pair}) > 1:
        raise Unsupported("the batch sizes of its two inputs may differ")


def express_pair(node: ir.Node, inputs: Sequence[Expression], values: Values) -> Expression | None:
    """Return a function of two tensors of codes; None if an input is not a function of codes.

    Args:
        node: The node.
        inputs: Its two inputs.
        values: The values of the walk. Instructions are added.

    Raises:
        Unsupported: Their sizes differ, or no table holds all pairs of codes.
    """
    functions = [_trace_codes(expression, values) for expression in inputs]
    traced = [function for function in functions if function is not None]
    if len(traced) != len(inputs):
        return None
    starts = tuple(start for start, _ in traced)
    check_rows(starts, values)
    y = node.outputs[0]
    axis = _choose_axis(inputs, y)
    layout = make_layout(values.sizes(y), axis)
    pair = [values.codes(value, axis) for value in starts]
    if not layout.rank == pair[0].layout.rank == pair[1].layout.rank:
        raise Unsupported("its two inputs differ in their sizes")
    pair = [values.broadcast(tensor, layout) for tensor in pair]
    if pair[0].grid.levels * pair[1].grid.levels > _MOST_PAIRS:
        raise Unsupported("its two inputs have too many codes")
    if pair[0].stage != pair[1].stage:
        raise Unsupported("float32 nodes lie between its two inputs: no region has both")
    nodes = (*(before for _, chain in traced for before in chain), node)
    same = all(map(is_uniform, nodes))
    return Expression(PairRoot(*pair), y, pair[0].layout, starts=starts, nodes=nodes, same=same)


def _choose_axis(inputs: Sequence[Expression], y: ir.Value) -> int:
    """Return the axis of the channels of a pair: inputs of a region can have any."""
    inner = [expression for expression in inputs if not isinstance(expression.root, InputRoot)]
    last = inputs[0].layout.rank - 1
    if not inner and any(is_onnx_op(reader, *_LAST_AXIS) for reader, _ in y.uses()):
        return last
    return (inner or inputs)[0].layout.axis


def _trace_codes(
    expression: Expression, values: Values
) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    """Return the codes that a value is a function of, and the nodes after these.

    Functions in float32 have instructions of their own, so that only those in float64 count.
    """
    value = expression.value
    if values.grid(value) is not None:
        return value, ()
    if value.dtype != ir.DataType.DOUBLE or expression.pending is not None:
        return None
    last = expression.quantized
    if last is not None and last.starts == expression.starts and values.grid(last.value):
        return last.value, expression.nodes[len(last.nodes) :]
    is_plain = isinstance(expression.root, TensorRoot | InputRoot) and not expression.before.parts
    if is_plain and len(expression.starts) == 1 and values.grid(expression.starts[0]):
        return expression.starts[0], expression.nodes
    return None
