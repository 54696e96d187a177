# SPDX-License-Identifier: Apache-2.0
"""Conversion of this package's dequantizers to DequantizeLinear."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.expansion.calls import Expansions
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.require import require_input
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.native_types import INTEGERS, PER_AXIS_OPSET, NativeType
from anybit.onnx.quantizers.nodes import get_dtype
from anybit.onnx.quantizers.quantizer import OwnQuantizer, find_own_quantizer
from anybit.ops.arrays import convert_values
from anybit.ops.domain import Role

_FLOAT, _INDEX = ir.DataType.FLOAT, ir.DataType.INT64


@dataclass(frozen=True)
class DequantizerPlan:
    """A DequantizeLinear for a dequantizer; both compute float32(x - zero-point) * scale.

    Attributes:
        type: The type of the codes.
        scale: A constant or a computed value.
        zeropt: The same in the type of the codes; None for 0.
        axis: The axis of the channels; None for one scale.
    """

    type: NativeType
    scale: Array | ir.Value
    zeropt: Array | ir.Value | None
    axis: int | None

    @property
    def opset(self) -> int:
        """Return the lowest opset with everything that is written."""
        return self.type.opset if self.axis is None else max(self.type.opset, PER_AXIS_OPSET)


def plan_dequantizer(node: ir.Node, opset: int) -> DequantizerPlan:
    """Return the plan of a dequantizer for at most that opset.

    Raises:
        Inexpressible: DequantizeLinear does not compute the same, or the types are not known.
        ModelError: The operator would refuse a parameter.
    """
    own = find_own_quantizer(node)
    if own is None or own.x is None:
        raise Inexpressible("it is not a dequantizer of this package")
    dtype = get_dtype(own.x)
    native = next((integer for integer in INTEGERS if integer.dtype == dtype), None)
    if native is None or native.bits != 8:
        words = "not known" if dtype is None else dtype.name.lower()
        raise Inexpressible(f"the type of x is {words}, must be int8 or uint8")
    if own.constant:
        _check_constants(own, own.x)
    else:
        Expansions().expand(node, own.operator)
    per_channel = own.attributes["qtype"] == "per_channel"
    axis = int(own.attributes["axis"]) if per_channel else None
    scale = _get_parameter(own, Role.SCALE)
    assert scale is not None, "dequantizers have a scale"
    if isinstance(scale, ir.Value) and scale.dtype != _FLOAT:
        words = "unknown type" if scale.dtype is None else scale.dtype.name.lower()
        raise Inexpressible(f"its scale is computed when the model runs, as {words}")
    if not isinstance(scale, ir.Value) and not scale.size:
        raise Inexpressible("it has no scales, since x has no channels")
    plan = DequantizerPlan(native, scale, _get_zeropt(own, native), axis)
    if plan.opset > opset:
        raise Inexpressible(f"one scale per channel needs opset {plan.opset}")
    return plan


def write_dequantizer(editor: Editor, node: ir.Node, plan: DequantizerPlan) -> None:
    """Replace a node by the DequantizeLinear of a plan."""
    x, name = require_input(node), str(node.outputs[0].name)

    def stored(role: str, values: Array | ir.Value, dtype: ir.DataType) -> ir.Value:
        if isinstance(values, ir.Value):
            return values if plan.axis is not None else single(role, values, dtype)
        return editor.share_parameter(name, role, values, dtype)

    def single(role: str, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return a scalar for a tensor of one element: 1-D tensors are per channel."""
        shape = editor.share_parameter(name, "no_axes", np.empty(0, np.int64), _INDEX)
        result = editor.insert(
            node, "Reshape", [value, shape], f"{name}_{role}", like=value, dtype=dtype
        )
        result.shape = ir.Shape([])
        return result

    inputs = [x, stored("scale", plan.scale, _FLOAT)]
    if plan.zeropt is not None:
        inputs.append(stored("zero_point", plan.zeropt, plan.type.dtype))
    attributes = [] if plan.axis is None else [ir.AttrInt64("axis", plan.axis)]
    result = editor.insert(
        node,
        "DequantizeLinear",
        inputs,
        f"{name}_values",
        like=x,
        dtype=_FLOAT,
        attributes=attributes,
    )
    editor.replace(node, result)


def _check_constants(own: OwnQuantizer, x: ir.Value) -> None:
    """Check the parameters of constant codes, which are too many to compute their values."""
    x_shape = read_array(x).shape
    like_x = SimpleNamespace(shape=x_shape, ndim=len(x_shape))
    attributes = dict(own.attributes)
    for declared, value in zip(own.inputs[1:], own.node.inputs[1:], strict=False):
        if value is None or not is_constant(value):
            continue
        try:
            array = convert_values(read_array(value), declared.domain, declared.name)
            own.operator.place(array, like_x, declared.name, attributes)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{describe(own.node)}: {error}") from error


def _get_parameter(own: OwnQuantizer, role: Role) -> Array | ir.Value | None:
    """Return a constant parameter of one element as a scalar, or the computed value."""
    place = next(i for i, declared in enumerate(own.inputs) if declared.role is role)
    value = own.node.inputs[place] if place < len(own.node.inputs) else None
    if value is None or not is_constant(value):
        return value
    array = read_array(value)
    return array if own.attributes["qtype"] == "per_channel" else array.reshape(())


def _get_zeropt(own: OwnQuantizer, native: NativeType) -> Array | ir.Value | None:
    value = _get_parameter(own, Role.ZERO_POINT)
    if isinstance(value, ir.Value):
        if value.dtype != native.dtype:
            words = "unknown type" if value.dtype is None else value.dtype.name.lower()
            raise Inexpressible(
                f"its zero-point is computed when the model runs, as {words}: that of "
                f"DequantizeLinear has the type of x, {native.name}"
            )
        return value
    if value is None or not np.any(value):
        return None
    outside = value[(value < native.lowest) | (value > native.highest)]
    if outside.size:
        raise Inexpressible(
            f"zero-point {outside.flat[0]} is not {native.name}, the type of x, which that of "
            "DequantizeLinear has"
        )
    return value
