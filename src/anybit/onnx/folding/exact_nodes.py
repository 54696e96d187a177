# SPDX-License-Identifier: Apache-2.0
"""Outputs of Gemm, MatMul and Split for constants, if they have the same bits on every machine."""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, read_array
from anybit.onnx.graph.op_traits import is_onnx_op

_MOST_PRODUCTS = 2**22
_EXACT_INTEGERS = 2**24
"""Sums of integers up to this one are exact in float32, in any order."""
_SIZES_ARE_INPUT = 13
"""The first opset in which the sizes of a Split are an input, not an attribute."""
_EXPONENTS = range(-126, 100)
"""Powers of two by which such sums may be multiplied: neither subnormal nor infinite."""


def is_exact_node(node: ir.Node) -> bool:
    """Return whether this module may evaluate a node."""
    return is_onnx_op(node, "Gemm", "MatMul", "Split")


def evaluate_exactly(node: ir.Node, opset: int, most_bytes: int) -> list[Array] | None:
    """Return the outputs of a node with constant inputs.

    The zeros of a product are positive.

    Args:
        node: A Gemm, MatMul or Split whose inputs are constants.
        opset: The opset of its model.
        most_bytes: The maximal bytes of the outputs.

    Returns:
        None if the order of sums may change the bits, for other types than float32, and if the
        outputs or the computation are too large.
    """
    values = [value for value in node.inputs if value is not None]
    if len(values) < len(node.inputs) or sum(_count_bytes(value) for value in values) > most_bytes:
        return None
    arrays = [read_array(value) for value in values]
    if node.op_type == "Split":
        return _split(node, opset, arrays)
    if not 2 <= len(arrays) <= 3 or any(array.dtype != np.float32 for array in arrays):
        return None
    product = _prepare_gemm(node, arrays) if node.op_type == "Gemm" else arrays
    if product is None or (len(product) > 2 and node.op_type == "MatMul"):
        return None
    a, b, *added = product
    if not (a.ndim and b.ndim) or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        return None
    leading = _broadcast(a.shape[:-2], b.shape[:-2])
    if leading is None:
        return None
    size = math.prod((*leading, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ())))
    too_large = size * 4 > most_bytes or size * a.shape[-1] > _MOST_PRODUCTS
    if too_large or not size or not all(np.isfinite(array).all() for array in arrays):
        return None
    y = _multiply(a, b, *added)
    return None if y is None else [y]


def _count_bytes(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _prepare_gemm(node: ir.Node, arrays: Sequence[Array]) -> list[Array] | None:
    """Return the matrices of a Gemm and its bias; None for factors and invalid shapes."""
    a, b, *added = arrays
    if a.ndim != 2 or b.ndim != 2 or get_attribute(node, "alpha", 1.0) != 1:
        return None
    if added and get_attribute(node, "beta", 1.0) != 1:
        return None
    a = a.T if get_attribute(node, "transA", 0) else a
    b = b.T if get_attribute(node, "transB", 0) else b
    shape = a.shape[0], b.shape[1]
    if added and _broadcast(added[0].shape, shape) != shape:
        return None
    return [a, b, *added]


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _multiply(a: Array, b: Array, c: Array | None = None) -> Array | None:
    """Return a @ b + c if all sums are exact; None otherwise."""
    if not (a.any() and b.any()):
        y = np.matmul(a, b)
        return np.asarray(np.abs(y) if c is None else np.abs(y) + c)
    a_unit, b_unit = _find_unit(a), _find_unit(b)
    unit = a_unit + b_unit
    x = np.ldexp(a.astype(np.float64), -a_unit)
    w = np.ldexp(b.astype(np.float64), -b_unit)
    added = np.zeros(()) if c is None else np.ldexp(c.astype(np.float64), -unit)
    largest = np.matmul(np.abs(x), np.abs(w)) + np.abs(added)
    whole = np.array_equal(added, np.rint(added))
    if not whole or unit not in _EXPONENTS or largest.max(initial=0) > _EXACT_INTEGERS:
        return None
    return np.asarray(np.ldexp(np.matmul(x, w) + added, unit).astype(np.float32) + np.float32(0))


def _find_unit(x: Array) -> int:
    """Return the exponent of the largest power of two that divides all numbers, not all zero."""
    mantissas, exponents = np.frexp(x[x != 0].astype(np.float64))
    integers = np.ldexp(mantissas, 24).astype(np.int64)
    zeros = np.log2(integers & -integers).astype(np.int64)
    return int((exponents - 24 + zeros).min())


def _split(node: ir.Node, opset: int, arrays: Sequence[Array]) -> list[Array] | None:
    if not arrays or arrays[0].dtype == object:  # invalid, or strings
        return None
    x, *more = arrays
    axis, count = get_attribute(node, "axis", 0), len(node.outputs)
    if not -x.ndim <= axis < x.ndim:
        return None
    length, declared = x.shape[axis], get_attribute(node, "split", ())
    parts = get_attribute(node, "num_outputs", 0)
    if (declared and opset >= _SIZES_ARE_INPUT) or (more and opset < _SIZES_ARE_INPUT):
        return None  # invalid
    if more or declared:
        sizes = [int(size) for size in (more[0].ravel() if more else declared)]
    elif parts not in (0, count) or (not parts and length % count):
        return None  # invalid
    else:
        part = -(-length // count)
        sizes = [part] * (count - 1) + [length - part * (count - 1)]
    if len(sizes) != count or min(sizes) < 0 or sum(sizes) != length:
        return None
    return [np.ascontiguousarray(part) for part in np.split(x, np.cumsum(sizes)[:-1], axis)]
