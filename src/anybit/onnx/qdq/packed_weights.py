# SPDX-License-Identifier: Apache-2.0
"""Packed weights of ONNX Runtime's MatMulNBits: sizes, types and values.

Codes are packed along K, the lowest bits of a byte first, with a scale and a zero-point per block:
W = (code - zero_point) * scale. Source: the operator schema of ONNX Runtime. The weights were
compared bit by bit with 1.20.1 (4 bits), 1.23.2 (4 and 8 bits), 1.26.0 and 1.32.0 (2, 4, 8 bits).
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.require import require_input
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import get_dtype
from anybit.ops.grids import IntegerGrid

A, B, SCALES, ZEROPTS, G_IDX, BIAS = range(6)
"""The inputs."""

_FLOAT, _FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
_ATTRIBUTES = {"K", "N", "bits", "block_size", "accuracy_level", "weight_prepacked"}


DOMAIN, NAME = "com.microsoft", "MatMulNBits"
"""Domain and name of the operator."""
IN_FLOAT32, ROUNDED_TO_INT8 = 1, 4
"""Accuracy levels."""
# Unset, or float32. Others allow lower precision.
_FLOAT32_LEVELS = (0, IN_FLOAT32)
_LEVELS = {2: "float16", 3: "bfloat16", ROUNDED_TO_INT8: "int8"}
SAME_WEIGHTS = "the weights are the same bits; the runtime may add sums in another order"
"""The difference between MatMul and the operator where it computes in float32."""


def is_nbits(node: ir.Node) -> bool:
    """Return whether a node is ONNX Runtime's MatMulNBits."""
    return (node.domain, node.op_type) == (DOMAIN, NAME)


@dataclass(frozen=True)
class PackedWeight:
    """A MatMulNBits node with consistent sizes.

    Attributes:
        k, n, block, bits: Sizes of the weight [K, N], of a block along K and of a code.
        dtype: The type of A, the scales, the bias and the result.
        difference: The difference of the result, if any.
    """

    k: int
    n: int
    block: int
    bits: int
    dtype: ir.DataType
    difference: str

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)

    def weight(self, node: ir.Node) -> tuple[IntegerGrid, Array]:
        """Return the grid and the float32 values, [blocks, block, N]; [K, N] if there is one block.

        Blocks with negative scales have the mirrored codes; a scale of 0 becomes 1.
        """
        codes = unpack_codes(_read_array(node, B), self.bits)  # [N, blocks, block]
        scale = _read_array(node, SCALES).astype(np.float32).reshape(self.n, self.blocks, 1)
        if not np.all(np.isfinite(scale)):
            raise Inexpressible("a scale is not finite")
        zeropt = self._read_zeropts(node)
        with np.errstate(all="ignore"):  # infinite beyond float32
            values = np.subtract(codes, zeropt, dtype=np.float32) * scale
        highest = 2**self.bits - 1
        zeropt = np.where(scale < 0, np.float32(highest) - zeropt, zeropt)
        scale = np.where(scale == 0, np.float32(1), np.abs(scale))
        codes_of_grid, half = range(highest + 1), 2 ** (self.bits - 1)
        if np.all(zeropt == half):
            zeropt, codes_of_grid = np.zeros((), np.float32), range(-half, half)
        elif np.all(zeropt == zeropt.flat[0]):
            zeropt = np.asarray(zeropt.flat[0])
        order = (1, 2, 0)
        if zeropt.ndim:
            zeropt = np.ascontiguousarray(zeropt.transpose(order))
        scale = np.ascontiguousarray(scale.transpose(order))
        values = np.ascontiguousarray(values.transpose(order))
        if self.blocks == 1:
            values, scale = values[0, : self.k], scale[0]
            zeropt = zeropt[0] if zeropt.ndim else zeropt
        return IntegerGrid(scale, zeropt, codes_of_grid), values

    def _read_zeropts(self, node: ir.Node) -> Array:
        """Return the zero-points in float32, [N, blocks, 1]."""
        if get_input(node, ZEROPTS) is None:
            return np.full((1, 1, 1), 2 ** (self.bits - 1), np.float32)
        zeropts = _read_array(node, ZEROPTS)
        if zeropts.dtype == np.uint8:
            zeropts = unpack_codes(zeropts.reshape(self.n, -1), self.bits)[:, : self.blocks]
        return zeropts.astype(np.float32).reshape(self.n, self.blocks, 1)


