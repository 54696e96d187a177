# SPDX-License-Identifier: Apache-2.0
"""Descriptions of quantizers for reports."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit import text
from anybit.errors import ModelError
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.shapes import get_sizes
from anybit.onnx.qdq.blocks import find_blocks
from anybit.onnx.quantizers.native_types import find_native_type
from anybit.onnx.quantizers.quantizer import Quantizer
from anybit.ops.domain import Role
from anybit.ops.grids import Coding, FloatGrid, Grid


@dataclass(frozen=True)
class ParameterSummary:
    """A parameter of a quantizer.

    Attributes:
        granularity: "per-tensor", "per-channel", "per-block 32", "per-element" or "computed".
        axis: The channel axis, counted from the end (-1 is the last); None unless per-channel.
        smallest, largest: Range of the values; None if the graph computes them.
    """

    granularity: str
    axis: int | None
    smallest: float | None
    largest: float | None


@dataclass(frozen=True)
class QuantizerSummary:
    """A quantizer of a model.

    Attributes:
        node: Name of the node whose output is quantized, or of that output.
        operator: Its operator; "QDQ" for QuantizeLinear followed by DequantizeLinear, and for a
            DequantizeLinear of stored codes.
        version: Version of the operator; 0 for QDQ.
        tensor: Name of the quantized tensor; the stored one if only data movement lies between.
        shape: Shape of the tensor: "[64, 3, 7, 7]".
        role: "weight", "bias", "input" or "activation".
        constant: Whether it is folded at load time.
        bits: Width of the codes; "2..8" if channels differ, "?" if the graph computes it.
        codes: Range or list of the codes: "-8..7", "-1, 1", "float8_e4m3fn to 448"; empty if
            unknown.
        type: Type of the codes of a QDQ; empty for others.
        scale, zero_point: Parameters of that role; None if there is none.
        parameters: All parameters by their names in the operator.
        attributes: All attributes by their Python names.
    """

    node: str
    operator: str
    version: int
    tensor: str
    shape: str
    role: str
    constant: bool
    bits: str
    codes: str
    type: str
    scale: ParameterSummary | None
    zero_point: ParameterSummary | None
    parameters: dict[str, ParameterSummary]
    attributes: dict[str, bool | int | str]


def summarize_quantizer(
    quantizer: Quantizer, origins: dict[str, tuple[str, str]]
) -> QuantizerSummary:
    """Describe a quantizer.

    Args:
        quantizer: The quantizer; it has an input.
        origins: Name and shape of the source tensor, by the name of a value that was only moved.
    """
    x, operator = quantizer.x, quantizer.operator
    assert x is not None, "quantizers without an input are not listed"
    tensor, shape = origins.get(str(x.name), (str(x.name), text.format_shape(get_shape(x))))
    parameters = {
        declared.name: _summarize_parameter(
            str(value.name), quantizer.parameters.get(declared.name), quantizer
        )
        for declared, value in zip(quantizer.inputs[1:], quantizer.node.inputs[1:], strict=False)
        if value is not None
    }
    by_role = {
        declared.role: parameters[declared.name]
        for declared in quantizer.inputs
        if declared.name in parameters
    }
    codes = None if operator is not None else _get_code_type(quantizer)
    return QuantizerSummary(
        node=get_label(quantizer.node),
        operator=quantizer.kind,
        version=0 if operator is None else operator.version,
        tensor=tensor,
        shape=shape,
        role=quantizer.role,
        constant=quantizer.constant and quantizer.static,
        bits=_format_bits(quantizer, by_role, codes),
        codes=_format_codes(quantizer.element_grid),
        type="" if codes is None else _get_dtype_name(codes),
        scale=by_role.get(Role.SCALE),
        zero_point=by_role.get(Role.ZERO_POINT),
        parameters=parameters,
        attributes=dict(quantizer.attributes),
    )


def _summarize_parameter(
    name: str, array: np.ndarray | None, quantizer: Quantizer
) -> ParameterSummary:
    if array is None:
        return ParameterSummary("computed", None, None, None)
    numeric = array.dtype.kind in "fiub" or array.dtype.isbuiltin == 2  # those of ml_dtypes
    if not numeric:
        raise ModelError(f"{name!r} must hold numbers to quantize with, got {array.dtype}")
    array = array.astype(np.float64)
    varying = [axis - array.ndim for axis, size in enumerate(array.shape) if size != 1]
    granularity = ("per-tensor", "per-channel")[len(varying)] if len(varying) < 2 else "per-element"
    if len(varying) > 1 and (block_size := _get_block_size(quantizer)):
        granularity = f"per-block {block_size}"
    smallest, largest = (float(array.min()), float(array.max())) if array.size else (None, None)
    axis = varying[0] if len(varying) == 1 else None
    return ParameterSummary(granularity, axis, smallest, largest)


def _get_block_size(quantizer: Quantizer) -> int:
    """Return the number of elements that share a parameter along one axis; 0 without blocks.

    A constant whose blocks have an axis of their own has parameters that vary along all others.
    """
    x, grid = quantizer.x, quantizer.grid
    if quantizer.block_size or grid is None or x is None or x.const_value is None:
        return quantizer.block_size
    layout = find_blocks(grid, x)
    return 0 if layout is None else layout.block


def _get_code_type(quantizer: Quantizer) -> ir.DataType | None:
    """Return the type of the codes of QuantizeLinear or DequantizeLinear."""
    node = quantizer.quantize or quantizer.node
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    values = [*([zero_point] if zero_point is not None else []), quantizer.node.inputs[0]]
    if quantizer.kind != "QDQ":
        values += node.outputs
    for value in values[:1] if zero_point is not None else values:
        dtype = None if value is None else (value.const_value or value).dtype
        if find_native_type(dtype) is not None:
            return dtype
    return None


def _format_bits(
    quantizer: Quantizer, parameters: dict[Role, ParameterSummary], codes: ir.DataType | None
) -> str:
    if quantizer.grid is not None:
        return str(quantizer.grid.bits)
    if codes is not None:
        return str(codes.bitwidth)
    if Role.BITWIDTH in parameters:
        return _format_range(parameters[Role.BITWIDTH])
    if Role.EXPONENT_BITWIDTH in parameters:
        parts = (parameters[role] for role in (Role.EXPONENT_BITWIDTH, Role.MANTISSA_BITWIDTH))
        return " ".join(
            f"{letter}{_format_range(part)}" for letter, part in zip("em", parts, strict=True)
        )
    dtype = (
        None
        if quantizer.operator is None
        else quantizer.operator.get_code_dtype(quantizer.attributes)
    )
    return "?" if dtype is None else str(8 * np.dtype(dtype).itemsize)


def _format_range(parameter: ParameterSummary) -> str:
    if parameter.smallest is None or parameter.largest is None:
        return "?"
    if parameter.smallest == parameter.largest:
        return f"{parameter.smallest:g}"
    return f"{parameter.smallest:g}..{parameter.largest:g}"


def _format_codes(grid: Grid | None) -> str:
    if grid is None:
        return ""
    if isinstance(grid, FloatGrid):
        return f"{grid.format} to {grid.format.largest:g}"
    if grid.coding is Coding.SIGN:
        return ", ".join(map(str, grid.codes))
    return f"{grid.lowest}..{grid.highest}"


def get_shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """Return the sizes; None for an unknown rank."""
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    return None if value.shape is None else get_sizes(value.shape)


def format_type(value: ir.Value) -> str:
    """Return type and shape: "float32[1, 3, height, ?]"."""
    dtype = value.dtype if value.const_value is None else value.const_value.dtype
    return text.format_tensor_type(
        "?" if dtype is None else _get_dtype_name(dtype), get_shape(value)
    )


def _get_dtype_name(dtype: ir.DataType) -> str:
    """Return the name of a type in NumPy."""
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return "string" if dtype is ir.DataType.STRING else "?"
    return str(dtype.numpy())
