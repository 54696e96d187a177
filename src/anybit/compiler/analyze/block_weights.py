# SPDX-License-Identifier: Apache-2.0
"""Constant weights with a scale, and perhaps a zero-point, per block of the reduction axis."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.compiler.dynamic_quantizers import find_dynamic_quantizer
from anybit.compiler.program.program import MOST_ASYMMETRIC_BLOCK
from anybit.errors import ModelError
from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.view import get_input
from anybit.onnx.folding.evaluation import evaluate_operator
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import get_dtype, is_dequantize, read_scaling
from anybit.onnx.quantizers.quantizer import OwnQuantizer, find_own_quantizer
from anybit.ops.grids import IntegerGrid

_Parts: TypeAlias = tuple[Array, Array]
_KINDS = ("MatMul", "Gemm")
_MATRIX = 2
_MOST_BITS = 8
_FAST_BITS = 2, 4, 8


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """The weights of a product.

    Attributes:
        codes: Integers less their zero-points, output channel x input channel.
        scales: float32, output channel x block.
        block: The input channels of a block; the last one may have fewer.
        zero_points: Output channel x block, where the codes of blocks begin at different numbers;
            None if all begin at the lowest code.
    """

    codes: Array
    scales: Array
    block: int
    zero_points: Array | None = None

    @property
    def indices(self) -> Array:
        """The codes above the lowest one, or plus the zero-points of their blocks."""
        if self.zero_points is None:
            return np.asarray(self.codes - self.codes.min())
        zeros = np.repeat(self.zero_points, self.block, axis=1)
        return np.asarray(self.codes + zeros[:, : self.codes.shape[1]])

    @cached_property
    def bits(self) -> int:
        """The bits of the indices, which zero-points are packed in, too."""
        largest = [part.max() for part in (self.indices, self.zero_points) if part is not None]
        return max(1, int(max(largest)).bit_length())


def find_block_weights(products: Iterable[ProductAnalysis]) -> dict[str, BlockWeights]:
    """Return the weights of products that have several scales per channel, by their outputs.

    Weights with one scale per channel that need 9 bits are blocks of all input channels, if scales
    of activations are computed, and the codes above the lowest one of a block need fewer.
    """
    weights = {}
    for product in products:
        one_scale = product.codes is not None
        own = None if one_scale and not _is_wide(product) else _find_weights(product)
        fits = own is not None and own.bits <= _MOST_BITS and own.block <= MOST_ASYMMETRIC_BLOCK
        if own is not None and (not one_scale or fits):
            weights[str(product.node.outputs[0].name)] = own
    return weights


def _is_wide(product: ProductAnalysis) -> bool:
    """Return whether weights after a computed scale do not fit 8 bits less their zero-points."""
    x, limits = get_input(product.node, 0), np.iinfo(np.int8)
    producer = None if x is None else x.producer()
    if product.codes is None or not product.codes.size or producer is None:
        return False
    fits = product.codes.min() >= limits.min and product.codes.max() <= limits.max
    return not fits and find_dynamic_quantizer(producer) is not None


def _find_weights(product: ProductAnalysis) -> BlockWeights | None:
    layout = product.layout
    if layout is None or layout.kind not in _KINDS or (layout.x, layout.weight) != (0, 1):
        return None
    weight = get_input(product.node, layout.weight)
    try:
        if weight is None or weight.shape is None or len(weight.shape) != _MATRIX:
            return None
        parts = _read(weight)
        if parts is None or parts[0].shape != tuple(weight.shape):
            return None
        codes, scales = (layout.canonical(part)[0, ..., 0] for part in parts)
    except (Inexpressible, ModelError, Mismatch, ValueError):  # analyses and runtimes report it
        return None
    if not np.isfinite(scales).all():
        return None
    (starts,) = np.nonzero(np.any(scales[:, 1:] != scales[:, :-1], axis=0))
    block = math.gcd(*(starts + 1).tolist()) or codes.shape[1]
    weights = BlockWeights(codes, np.ascontiguousarray(scales[:, ::block]), block)
    return _fit_zero_points(_fit_signs(weights))


def _fit_zero_points(weights: BlockWeights) -> BlockWeights:
    """Return the same weights with zero-points per block if these make them faster.

    Codes of 0..15 less zero-points of 0..15 are in -15..15, but 16 of these in a block. Kernels
    read 2, 4 or 8 bits in one piece: fewer bits in two pieces were slower.
    """
    lowest, highest = _find_ends(weights)
    zeros = np.maximum(-lowest, 0)
    bits = max(1, int((np.maximum(highest, 0) + zeros).max()).bit_length())
    if bits not in _FAST_BITS or bits >= weights.bits or weights.block > MOST_ASYMMETRIC_BLOCK:
        return weights
    return replace(weights, zero_points=zeros)


def _find_ends(weights: BlockWeights) -> tuple[Array, Array]:
    """Return the lowest and the highest code of each block."""
    starts = np.arange(0, weights.codes.shape[1], weights.block)
    ends = np.minimum, np.maximum
    lowest, highest = (end.reduceat(weights.codes, starts, axis=1) for end in ends)
    return lowest, highest


def _fit_signs(weights: BlockWeights) -> BlockWeights:
    """Return the same weights with codes in -8..7 rather than -8..8, and the like.

    A block with the scale -s and the code -8 is that with the scale s and the code 8. ONNX
    Runtime's tool gives the largest magnitude of a block the code -8, by a negative scale.
    """
    codes = weights.codes
    lowest, highest = _find_ends(weights)
    most = int(max(-lowest.min(), highest.max()))
    flipped = highest == most
    if most & (most - 1) or np.any(flipped & (lowest == -most)):
        return weights
    signs = np.where(flipped, -1, 1)
    signed = codes * np.repeat(signs, weights.block, axis=1)[:, : codes.shape[1]]
    fitted = BlockWeights(signed, weights.scales * signs.astype(np.float32), weights.block)
    return fitted if fitted.bits < weights.bits else weights


def _read(value: ir.Value) -> _Parts | None:
    """Return the codes of a constant, and the scale of each of them.

    Raises:
        Inexpressible: Its parameters are rare.
        ModelError: They are invalid.
        ValueError: Its values are not on the grid of its quantizer.
    """
    steps: list[Callable[[_Parts], _Parts | None]] = []
    while (node := value.producer()) is not None:
        step, x = _find_step(node, value), get_input(node, 0)
        if step is None or x is None:
            break
        steps.append(step)
        value = x
    parts = None if node is None else _read_quantizer(node)
    for step in reversed(steps):
        parts = None if parts is None else step(parts)
    return parts


def _find_step(node: ir.Node, y: ir.Value) -> Callable[[_Parts], _Parts | None] | None:
    """Return the effect of a node on codes and scales; None for nodes that compute."""
    bound, move = _find_bound(node), _find_move(node, y)
    if bound is not None:
        return partial(_check_bound, bound)
    return None if move is None else lambda parts: (move(parts[0]), move(parts[1]))


def _check_bound(bound: Array, parts: _Parts) -> _Parts | None:
    """Return codes and scales if no value is above a bound."""
    codes, scales = parts
    return None if np.any(codes.astype(np.float32) * scales > bound) else parts


def _find_bound(node: ir.Node) -> Array | None:
    """Return the constant of a Min, as `anybit.convert` inserts without effect; None for others."""
    bound = get_input(node, 1)
    if not is_onnx_op(node, "Min") or len(node.inputs) != 2 or bound is None:
        return None
    return read_array(bound) if is_constant(bound) else None


def _read_quantizer(node: ir.Node) -> _Parts | None:
    """Return the codes of the results of a node, and their scales; None for other nodes.

    Raises:
        Inexpressible, ModelError, ValueError: As for `_read`.
    """
    if is_dequantize(node):
        x = get_input(node, 0)
        if x is None or not is_constant(x):
            return None
        grid = read_scaling(node, get_dtype(x), blocks=True).grid
        return _split(grid, read_array(x)) if isinstance(grid, IntegerGrid) else None
    own = find_own_quantizer(node)
    return None if own is None else _quantize(own)


def _quantize(own: OwnQuantizer) -> _Parts | None:
    """Return the codes of the results of a quantizer; None unless all of its inputs are constant.

    Raises:
        ModelError, ValueError: As for `_read`.
    """
    grid = own.check_grid() if own.constant and not own.operator.is_dequantizer else None
    if not isinstance(grid, IntegerGrid):
        return None
    arrays = [None if part is None else read_array(part) for part in own.node.inputs]
    return _split(grid, grid.encode(evaluate_operator(own.node, own.operator, arrays), np.int32))


def _split(grid: IntegerGrid, codes: Array) -> _Parts | None:
    """Return codes less their zero-points, and a scale for each; None without integers."""
    zeros = np.rint(grid.zeropt).astype(np.int32)
    if not np.array_equal(zeros, grid.zeropt):
        return None
    wide = codes.astype(np.int32) - zeros
    return wide, np.broadcast_to(grid.scale, codes.shape)


def _find_move(node: ir.Node, y: ir.Value) -> Callable[[Array], Array] | None:
    """Return the data movement of a node with constants; None for other nodes."""
    if is_onnx_op(node, "Transpose"):
        return lambda x: x.transpose(get_attribute(node, "perm", ()) or None)
    if is_onnx_op(node, "Reshape") and y.shape is not None and y.shape.is_static():
        return lambda x: x.reshape([int(str(size)) for size in y.shape or ()])
    constant = all(part is None or is_constant(part) for part in node.inputs[1:])
    if not is_onnx_op(node, "Slice") or not constant:
        return None
    parts = [None if part is None else read_array(part).tolist() for part in node.inputs[1:]]
    starts, ends, axes, steps = (*parts, None, None)[:4]
    if starts is None or ends is None or any(step != 1 for step in steps or ()):
        return None
    ranges = dict(zip(axes or range(len(starts)), map(slice, starts, ends), strict=True))

    def cut(x: Array) -> Array:
        own = {axis % x.ndim: part for axis, part in ranges.items()}
        return x[tuple(own.get(axis, slice(None)) for axis in range(x.ndim))]

    return cut
