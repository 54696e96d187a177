# SPDX-License-Identifier: Apache-2.0
"""LayerNormalization in place of the operators that exporters write for it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.layout import get_channels_first_order, get_channels_last_order
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.reductions import get_reduced_axes
from anybit.onnx.graph.require import require_producer
from anybit.onnx.graph.shapes import get_proven_sizes
from anybit.onnx.passes.infer_shapes import InferShapes
from anybit.onnx.passes.lift_opset import LiftOpset

_OPSET = 17
"""The first opset with LayerNormalization."""


class FuseLayerNorm(InPlacePass):
    """Replacement of the primitive operators of a layer normalization by LayerNormalization.

    Before: (x - mean) / sqrt(variance + epsilon), then a constant gain and offset per channel. The
    variance is the mean of (x - mean)^2, or the mean of x^2 less mean^2. The quotient may be a
    product with a reciprocal w, also as x * w + (offset - mean * w). Channels are the last axis, or
    the first after the rows.
    After: LayerNormalization, with a Transpose on both sides if channels are not the last axis. The
    opset is at least 17; a model that cannot be lifted stays as it is.

    Operators round in another order, so results change by roundings. Only quantization uses this
    pass. The model is normalized, constants are folded, and shapes are inferred.
    """

    def call(self, model: ir.Model) -> PassResult:
        if not any(True for _ in _find_norms(model)):
            return PassResult(model, False)
        if model.graph.opset_imports.get("", 0) < _OPSET and not _lift(model):
            return PassResult(model, False)
        editor = Editor(model)
        results: dict[ir.Value, ir.Value] = {}
        for norm in list(_find_norms(model)):
            x = results.get(norm.center.x, norm.center.x)
            results[norm.y] = _replace(norm, x, editor)
        RemoveUnusedNodesPass()(model)
        return PassResult(model, True)


@dataclass(frozen=True, eq=False)
class _Center:
    """x - mean.

    Attributes:
        x, mean: The operands.
        rank: The rank of x.
        axis: The axis of the mean, from 0 on.
        channels: The size of that axis.
    """

    x: ir.Value
    mean: ir.Value
    rank: int
    axis: int
    channels: int


@dataclass(frozen=True, eq=False)
class _Norm:
    """A layer normalization in primitive operators.

    Attributes:
        center: x - mean.
        epsilon: The number that is added to the variance.
        gains, offsets: One number per channel.
        y: The result.
    """

    center: _Center
    epsilon: float
    gains: Array
    offsets: Array
    y: ir.Value


def _lift(model: ir.Model) -> bool:
    """Lift the opset of a model to that of LayerNormalization; return whether that is possible."""
    try:  # on a copy first: a converter that fails leaves a partial result
        LiftOpset(_OPSET)(model.clone())
    except ModelError:
        return False
    LiftOpset(_OPSET)(model)
    InferShapes()(model)
    return True


def _find_norms(model: ir.Model) -> Iterator[_Norm]:
    """Yield the normalizations of the main graph."""
    for node in model.graph:
        if is_onnx_op(node, "Add", "Div", "Mul"):
            norm = _match_norm(node, model)
            if norm is not None:
                yield _extend(norm)


def _match_norm(node: ir.Node, model: ir.Model) -> _Norm | None:
    """Return the normalization whose last node but gain and offset is this one."""
    if node.op_type == "Add":
        return _match_affine_form(node, model)
    for centered, factor in _iter_orders(node):
        center = _match_center(centered, model)
        if center is None:
            continue
        if node.op_type == "Div":
            epsilon = _match_deviation(factor, center, model)
            gains: Array | None = np.ones(center.channels, np.float32)
        else:
            epsilon, gains = _match_factor(factor, center, model)
        if epsilon is not None and gains is not None:
            offsets = np.zeros(center.channels, np.float32)
            return _Norm(center, epsilon, gains, offsets, node.outputs[0])
    return None


def _match_affine_form(node: ir.Node, model: ir.Model) -> _Norm | None:
    """Return the normalization x * w + (offset - mean * w), as TensorFlow writes it."""
    for scaled, rest in _iter_orders(node):
        product, difference = _get_operands(scaled, "Mul"), _get_operands(rest, "Sub")
        if product is None or difference is None:
            continue
        for x, factor in (product, product[::-1]):
            for mean, same in _iter_operands(difference[1], "Mul"):
                center = _make_center(x, mean, model) if same is factor else None
                if center is None:
                    continue
                epsilon, gains = _match_factor(factor, center, model)
                offsets = _read_channels(difference[0], center)
                if epsilon is not None and gains is not None and offsets is not None:
                    return _Norm(center, epsilon, gains, offsets, node.outputs[0])
    return None


def _match_center(value: ir.Value, model: ir.Model) -> _Center | None:
    operands = _get_operands(value, "Sub")
    return None if operands is None else _make_center(*operands, model)


def _make_center(x: ir.Value, mean: ir.Value, model: ir.Model) -> _Center | None:
    """Return x - mean; None if that is not the mean over one axis of channels."""
    node, sizes = mean.producer(), get_proven_sizes(x, model)
    if node is None or sizes is None or node.inputs[:1] != (x,) or x.dtype != ir.DataType.FLOAT:
        return None
    axis = _find_mean_axis(node, len(sizes))
    channels = None if axis is None else sizes[axis]
    if axis is None or axis not in (1, len(sizes) - 1) or axis == 0 or not channels:
        return None
    return _Center(x, mean, len(sizes), axis, channels)


def _find_mean_axis(node: ir.Node, rank: int) -> int | None:
    """Return the axis of a mean that keeps its axis; None for other nodes."""
    if not is_onnx_op(node, "ReduceMean") or not get_attribute(node, "keepdims", 1):
        return None
    axes = get_reduced_axes(node, rank)
    return axes[0] if axes is not None and len(axes) == 1 else None


def _match_factor(
    value: ir.Value, center: _Center, model: ir.Model
) -> tuple[float | None, Array | None]:
    """Return epsilon and gains of gain / sqrt(variance + epsilon); None for another factor."""
    ones = np.ones(center.channels, np.float32)
    epsilon = _match_reciprocal(value, center, model)
    if epsilon is not None:
        return epsilon, ones
    quotient = _get_operands(value, "Div")
    if quotient is not None:
        return _match_deviation(quotient[1], center, model), _read_channels(quotient[0], center)
    for factor, constant in _iter_operands(value, "Mul"):
        epsilon = _match_reciprocal(factor, center, model)
        if epsilon is not None:
            return epsilon, _read_channels(constant, center)
    return None, None


def _match_reciprocal(value: ir.Value, center: _Center, model: ir.Model) -> float | None:
    """Return epsilon of 1 / sqrt(variance + epsilon); None for another value."""
    node = value.producer()
    if node is not None and is_onnx_op(node, "Reciprocal") and node.inputs[0] is not None:
        return _match_deviation(node.inputs[0], center, model)
    quotient, power = _get_operands(value, "Div"), _get_operands(value, "Pow")
    if quotient is not None and _read_number(quotient[0]) == 1:
        return _match_deviation(quotient[1], center, model)
    if power is not None and _read_number(power[1]) == -0.5:
        return _match_variance_and_epsilon(power[0], center, model)
    return None


def _match_deviation(value: ir.Value, center: _Center, model: ir.Model) -> float | None:
    """Return epsilon of sqrt(variance + epsilon); None for another value."""
    node, power = value.producer(), _get_operands(value, "Pow")
    if node is not None and is_onnx_op(node, "Sqrt") and node.inputs[0] is not None:
        return _match_variance_and_epsilon(node.inputs[0], center, model)
    if power is not None and _read_number(power[1]) == 0.5:
        return _match_variance_and_epsilon(power[0], center, model)
    return None


def _match_variance_and_epsilon(value: ir.Value, center: _Center, model: ir.Model) -> float | None:
    for variance, constant in _iter_operands(value, "Add"):
        epsilon = _read_number(constant)
        if epsilon is not None and epsilon > 0 and _is_variance(variance, center, model):
            return epsilon
    return None


def _is_variance(value: ir.Value, center: _Center, model: ir.Model) -> bool:
    """Return whether a value is the variance of x along its channels."""
    node = value.producer()
    if node is None:
        return False
    if is_onnx_op(node, "Relu", "Max"):  # of a difference, which may round to less than 0
        operands = [one for one in node.inputs if one is not None and _read_number(one) != 0]
        return len(operands) == 1 and _is_difference(operands[0], center)
    if _find_mean_axis(node, center.rank) != center.axis or node.inputs[0] is None:
        return _is_difference(value, center)
    squared = _get_squared(node.inputs[0])
    same = None if squared is None else _match_center(squared, model)
    return same is not None and same.x is center.x and same.axis == center.axis


def _is_difference(value: ir.Value, center: _Center) -> bool:
    """Return whether a value is the mean of the squares of x less the square of the mean."""
    operands = _get_operands(value, "Sub")
    node = None if operands is None else operands[0].producer()
    if operands is None or node is None or _find_mean_axis(node, center.rank) != center.axis:
        return False
    is_mean_of_squares = node.inputs[0] is not None and _get_squared(node.inputs[0]) is center.x
    return is_mean_of_squares and _get_squared(operands[1]) is center.mean


def _get_squared(value: ir.Value) -> ir.Value | None:
    """Return the value that another one is the square of; None for other values."""
    product, power = _get_operands(value, "Mul"), _get_operands(value, "Pow")
    if product is not None and product[0] is product[1]:
        return product[0]
    return power[0] if power is not None and _read_number(power[1]) == 2 else None


def _extend(norm: _Norm) -> _Norm:
    """Return a normalization with the gain and the offset after it, if it has none yet."""
    y, gains, offsets = norm.y, norm.gains, norm.offsets
    if not (gains != 1).any() and not offsets.any():
        y, gains = _take_constant(y, "Mul", norm.center) or (y, gains)
    if not offsets.any():
        y, offsets = _take_constant(y, "Add", norm.center) or (y, offsets)
    return _Norm(norm.center, norm.epsilon, gains, offsets, y)


def _take_constant(y: ir.Value, operator: str, center: _Center) -> tuple[ir.Value, Array] | None:
    """Return the result of the only reader of y, and its constant per channel."""
    if y.is_graph_output() or len(y.uses()) != 1:
        return None
    ((reader, _),) = y.uses()
    for x, constant in _iter_operands(reader.outputs[0], operator):
        array = _read_channels(constant, center) if x is y else None
        if array is not None:
            return reader.outputs[0], array
    return None


def _read_channels(value: ir.Value, center: _Center) -> Array | None:
    """Return one number per channel; None unless a constant varies along channels only."""
    if not is_constant(value) or value.dtype != ir.DataType.FLOAT:
        return None
    array = read_array(value)
    expected = [1] * center.rank
    expected[center.axis] = center.channels
    if array.ndim > center.rank or array.size not in (1, center.channels):
        return None
    try:
        whole = np.broadcast_to(array, expected)
    except ValueError:
        return None
    return np.ascontiguousarray(whole.ravel(), np.float32)


def _read_number(value: ir.Value) -> float | None:
    """Return the only element of a constant; None for other values."""
    array = read_array(value) if is_constant(value) else None
    return float(array.ravel()[0]) if array is not None and array.size == 1 else None


def _get_operands(value: ir.Value, operator: str) -> tuple[ir.Value, ir.Value] | None:
    """Return both operands of the operator that computes a value; None for another one."""
    node = value.producer()
    if node is None or not is_onnx_op(node, operator) or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    return None if first is None or second is None else (first, second)


def _iter_operands(value: ir.Value, operator: str) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the operands of a commutative operator in both orders."""
    node = value.producer()
    if node is not None and is_onnx_op(node, operator):
        yield from _iter_orders(node)


