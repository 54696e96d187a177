# SPDX-License-Identifier: Apache-2.0
"""Weights of products of codes, less their zero-points.

These may need 9 bits. Input channels with such weights are read twice: their weights are sums of
two 8-bit integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant
from anybit.onnx.qdq.codes.emitter import CODES, Emitter
from anybit.onnx.quantizers.grids import Inexpressible

_MATRIX, _LEAST_CONV_RANK = 2, 3


@dataclass(frozen=True, eq=False)
class Weights:
    """The second factor of a product.

    Attributes:
        floats: Its integers in float32.
        rows: The same, int8, output channels x inputs; None if they are computed.
        axis: The axis of the channels in the first factor.
        channels: The channels of the first factor that it multiplies; None for all in their order.
        codes: The codes of the file, output channels x inputs; None if they are computed.
        integers: The int8 integers of `floats`; None if they are computed.
        axes: The axes of output and input channels in these.
        largest: The largest magnitude of a computed element.
    """

    floats: ir.Value
    rows: Array | None = None
    axis: int = 1
    channels: Array | None = None
    codes: Array | None = None
    integers: Array | None = None
    axes: tuple[int, int] = (0, 1)
    largest: int = 0

    def repeat_channels(self, emitter: Emitter, x: ir.Value) -> ir.Value:
        """Return the first factor with the channels that the weights multiply."""
        if self.channels is None:
            return x
        axis = [ir.AttrInt64("axis", self.axis)]
        return emitter.insert("Gather", [x, emitter.add_constant("channels", self.channels)], axis)


def bound_codes(zeropt: Array) -> int:
    """Return the largest magnitude of a code less its zero-point."""
    limits, zero = np.iinfo(zeropt.dtype), int(zeropt.reshape(()))
    return max(limits.max - zero, zero - limits.min)


def read_weights(
    emitter: Emitter, kind: str, place: int, zeropts: Array, attributes: Sequence[ir.Attr]
) -> Weights:
    """Return the weights of a product.

    Args:
        emitter: The operator.
        kind: The operator of its sums on floats.
        place: Place of the weights.
        zeropts: Their zero-points.
        attributes: Those of the sums.

    Raises:
        Inexpressible: They are not integers of 8 bits, or computed and not the factor of a MatMul.
    """
    if not is_constant(emitter.get_value(place, "weights")):
        if kind != "MatMul" or zeropts.size != 1:
            raise Inexpressible("its weights are computed: quantize with static ones")
        floats = emitter.read_integers(place, zeropts.reshape(()))
        return Weights(floats, largest=bound_codes(zeropts))
    codes = emitter.read_constant(place, "weights")
    if codes.dtype not in CODES or zeropts.dtype != codes.dtype:
        raise Inexpressible(f"its weights are {codes.dtype}: quantize them to 8 bits")
    if codes.ndim < (_LEAST_CONV_RANK if kind == "Conv" else _MATRIX) or not codes.size:
        raise Inexpressible(f"its weights have the shape {list(codes.shape)}")
    outer_first = kind == "Conv" or any(a.name == "transB" and a.as_int() for a in attributes)
    outer, inner = (0, 1) if outer_first else (codes.ndim - 1, codes.ndim - 2)
    if zeropts.size not in (1, codes.shape[outer]):
        raise Inexpressible("its weights do not have one zero-point, or one per output channel")
    shape = [1] * codes.ndim
    shape[outer] = zeropts.size
    integers = codes.astype(np.int32) - zeropts.astype(np.int32).reshape(shape)
    groups = get_attribute(emitter.node, "group", 1) if kind == "Conv" else 1
    small, channels = _split(integers, inner, groups)
    rows, raw = (
        np.moveaxis(array, outer, 0).reshape(codes.shape[outer], -1) for array in (small, codes)
    )
    axis = -1 if kind == "MatMul" else 1
    return Weights(
        emitter.dequantize_weights(small), rows, axis, channels, raw, small, (outer, inner)
    )


def _split(integers: Array, axis: int, groups: int) -> tuple[Array, Array | None]:
    """Return int8 weights, and the channels that they multiply if some are read twice.

    Raises:
        Inexpressible: Two 8-bit integers are too few.
    """
    limits = np.iinfo(np.int8)
    first = np.clip(integers, limits.min, limits.max)
    rest = integers - first
    others = tuple(other for other in range(rest.ndim) if other != axis)
    wide = np.flatnonzero(rest.any(axis=others))
    if not wide.size:
        return first.astype(np.int8), None
    if rest.max() > limits.max:
        raise Inexpressible(
            f"its weights less their zero-points reach {integers.max()}: "
            "quantize weights symmetrically"
        )
    count = integers.shape[axis]
    group = np.concatenate([np.arange(count), wide])
    channels = (np.arange(groups)[:, None] * count + group).ravel()
    both = np.concatenate([first, np.take(rest, wide, axis)], axis)
    return both.astype(np.int8), channels.astype(np.int64)
