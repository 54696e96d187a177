# SPDX-License-Identifier: Apache-2.0
"""Products of codes: QLinearConv, QLinearMatMul, QGemm, ConvInteger and MatMulInteger.

ONNX Runtime multiplies float32(int32 sum) by a float32 factor, x_scale * w_scale / y_scale, rounds
half to even, adds the zero-point and saturates.
"""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.qdq.codes.emitter import (
    CHANNELS_LAST,
    ONE,
    CodeScaling,
    Emitted,
    Emitter,
)
from anybit.onnx.qdq.codes.sums import CodeProduct, emit_sums
from anybit.onnx.qdq.codes.weights import Weights, bound_codes, read_weights
from anybit.onnx.qdq.saturation import may_saturate_codes
from anybit.onnx.quantizers.grids import Inexpressible

_EXACT = 2**24
"""float32 holds all integers up to this."""
_LARGEST_SUM = 2**31 - 1
_SATURATED = 2**9
"""A larger result is the largest code, whatever the zero-point."""
_MATRIX = 2


def emit_qlinear_conv(emitter: Emitter) -> Emitted:
    """Emit the nodes of a QLinearConv."""
    if get_attribute(emitter.node, "channels_last", 0):
        raise Inexpressible(CHANNELS_LAST)
    attributes = [a for name, a in emitter.node.attributes.items() if name != "channels_last"]
    return _emit_qlinear(emitter, "Conv", 6, 8, attributes)


def emit_qlinear_matmul(emitter: Emitter) -> Emitted:
    """Emit the nodes of a QLinearMatMul; both factors may be computed."""
    return _emit_qlinear(emitter, "MatMul", 6)


def emit_qgemm(emitter: Emitter) -> Emitted:
    """Emit the nodes of a QGemm, which returns floats without an output scale."""
    node = emitter.node
    if get_attribute(node, "transA", 0) or get_attribute(node, "alpha", 1.0) != 1:
        raise Inexpressible("it has transA, or an alpha other than 1")
    transposed = [ir.AttrInt64("transB", get_attribute(node, "transB", 0))]
    return _emit_qlinear(emitter, "Gemm", 7, 6, transposed)


def emit_integer_product(emitter: Emitter) -> Emitted:
    """Emit the nodes of a ConvInteger or MatMulInteger whose sums are cast to float32."""
    node = emitter.node
    kind = "Conv" if node.op_type == "ConvInteger" else "MatMul"
    readers = {reader for reader, _ in node.outputs[0].uses()}
    casts = [r for r in readers if is_onnx_op(r, "Cast") and get_attribute(r, "to", 0) == 1]
    if node.outputs[0].is_graph_output() or len(casts) != len(readers):
        raise Inexpressible("other nodes than a Cast to float32 read its sums")
    x = emitter.read_integers(0, emitter.read_zeropt(2, "input", codes=0))
    attributes = list(node.attributes.values())
    zeropts = emitter.read_zeropts(3, "weights", codes=1)
    weights = read_weights(emitter, kind, 1, zeropts, attributes)
    if weights.rows is None:
        raise Inexpressible("its weights are computed: quantize with static ones")
    zeropt = emitter.read_zeropt(2, "input", codes=0)
    x = weights.repeat_channels(emitter, x)
    product = CodeProduct(kind, x, weights, bound_codes(zeropt), None, attributes)
    sums, largest = emit_sums(emitter, product)
    return Emitted(
        sums, None, largest_sum=largest, saturates=_may_saturate(weights, zeropt, zeropts)
    )


