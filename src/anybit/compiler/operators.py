# SPDX-License-Identifier: Apache-2.0
"""Operators as the compiler sees them: elementwise, data movement, quantizers, monotonicity."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.op_traits import (
    Monotonicity,
    OpTrait,
    get_monotonicity,
    has_trait,
    is_identity,
    is_onnx_op,
)
from anybit.onnx.graph.reductions import get_reduced_axes
from anybit.onnx.graph.require import require_input
from anybit.onnx.operators.multi_threshold import (
    find_channel_axis,
    is_increasing,
    is_multi_threshold,
)
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.onnx.quantizers.quantizer import get_declared_inputs
from anybit.ops.domain import Role

_PLACES = ("half_pixel", "pytorch_half_pixel", "asymmetric")
_FACTORS = (1, 2, 4)
_IMAGE_RANK = 4
_MATRIX = 2
_FIRST_SOFTMAX_OF_AN_AXIS = 13
"""The opset from which a Softmax has one axis."""


def is_matrix_product(node: ir.Node) -> bool:
    """Return whether a node is a MatMul, of floats or of codes."""
    return is_onnx_op(node, "MatMul", "MatMulInteger")


def get_varying_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the distinct inputs that are not constant."""
    return list(dict.fromkeys(v for v in node.inputs if v is not None and not is_constant(v)))