def _iter_orders(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the operands of a node of two inputs in all orders in which they mean the same."""
    first, second = node.inputs if len(node.inputs) == 2 else (None, None)
    if first is not None and second is not None:
        yield first, second
        if node.op_type != "Div":
            yield second, first


def _replace(norm: _Norm, x: ir.Value, editor: Editor) -> ir.Value:
    """Compute the result of a normalization of x with LayerNormalization; return it."""
    center, y, last = norm.center, norm.y, require_producer(norm.y)
    name = str(y.name)

    def insert(kind: str, inputs: list[ir.Value], attribute: ir.Attr) -> ir.Value:
        result = editor.insert(
            last, kind, inputs, name, like=y, dtype=ir.DataType.FLOAT, attributes=[attribute]
        )
        result.shape = None
        return result

    is_last = center.axis == center.rank - 1
    if not is_last:
        x = insert("Transpose", [x], ir.AttrInt64s("perm", get_channels_last_order(center.rank)))
    constants = [
        editor.add_constant(f"{name}_{role}", ir.tensor(array))
        for role, array in (("gain", norm.gains), ("offset", norm.offsets))
    ]
    epsilon = ir.AttrFloat32("epsilon", norm.epsilon)
    result = insert("LayerNormalization", [x, *constants], epsilon)
    if not is_last:
        order = get_channels_first_order(center.rank)
        result = insert("Transpose", [result], ir.AttrInt64s("perm", order))
    editor.replace(last, result)
    return result