def _emit_qlinear(
    emitter: Emitter,
    kind: str,
    y: int,
    bias: int | None = None,
    attributes: Sequence[ir.Attr] = (),
) -> Emitted:
    """Emit the nodes of an operator whose first six inputs are x and the weights.

    Args:
        emitter: The operator.
        kind: The operator of its sums on floats.
        y: Place of the scale of its output.
        bias: Place of its bias; None without one.
        attributes: Those of the sums.
    """
    x_scaling = emitter.read_scaling(1, 2, "input")
    zeropts = emitter.read_zeropts(5, "weights")
    factor = x_scaling.scale * emitter.read_scale(4, "scale of the weights")
    scaling = None
    if get_input(emitter.node, y) is not None:
        y_scaling = emitter.read_scaling(y, y + 1, "output")
        factor, scaling = factor / y_scaling.scale, CodeScaling(ONE, y_scaling.zeropt)
    weights = read_weights(emitter, kind, 3, zeropts, attributes)
    channels = 1 if weights.rows is None else len(weights.rows)
    if factor.size not in (1, channels):
        raise Inexpressible(f"the weights have {channels} output channels and {factor.size} scales")
    x = weights.repeat_channels(emitter, emitter.read_integers(0, x_scaling.zeropt))
    error, addend = None, None if bias is None else _read_bias(emitter, bias, channels)
    if addend is not None and weights.rows is not None:
        own = None if scaling is None else factor
        error = _bound_error(weights.rows, x_scaling.zeropt, addend, own)
    product = CodeProduct(kind, x, weights, bound_codes(x_scaling.zeropt), addend, attributes)
    sums, largest = emit_sums(emitter, product)
    multiplier = emitter.add_constant("factor", _lay_out(factor, kind, weights.floats))
    result = emitter.insert("Mul", [sums, multiplier])
    return Emitted(
        result if scaling is None else emitter.quantize(result, scaling),
        scaling,
        error,
        largest_sum=largest,
        saturates=_may_saturate(weights, x_scaling.zeropt, zeropts),
    )


def _lay_out(factor: Array, kind: str, weights: ir.Value) -> Array:
    """Return factors in the shape that broadcasts to the sums."""
    if factor.size == 1:
        return factor.reshape(())
    ones = len(weights.shape or ()) - _MATRIX if kind == "Conv" else 0
    return factor.reshape(-1, *[1] * ones)


def _read_bias(emitter: Emitter, place: int, channels: int) -> Array | None:
    """Return an int32 bias, one number per channel; None without one.

    Raises:
        Inexpressible: It is computed, has another shape, or float32 does not hold it.
    """
    value = get_input(emitter.node, place)
    if value is None:
        return None
    bias = emitter.read_constant(place, "bias")
    row = math.prod(bias.shape[-1:])
    if bias.dtype != np.int32 or bias.size not in (1, channels) or bias.size != row:
        raise Inexpressible(
            f"its bias is {bias.dtype} of shape {list(bias.shape)}: give it one int32 number per "
            f"output channel, of shape [{channels}]"
        )
    largest = int(np.abs(bias.astype(np.int64)).max())
    if largest > _EXACT:
        raise Inexpressible(f"its bias reaches {largest}, beyond 2^24, which float32 rounds")
    return np.broadcast_to(bias.reshape(-1), (channels,))


def _bound_error(weights: Array, zeropt: Array, bias: Array, factor: Array | None) -> Array | None:
    """Return a bound on the rounding of float32 sums, per channel; None if it has no effect.

    The runtime adds the bias to int32 sums and rounds once. float32(sum) + bias equals that up to
    2^24, and saturates beyond if the factor is not very small.

    Raises:
        Inexpressible: Sums with the bias need more than 32 bits.
    """
    limits = np.iinfo(zeropt.dtype)
    lowest, highest = min(limits.min - int(zeropt), 0), max(limits.max - int(zeropt), 0)
    rows, added = weights.astype(np.int64), np.abs(bias.astype(np.int64))
    up, down = np.maximum(rows, 0).sum(axis=1), np.minimum(rows, 0).sum(axis=1)
    most = np.maximum(up * highest + down * lowest, -(up * lowest + down * highest)) + added
    if most.max() > _LARGEST_SUM:
        raise Inexpressible(f"its sums reach {most.max()}, beyond 32 bits")
    smallest = np.zeros(1) if factor is None else factor.astype(np.float64)
    saturates = smallest * (_EXACT - added - 4) >= _SATURATED
    rounds = (most > _EXACT) & ~saturates
    if not rounds.any():
        return None
    return np.where(rounds, 2.0 * np.spacing(most.astype(np.float32)), 0.0)


def _may_saturate(weights: Weights, zeropt: Array, zeropts: Array) -> bool:
    """Return whether two products of uint8 and int8 codes can exceed 16 bits."""
    if zeropt.dtype != np.uint8 or zeropts.dtype != np.int8:
        return False
    return weights.codes is None or may_saturate_codes(weights.codes)