def unpack_codes(packed: Array, bits: int) -> Array:
    """Return the codes of bytes, the lowest bits of each first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., np.newaxis] >> shifts) & np.uint8(2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def pack_codes(codes: Array, bits: int) -> Array:
    """Return uint8 codes along the last axis as bytes, the inverse of `unpack_codes`.

    The last byte is filled with zeros.
    """
    per_byte = 8 // bits
    missing = -codes.shape[-1] % per_byte
    filled = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, missing)])
    parts = filled.reshape(*codes.shape[:-1], -1, per_byte)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(parts << shifts, axis=-1))


def read_packed_weight(node: ir.Node) -> PackedWeight:
    """Compare attributes and shapes of a node, before anything is allocated.

    Raises:
        Inexpressible: The node has to stay, for that reason.
    """
    unknown = sorted(set(node.attributes) - _ATTRIBUTES)
    if unknown:
        raise Inexpressible(f"its attribute {unknown[0]} is not known")
    if len(node.outputs) != 1 or get_input(node, A) is None:
        raise Inexpressible("it does not have one input A and one output")
    if get_input(node, G_IDX) is not None:
        raise Inexpressible("its channels are reordered by g_idx")
    if get_attribute(node, "weight_prepacked", 0):
        raise Inexpressible("its weight is packed for one kind of GPU (weight_prepacked)")
    k, n = get_attribute(node, "K", 0), get_attribute(node, "N", 0)
    bits, block = get_attribute(node, "bits", 4), get_attribute(node, "block_size", 0)
    if bits not in (2, 4, 8):
        raise Inexpressible(f"bits is {bits}; known are 2, 4 and 8")
    if block < 16 or block & (block - 1):
        raise Inexpressible(f"block_size is {block}, not a power of two from 16 on")
    if k < 1 or n < 1:
        raise Inexpressible(f"K is {k} and N is {n}, which are not sizes")
    for index, name in ((B, "B"), (SCALES, "its scales"), (ZEROPTS, "its zero-points")):
        value, verb = get_input(node, index), "is" if index == B else "are"
        if index != ZEROPTS and value is None:
            raise Inexpressible(f"{name} {verb} missing")
        if value is not None and not is_constant(value):
            raise Inexpressible(f"{name} {verb} not constant")
    dtype = _check_types(node)
    packed = PackedWeight(k, n, block, bits, dtype, "; ".join(_list_differences(node, dtype)))
    _check_shapes(node, packed)
    return packed


def _check_types(node: ir.Node) -> ir.DataType:
    """Return the type that A, the scales and the bias share."""
    dtype = _get_dtype(node, SCALES)
    if dtype not in (_FLOAT, _FLOAT16):
        raise Inexpressible(f"its scales are {get_dtype_name(dtype)}, not float32 or float16")
    if _get_dtype(node, B) != ir.DataType.UINT8:
        raise Inexpressible(f"B is {get_dtype_name(_get_dtype(node, B))}, not uint8")
    if get_input(node, ZEROPTS) is not None and _get_dtype(node, ZEROPTS) not in (
        ir.DataType.UINT8,
        dtype,
    ):
        actual = get_dtype_name(_get_dtype(node, ZEROPTS))
        raise Inexpressible(f"its zero-points are {actual}, not uint8 or the type of A")
    for index, name in ((A, "A"), (BIAS, "its bias")):
        if _get_dtype(node, index) not in (None, dtype):
            actual = get_dtype_name(_get_dtype(node, index))
            raise Inexpressible(f"{name} is {actual} and its scales are {get_dtype_name(dtype)}")
    return dtype


def _check_shapes(node: ir.Node, packed: PackedWeight) -> None:
    n, blocks, bits = packed.n, packed.blocks, packed.bits
    whole = (n, blocks, packed.block * bits // 8)
    row = blocks if _get_dtype(node, ZEROPTS) == packed.dtype else -(-blocks * bits // 8)
    shapes: list[tuple[int, str, list[tuple[int, ...]]]] = [
        (B, "B", [whole]),
        (SCALES, "scales", [(n, blocks), (n * blocks,)]),
        (ZEROPTS, "zero_points", [(n, row), (n * row,)]),
    ]
    for index, name, expected in shapes:
        value = get_input(node, index)
        actual = None if value is None else _get_shape(value)
        if actual is not None and actual not in expected:
            raise Inexpressible(
                f"{name} has shape {list(actual)}, but K = {packed.k}, N = {n}, {bits} bits and "
                f"blocks of {packed.block} give {list(expected[0])}"
            )
    a, bias = get_input(node, A), get_input(node, BIAS)
    size = a.shape[-1] if a is not None and a.shape is not None and len(a.shape) else packed.k
    if isinstance(size, int) and size != packed.k:
        raise Inexpressible(f"the last axis of A has {size} elements, but K is {packed.k}")
    if bias is not None:
        actual = _get_shape(bias)
        if actual is None or len(actual) != 1 or actual[0] not in (n, None):
            raise Inexpressible(f"its bias does not have the shape [{n}]")


def _list_differences(node: ir.Node, dtype: ir.DataType) -> list[str]:
    """List the differences between float32 MatMul and the operator."""
    differences = []
    level = describe_level(node)
    if level:
        differences.append(level)
    if dtype == _FLOAT16:
        differences.append("the operator computes in float16")
    if get_input(node, ZEROPTS) is not None and _get_dtype(node, ZEROPTS) == dtype:
        differences.append("zero-points that are floats are subtracted with other roundings")
    return differences


def describe_level(node: ir.Node) -> str:
    """Return what the accuracy level of a node lets a runtime round; "" if nothing."""
    return describe_rounding(get_attribute(node, "accuracy_level", 0))


def describe_rounding(level: int) -> str:
    """Return what an accuracy level lets a runtime round; "" if nothing."""
    if level in _FLOAT32_LEVELS:
        return ""
    rounded = f"its input to {_LEVELS[level]}" if level in _LEVELS else "its input"
    return f"accuracy_level {level} lets a runtime round {rounded}"


def _get_dtype(node: ir.Node, index: int) -> ir.DataType | None:
    value = get_input(node, index)
    return None if value is None else get_dtype(value)


def _read_array(node: ir.Node, index: int) -> Array:
    return read_array(require_input(node, index))


def _get_shape(value: ir.Value) -> tuple[int | None, ...] | None:
    """Return the sizes of a value, None for those that are not known; None if the rank is not."""
    if value.const_value is not None and is_constant(value):
        return tuple(value.const_value.shape.numpy())
    if value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)


def get_dtype_name(dtype: ir.DataType | None) -> str:
    if dtype is None:
        return "of an unknown type"
    return "float32" if dtype == _FLOAT else dtype.name.lower()
