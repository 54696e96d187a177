# SPDX-License-Identifier: Apache-2.0
"""Sums of products of integers that float32 computes: one node, or parts added in float64."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array
from anybit.onnx.qdq.codes.emitter import Emitter
from anybit.onnx.qdq.codes.weights import Weights
from anybit.onnx.quantizers.grids import Inexpressible

LARGEST_FLOAT_SUM = 2**24
"""float32 holds all integers up to this."""
LARGEST_SUM = 2**31 - 1
_MOST_PARTS = 16


@dataclass(frozen=True, eq=False)
class CodeProduct:
    """A product of integers.

    Attributes:
        kind: The operator of its sums: Conv, MatMul or Gemm.
        x: The first factor, with the channels that the weights multiply.
        weights: The second factor.
        largest: The largest magnitude of an element of x.
        bias: Integers to add, one per output channel; None without any.
        attributes: Those of the operator.
    """

    kind: str
    x: ir.Value
    weights: Weights
    largest: int
    bias: Array | None
    attributes: Sequence[ir.Attr]


def emit_sums(emitter: Emitter, product: CodeProduct) -> tuple[ir.Value, int | None]:
    """Emit the nodes of the sums; return these, and a bound on partial sums, in any order.

    The bound is None if it is unknown. Parts of the input channels have exact sums, float64 adds
    them exactly, and a Cast rounds once, as the runtime rounds its int32 sums.
    """
    bound = _bound_sums(emitter, product)
    if emitter.splits_sums and bound is not None and LARGEST_FLOAT_SUM < bound <= LARGEST_SUM:
        parts = _find_parts(product)
        if parts:
            return _emit_parts(emitter, product, parts), LARGEST_FLOAT_SUM
    inputs = [product.x, product.weights.floats, *_add_bias(emitter, product)]
    return emitter.insert(product.kind, inputs, product.attributes), bound


def _add_bias(emitter: Emitter, product: CodeProduct) -> list[ir.Value]:
    if product.bias is None:
        return []
    return [emitter.add_constant("bias", product.bias.astype(np.float32))]


def _bound_sums(emitter: Emitter, product: CodeProduct) -> int | None:
    weights, largest = product.weights, product.largest
    if weights.rows is not None:
        added = 0 if product.bias is None else np.abs(product.bias.astype(np.int64))
        magnitudes = np.abs(weights.rows.astype(np.int64)).sum(axis=1)
        return int((magnitudes * largest + added).max())
    sizes = emitter.get_sizes(0)
    count = sizes[-1] if sizes else None
    return count * largest * weights.largest if isinstance(count, int) else None


def _find_parts(product: CodeProduct) -> list[slice]:
    """Return ranges of input channels whose sums float32 computes; none if there are not any."""
    integers, axes = product.weights.integers, product.weights.axes
    groups = any(a.name == "group" and a.as_int() != 1 for a in product.attributes)
    if integers is None or groups:
        return []
    others = tuple(axis for axis in range(integers.ndim) if axis not in axes)
    magnitudes = np.abs(integers.astype(np.int64)).sum(axis=others)
    magnitudes = product.largest * (magnitudes.T if axes[0] < axes[1] else magnitudes)
    added = 0 if product.bias is None else np.abs(product.bias.astype(np.int64))
    parts, start, sums = list[slice](), 0, np.zeros(magnitudes.shape[1], np.int64) + added
    for channel, more in enumerate(magnitudes):
        if (sums + more).max() > LARGEST_FLOAT_SUM and channel > start:
            parts.append(slice(start, channel))
            start, sums = channel, np.zeros_like(sums)
        sums = sums + more
        if sums.max() > LARGEST_FLOAT_SUM:
            return []
    parts.append(slice(start, len(magnitudes)))
    return parts if len(parts) <= _MOST_PARTS else []


def _emit_parts(emitter: Emitter, product: CodeProduct, parts: list[slice]) -> ir.Value:
    double, sums = ir.DataType.DOUBLE, list[ir.Value]()
    for part in parts:
        limits = {"start": part.start, "end": part.stop, "axis": product.weights.axis}
        places = [
            emitter.add_constant(role, np.array([number], np.int64))
            for role, number in limits.items()
        ]
        inputs = [emitter.insert("Slice", [product.x, *places]), _take(emitter, product, part)]
        inputs += [] if sums else _add_bias(emitter, product)
        result = emitter.insert(product.kind, inputs, product.attributes)
        sums.append(emitter.cast(result, double))
    add = partial(emitter.insert, "Add", dtype=double)
    return emitter.cast(reduce(lambda total, more: add([total, more]), sums), ir.DataType.FLOAT)


def _take(emitter: Emitter, product: CodeProduct, part: slice) -> ir.Value:
    """Return the floats of the weights of a range of input channels.

    Raises:
        Inexpressible: They are computed.
    """
    integers, numbers = product.weights.integers, np.arange(part.start, part.stop)
    if integers is None:
        raise Inexpressible("its weights are computed")
    return emitter.dequantize_weights(integers.take(numbers, axis=product.weights.axes[1]))