def split_quantizer(node: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """Return the float input and the nodes of a quantizer; two nodes have integers between."""
    nodes: tuple[ir.Node, ...] = (node,)
    while (x := require_input(nodes[0])).dtype != ir.DataType.FLOAT:
        producer = x.producer()
        if producer is None:
            break
        nodes = (producer, *nodes)
    return x, nodes


def is_quantizer(node: ir.Node) -> bool:
    """Return whether a node gives quantized floats: the last one of a quantizer does."""
    operator = find_operator(node)
    has_grid = operator is not None and operator.grid is not None
    return is_dequantize(node) or has_grid or is_multi_threshold(node)


def find_constant_axes(node: ir.Node, rank: int, opset: int) -> set[int] | None:
    """Return the axes along which constants of an elementwise node vary; None for other nodes."""
    if len(node.outputs) != 1 or not get_varying_inputs(node):
        return None
    if is_quantize(node) or is_dequantize(node):
        return _find_axes_of_linear(node, rank)
    if is_multi_threshold(node):
        return _find_axes_of_thresholds(node)
    if node.domain:
        operator = find_operator(node)
        if operator is not None and operator.block_axis is not None:
            return None  # elements depend on their neighbors
        gives_floats = operator is not None and operator.result_dtype is None
        is_unary = get_varying_inputs(node) == [node.inputs[0]]
        return _find_axes_of_broadcast(node, rank) if gives_floats and is_unary else None
    if node.op_type == "BatchNormalization":
        is_affine = all(value is not None and is_constant(value) for value in node.inputs[1:])
        return {1} if is_affine and not get_attribute(node, "training_mode", 0) else None
    if has_trait(node, OpTrait.ELEMENTWISE | OpTrait.RECTIFIER, opset) or is_identity(node, opset):
        return _find_axes_of_broadcast(node, rank)
    return None


def _find_axes_of_linear(node: ir.Node, rank: int) -> set[int] | None:
    if get_varying_inputs(node) != [node.inputs[0]] or get_attribute(node, "block_size", 0):
        return None
    sizes = {read_array(value).size for value in node.inputs[1:] if value is not None}
    return set() if sizes <= {1} else {get_attribute(node, "axis", 1) % rank}


def _find_axes_of_thresholds(node: ir.Node) -> set[int] | None:
    try:
        axis = find_channel_axis(node)
    except ModelError:  # reported when the model runs
        return None
    return set() if axis is None else {axis}


def _find_axes_of_broadcast(node: ir.Node, rank: int) -> set[int] | None:
    axes: set[int] = set()
    for value in node.inputs:
        if value is None or not is_constant(value) or value.const_value is None:
            continue
        shape = value.const_value.shape.numpy()
        if len(shape) > rank:
            return None
        axes |= {rank - len(shape) + axis for axis, size in enumerate(shape) if size != 1}
    return axes


def is_uniform(node: ir.Node) -> bool:
    """Return whether the constants of an elementwise node are the same for all channels."""
    constants = [value for value in node.inputs if value is not None and is_constant(value)]
    if node.op_type == "BatchNormalization":
        return False
    if is_multi_threshold(node):
        return find_channel_axis(node) is None
    return all(value.const_value is not None and value.const_value.size == 1 for value in constants)


def has_two_operands(node: ir.Node) -> bool:
    """Return whether a node multiplies two matrices that are both computed."""
    return node.op_type == "MatMul" and not any(
        value is None or is_constant(value) for value in node.inputs
    )


def is_row_function(node: ir.Node, opset: int, find_rank: Callable[[ir.Value], int]) -> bool:
    """Return whether a node normalizes the elements of tokens, along the last axis of its input.

    Class probabilities stay float32: a Softmax of whole rows has few elements.
    """
    if node.domain or node.op_type not in ("Softmax", "LayerNormalization"):
        return False
    x = node.inputs[0] if node.inputs else None
    if x is None or is_constant(x) or opset < _FIRST_SOFTMAX_OF_AN_AXIS:
        return False
    rank = find_rank(x)
    least = _MATRIX + 1 if node.op_type == "Softmax" else _MATRIX
    return rank >= least and get_attribute(node, "axis", -1) % rank == rank - 1


def is_average(node: ir.Node) -> bool:
    """Return whether a node adds up elements and divides by their number, without a window."""
    return is_onnx_op(node, "GlobalAveragePool", "ReduceMean")


def selects_along(node: ir.Node, rank: int, axis: int) -> bool:
    """Return whether constants of a node select elements along an axis, or set its size.

    A trace with one size of the axis then proves nothing for other sizes.

    Args:
        node: A node that moves the elements of its first input; its other inputs are constants.
        rank: The number of axes of that input.
        axis: The axis, from 0 on.
    """
    rule = None if node.domain else _SELECTING.get(node.op_type)
    return rule is not None and rule(node, rank, axis)


def _gathers_along(node: ir.Node, rank: int, axis: int) -> bool:
    return get_attribute(node, "axis", 0) % rank == axis


def _splits_along(node: ir.Node, rank: int, axis: int) -> bool:
    sizes = _read_numbers(node, 1, "split")
    return sizes is not None and get_attribute(node, "axis", 0) % rank == axis


def _expands_along(node: ir.Node, rank: int, axis: int) -> bool:
    sizes = _read_numbers(node, 1) or []
    place = len(sizes) - rank + axis
    return place >= 0 and sizes[place] != 1


def _resizes_along(node: ir.Node, rank: int, axis: int) -> bool:
    axes = [number % rank for number in get_attribute(node, "axes", ())] or list(range(rank))
    if _read_numbers(node, 3):
        return axis in axes
    scales = dict(zip(axes, _read_numbers(node, 2) or [], strict=False))
    return scales.get(axis, 1) != 1


def _slices_along(node: ir.Node, rank: int, axis: int) -> bool:
    starts, ends, axes, steps = (
        _read_numbers(node, place, name)
        for place, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    if starts is None or ends is None:
        return True
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    return any(
        number % rank == axis and not (start == 0 and end >= _END and step == 1)
        for start, end, number, step in zip(starts, ends, axes, steps, strict=False)
    )


_END = 2**31 - 1
"""Slices to an end from here on reach the end of the axis: the exporters' "all elements"."""

_SELECTING: dict[str, Callable[[ir.Node, int, int], bool]] = {
    "Expand": _expands_along,
    "Gather": _gathers_along,
    "Resize": _resizes_along,
    "Slice": _slices_along,
    "Split": _splits_along,
}


def _read_numbers(node: ir.Node, place: int, name: str = "") -> list[float] | None:
    """Return the numbers of a constant input, or of the attribute that older operators have."""
    value = node.inputs[place] if place < len(node.inputs) else None
    if value is not None and is_constant(value):
        return list(map(float, read_array(value).ravel()))
    return list(get_attribute(node, name, ())) if name in node.attributes else None


def find_kept_axis(node: ir.Node, rank: int) -> int | None:
    """Return the axis, 1 or the last, that a reduction over others keeps; None if there is none.

    It is 1 if the reduction keeps both, and of a pooling.
    """
    if not has_trait(node, OpTrait.REDUCES_AXES):
        return 1
    try:
        axes = get_reduced_axes(node, rank)
    except ModelError:  # an attribute of another type
        return None
    kept = [axis for axis in (1, rank - 1) if axes and axis not in axes and 0 not in axes]
    return kept[0] if kept else None


def find_interpolation(node: ir.Node) -> tuple[int, int] | None:
    """Return the factors of height and width of a bilinear Resize; None for other nodes.

    They are 1, 2 or 4: weights are multiples of a power of two then, which float32 has exactly.
    """
    is_linear = is_onnx_op(node, "Resize") and len(node.inputs) > 2
    if not is_linear or get_attribute(node, "mode", "nearest") != "linear":
        return None
    places = get_attribute(node, "coordinate_transformation_mode", "half_pixel")
    options = [get_attribute(node, name, 0) for name in ("antialias", "exclude_outside", "axes")]
    policy = get_attribute(node, "keep_aspect_ratio_policy", "stretch")
    x, y, scales = node.inputs[0], node.outputs[0], node.inputs[2]
    if places not in _PLACES or any(options) or policy != "stretch" or x is None:
        return None
    if x.shape is None or y.shape is None or len(x.shape) != _IMAGE_RANK:
        return None
    before = [size for size in list(x.shape)[2:] if isinstance(size, int)]
    after = [size for size in list(y.shape)[2:] if isinstance(size, int)]
    if not len(before) == len(after) == _IMAGE_RANK - 2:
        return None
    factors = [one // other if other else 0 for one, other in zip(after, before, strict=True)]
    if any(factor not in _FACTORS for factor in factors) or max(factors) == 1:
        return None
    if any(size * f != one for size, f, one in zip(before, factors, after, strict=True)):
        return None
    if scales is not None and scales.name:
        expected = is_constant(scales) and np.array_equal(read_array(scales), [1, 1, *factors])
        if not expected and not (is_constant(scales) and not read_array(scales).size):
            return None
    return factors[0], factors[1]


def get_captures(node: ir.Node) -> list[ir.Value]:
    """Return the values of the outer graph that the graphs in the attributes of a node read."""
    captures: list[ir.Value] = []
    for attribute in node.attributes.values():
        if attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH:
            continue
        graph = attribute.as_graph()
        own = {*graph.inputs, *graph.initializers.values()}
        inner = list(graph.all_nodes())
        own.update(value for nested in inner for value in nested.outputs)
        read = [value for nested in inner for value in nested.inputs] + list(graph.outputs)
        captures += [value for value in read if value is not None and value not in own]
    return [value for value in captures if not is_constant(value)]


def is_monotone(nodes: Sequence[ir.Node], x: ir.Value) -> bool:
    """Return whether a chain of nodes is a monotonic function of x."""
    return all(
        direction is not Monotonicity.NONE for direction in _iterate_monotonicities(nodes, x)
    )


def are_increasing(nodes: Sequence[ir.Node], x: ir.Value) -> bool:
    """Return whether a chain of nodes is an increasing function of x."""
    return all(
        direction is Monotonicity.INCREASING for direction in _iterate_monotonicities(nodes, x)
    )


def _iterate_monotonicities(nodes: Sequence[ir.Node], x: ir.Value) -> Iterator[Monotonicity]:
    """Yield the monotonicity of the nodes of a chain."""
    for node in nodes:
        varying = [value for value in node.inputs if value is not None and not is_constant(value)]
        yield _get_monotonicity(node, x) if varying == [x] else Monotonicity.NONE
        x = node.outputs[0]


def _get_monotonicity(node: ir.Node, x: ir.Value) -> Monotonicity:
    if is_quantize(node) or is_dequantize(node):
        return Monotonicity.INCREASING if _has_positive_scales(node) else Monotonicity.MONOTONE
    if not node.domain:
        return get_monotonicity(node, x)
    if is_multi_threshold(node):
        return Monotonicity.INCREASING if is_increasing(node) else Monotonicity.DECREASING
    operator = find_operator(node)
    if operator is None or operator.grid is None or node.inputs[0] is not x:
        return Monotonicity.NONE
    return Monotonicity.INCREASING if _has_positive_scales(node) else Monotonicity.MONOTONE


def _has_positive_scales(node: ir.Node) -> bool:
    """Return whether all scales of a quantizer are positive, so that it is increasing."""
    for declared, value in zip(get_declared_inputs(node), node.inputs, strict=False):
        scales = declared.role in (Role.SCALE, Role.IN_SCALE)
        if scales and value is not None and not bool(np.all(read_array(value) > 0)):
            return False
    return True
