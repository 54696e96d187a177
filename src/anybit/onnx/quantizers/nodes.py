# SPDX-License-Identifier: Apache-2.0
"""Parameters of QuantizeLinear and DequantizeLinear nodes."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.names import describe
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.native_types import NativeType, find_native_type
from anybit.ops.grids import Channels, FloatGrid, Grid, IntegerGrid

# ONNX Runtime's domain supported more types earlier than ONNX.
_DOMAINS = ("", "com.microsoft")
_DEFAULT_AXIS = 1
_FLOAT = ir.DataType.FLOAT
# Floats that are divided by a float32 scale in float32.
_QUANTIZED = (_FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def is_quantize(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "QuantizeLinear" and node.domain in _DOMAINS


def is_dequantize(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "DequantizeLinear" and node.domain in _DOMAINS


@dataclass(frozen=True)
class Scaling:
    """The parameters of a node: type, scale and zero-point."""

    type: NativeType
    layout: Channels

    def equals(self, other: "Scaling") -> bool:
        """Return whether one is the inverse of the other, comparing values rather than names."""
        return (
            self.type == other.type
            and self.layout.axis == other.layout.axis
            and np.array_equal(self.layout.scale, other.layout.scale)
            and np.array_equal(self.layout.zeropt, other.layout.zeropt)
        )

    @property
    def scale(self) -> Array:
        """Return the scale in a shape that broadcasts to x."""
        return self.layout.broadcast(self.layout.scale)

    @property
    def zeropt(self) -> Array:
        """Return the zero-point in float32, in a shape that broadcasts to x.

        It is 0-d if all are equal.
        """
        zeropt = self.layout.zeropt
        if np.all(zeropt == zeropt.flat[0]):
            return np.asarray(zeropt.flat[0])
        return self.layout.broadcast(zeropt)

    @property
    def grid(self) -> Grid:
        """Return the values of all codes of the type."""
        if self.type.format is not None:
            return FloatGrid(self.scale, self.type.format)
        return IntegerGrid(self.scale, self.zeropt, self.type.codes)


def read_scaling(
    node: ir.Node, codes: ir.DataType | None = None, *, blocks: bool = False
) -> Scaling:
    """Return the parameters of a node; `codes` is the type of a DequantizeLinear's input.

    Parameters per block are supported with `blocks` only, repeated for their elements.

    Raises:
        Inexpressible: Parameters are computed, per block or not float32; the type is not in the
            table; an axis in a tensor of unknown rank.
        ModelError: Parameters are inconsistent with each other or with x.
    """
    _check_inputs(node)
    native = _get_native_type(node, codes)
    scale = _read_scale(node)
    for name in ("output_dtype",) * is_dequantize(node) + ("precision",):
        if get_attribute(node, name, 0) not in (0, _FLOAT.value):
            raise Inexpressible(f"its {name} is not float32")
    block = get_attribute(node, "block_size", 0)
    if block and not blocks:
        raise Inexpressible("it has one scale per block")
    if not np.all(np.isfinite(scale) & (scale > 0)):
        raise Inexpressible("its scale is not finite and positive")
    zeropt = np.zeros((), np.float32)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        zeropt = _read_constant(node, 2, "zero-point").astype(np.float32)
    if (native.format is not None or native.wide) and np.any(zeropt != 0):
        raise Inexpressible(f"{native.name} codes have a zero-point")
    layout = (
        _expand_blocks(node, scale, zeropt, block) if block else _find_channels(node, scale, zeropt)
    )
    return Scaling(native, layout)


def dequantize_constant(node: ir.Node) -> Array | None:
    """Return the floats of a DequantizeLinear of constant codes; None for rare kinds.

    Raises:
        ModelError: Parameters are inconsistent with each other or with x.
    """
    codes = node.inputs[0]
    if codes is None:
        return None
    try:
        scaling = read_scaling(node, get_dtype(codes), blocks=True)
    except Inexpressible:
        return None
    return scaling.grid.decode(read_array(codes))


def quantize_constant(node: ir.Node) -> Array | None:
    """Return the codes of a QuantizeLinear of constant floats, as ONNX defines them.

    None for kinds that are left to the runtime: parameters that `read_scaling` refuses, an x that
    is not a float of at most 32 bits, and x / scale that is NaN if the type of the codes has none.

    Raises:
        ModelError: Parameters are inconsistent with each other or with x.
    """
    x = node.inputs[0]
    if x is None or get_dtype(x) not in _QUANTIZED:
        return None
    try:
        scaling = read_scaling(node, blocks=True)
    except Inexpressible:
        return None
    values, native = read_array(x), scaling.type
    dtype = native.dtype.numpy()
    with np.errstate(all="ignore"):  # infinite quotients saturate
        quotients = np.asarray(np.divide(values, scaling.scale, dtype=np.float32))
        if np.isnan(quotients).any() and (native.format is None or native.bits < 8):
            return None
        if native.format is None:
            codes = np.rint(quotients).astype(np.float64) + scaling.zeropt
            return np.asarray(np.clip(codes, native.lowest, native.highest).astype(dtype))
        if native.bits < 8 or get_attribute(node, "saturate", 1):
            quotients = np.clip(quotients, -native.format.largest, native.format.largest)
        return np.asarray(quotients.astype(dtype))


def get_dtype(value: ir.Value) -> ir.DataType | None:
    return value.const_value.dtype if value.const_value is not None else value.dtype


def _check_inputs(node: ir.Node) -> None:
    present = [value is not None for value in node.inputs]
    if not 2 <= len(present) <= 3 or not all(present[:2]) or len(node.outputs) != 1:
        raise ModelError(
            f"{describe(node)} must have x, a scale and perhaps a zero-point, and one output"
        )


def _get_native_type(node: ir.Node, codes: ir.DataType | None) -> NativeType:
    stored = node.inputs[2] if len(node.inputs) > 2 else None
    zeropt = get_dtype(stored) if stored is not None else None
    if zeropt is not None and codes is not None and zeropt != codes:
        raise ModelError(
            f"{describe(node)} reads {codes.name.lower()}, but its zero-point is "
            f"{zeropt.name.lower()}; they must agree"
        )
    dtype = zeropt or codes
    if dtype is None and is_quantize(node):
        named = get_attribute(node, "output_dtype", 0) or ir.DataType.UINT8.value
        dtypes = {dtype.value for dtype in ir.DataType}
        dtype = ir.DataType(named) if named in dtypes else None
    native = find_native_type(dtype)
    if native is None or (native.wide and is_quantize(node)):
        words = "unknown" if dtype is None else dtype.name.lower()
        raise Inexpressible(f"its codes are {words}")
    return native


def _read_scale(node: ir.Node) -> Array:
    """Return the scale in float32, the compute type of the node."""
    scale = _read_constant(node, 1, "scale")
    dtype = ir.DataType.from_numpy(scale.dtype)
    computes = get_attribute(node, "precision" if is_quantize(node) else "output_dtype", 0)
    if dtype == ir.DataType.FLOAT8E8M0 and computes == _FLOAT.value:
        return scale.astype(np.float32)  # powers of two
    if dtype != _FLOAT:
        raise Inexpressible(f"its scale is {scale.dtype}, so that it computes in that type")
    return scale


def _read_constant(node: ir.Node, index: int, role: str) -> Array:
    value = node.inputs[index]
    if value is None or not is_constant(value):
        raise Inexpressible(f"its {role} is computed when the model runs")
    return read_array(value)


def _find_channels(node: ir.Node, scale: Array, zeropt: Array) -> Channels:
    if scale.ndim > 1 or scale.size == 0:
        raise ModelError(f"{describe(node)}: its scale has shape {scale.shape}, must be 1-D")
    if zeropt.size != 1 and zeropt.shape != scale.shape:
        raise ModelError(
            f"{describe(node)} has {scale.size} scales, but zero-points of shape {zeropt.shape}"
        )
    if scale.size == 1:
        return Channels(scale.reshape(()), zeropt.reshape(()), None)
    zeropt = np.array(np.broadcast_to(zeropt.reshape(-1), scale.shape))
    return Channels(scale, zeropt, _resolve_axis(node, scale.size))


def _expand_blocks(node: ir.Node, scale: Array, zeropt: Array, block: int) -> Channels:
    """Return scale and zero-point of each element of x, whose shape must be known."""
    shape = _get_shape(node.inputs[0])
    axis = get_attribute(node, "axis", _DEFAULT_AXIS)
    if shape is None or not all(isinstance(size, int) for size in shape):
        raise Inexpressible("it has one scale per block, of a tensor whose shape is not known")
    sizes = [int(str(size)) for size in shape]
    fits = block > 0 and -len(sizes) <= axis < len(sizes)
    if fits:
        axis %= len(sizes)
        counts = tuple(-(-n // block) if at == axis else n for at, n in enumerate(sizes))
        fits = scale.shape == counts and zeropt.shape in ((), counts)
    if not fits:
        raise ModelError(
            f"{describe(node)} has scales of shape {scale.shape} and zero-points of shape "
            f"{zeropt.shape} for blocks of {block} along axis {axis} of shape {tuple(sizes)}"
        )
    owners = np.arange(sizes[axis]) // block
    parts = [
        np.take(parameter, owners, axis) if parameter.ndim else parameter
        for parameter in (scale, zeropt)
    ]
    return Channels(parts[0], parts[1], axis - len(sizes), block)


def _get_shape(value: ir.Value | None) -> tuple[object, ...] | None:
    tensor = value.const_value if value is not None else None
    shape = tensor.shape if tensor is not None else value.shape if value is not None else None
    return None if shape is None else tuple(shape)


def _resolve_axis(node: ir.Node, size: int) -> int:
    """Return the axis, counted from the end."""
    axis = get_attribute(node, "axis", _DEFAULT_AXIS)
    shape = _get_shape(node.inputs[0])
    shape = _get_shape(node.outputs[0]) if shape is None else shape
    if shape is None:
        if axis >= 0:
            raise Inexpressible(f"the rank of x is not known, so neither is where axis {axis} lies")
        return axis
    rank = len(shape)
    if rank == 0:
        raise ModelError(f"{describe(node)} has {size} scales for an x without axes")
    if not -rank <= axis < rank:
        raise ModelError(
            f"{describe(node)}: axis must be in [-{rank}, {rank - 1}] for x of rank {rank}, "
            f"got {axis}"
        )
    if isinstance(shape[axis], int) and shape[axis] != size:
        raise ModelError(f"{describe(node)} has {size} scales for {shape[axis]} channels")
    return axis % rank - rank
