# SPDX-License-Identifier: Apache-2.0
"""Proofs that sums of pairs of 8-bit products fit in 16 bits, in any integer kernel.

x86 CPUs with AVX2 or AVX-512 but without VNNI multiply unsigned by signed bytes and add two
neighbouring products with saturation to 16 bits (vpmaddubsw). ARM CPUs without dot product
instructions add the products k and k + 8 of two signed bytes in 16 bits (smull, smlal). Which
products are neighbours depends on the kernel, its layout of the weights and the order of im2col.
So the proof covers every pair of products of a sum.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import is_quantize, read_scaling

_LOWEST, _HIGHEST = -(2**15), 2**15 - 1
_LARGEST_SUM = 2**31 - 1
_SHIFT = 128
_LARGEST_CODE = 2**8 - 1
_PAIR = 2


@dataclass(frozen=True)
class CodeSpan:
    """The range of 8-bit codes, including both ends."""

    lowest: int
    highest: int
    signed: bool

    def forms(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges of codes in kernels that add pairs of products.

        On x86 they are unsigned bytes: 128 is added to signed ones. On ARM only signed bytes are
        added in pairs.
        """
        own = (self.lowest, self.highest)
        return (own, (self.lowest + _SHIFT, self.highest + _SHIFT)) if self.signed else (own,)


BYTES = {ir.DataType.INT8: CodeSpan(-128, 127, True), ir.DataType.UINT8: CodeSpan(0, 255, False)}
"""The types that integer kernels multiply."""


def fits_accumulators(activations: CodeSpan, weights: Array) -> bool:
    """Return whether no pair of products leaves 16 bits, and no sum 32.

    Args:
        activations: The codes of the first operand.
        weights: The codes of the second, of shape (terms, sums).
    """
    if weights.size == 0:
        return True
    terms = weights.shape[0]
    # A product is largest for an extreme weight: two at either end of each sum suffice.
    ends = sorted({0, min(1, terms - 1), max(terms - 2, 0), terms - 1})
    extremes = np.partition(weights, ends, axis=0)[ends].astype(np.int64)
    largest = terms * int(np.abs(extremes).max())
    return all(_fits_form(form, extremes, largest) for form in activations.forms())


def _fits_form(form: tuple[int, int], extremes: Array, largest: int) -> bool:
    products = np.stack([code * extremes for code in form])
    # 0: the padding of an odd number of terms, and the product of a code of 0.
    upper = np.sort(np.maximum(products.max(0), 0), axis=0)[-2:].sum(axis=0)
    lower = np.sort(np.minimum(products.min(0), 0), axis=0)[:2].sum(axis=0)
    fits = upper.max() <= _HIGHEST and lower.min() >= _LOWEST
    return bool(fits and largest * max(map(abs, form)) <= _LARGEST_SUM)


def is_exact_product(node: ir.Node, left: ir.Node, right: ir.Node) -> bool:
    """Return whether the integer sums of a MatMul of two DequantizeLinear overflow on no CPU."""
    direct = node.inputs[0] is left.outputs[0] and node.inputs[1] is right.outputs[0]
    activations = _find_code_span(left)
    if not direct or activations is None or not _has_one_scale(left):
        return False
    codes = right.inputs[0]
    if codes is None or get_code_type(right) not in BYTES:
        return False
    if is_constant(codes):
        weights = read_array(codes)
        if weights.ndim != 2 or not _has_scales_of_sums(right):
            return False
        return fits_accumulators(activations, weights)
    shape, bounds = codes.shape or right.outputs[0].shape, _find_code_span(right)
    terms = shape[-2] if shape is not None and len(shape) > 1 else None
    if not isinstance(terms, int) or bounds is None or not _has_one_scale(right):
        return False
    ends = np.repeat([bounds.lowest, bounds.highest], 2).reshape(-1, 1)
    sums = terms * max(abs(bounds.lowest), abs(bounds.highest))
    return all(_fits_form(form, ends, sums) for form in activations.forms())


def _find_code_span(dequantize: ir.Node) -> CodeSpan | None:
    """Return the range of computed 8-bit codes: that of a Clip before the node, or of the type."""
    dtype = get_code_type(dequantize)
    codes = dequantize.inputs[0]
    if dtype not in BYTES or codes is None:
        return None
    whole = BYTES[dtype]
    clip = codes.producer()
    if not is_onnx_op(clip, "Clip") or len(clip.inputs) != 3:
        return whole
    limits = [value for value in clip.inputs[1:] if value is not None and is_constant(value)]
    if len(limits) != 2:
        return whole
    low, high = (read_array(limit) for limit in limits)
    if low.size != 1 or high.size != 1 or low.reshape(()) > high.reshape(()):
        return whole
    return CodeSpan(int(low.reshape(())), int(high.reshape(())), whole.signed)


def _has_one_scale(dequantize: ir.Node) -> bool:
    return all(
        value is None or (is_constant(value) and read_array(value).size == 1)
        for value in dequantize.inputs[1:]
    )


def _has_scales_of_sums(dequantize: ir.Node) -> bool:
    """Return whether constant weights have one scale, or one per column."""
    try:
        layout = read_scaling(dequantize, get_code_type(dequantize), blocks=True).layout
    except (Inexpressible, ModelError):
        return False
    return layout.axis in (None, -1) and not layout.block


def get_code_type(node: ir.Node) -> ir.DataType | None:
    """Return the type of the codes of a QuantizeLinear or DequantizeLinear, None if not known.

    The zero-point has the same type: files need not declare inner types.
    """
    for value in (node.outputs[0] if is_quantize(node) else node.inputs[0], *node.inputs[2:3]):
        declared = None if value is None else value.dtype
        if value is not None and value.const_value is not None:
            declared = value.const_value.dtype
        if declared is not None:
            return declared
    if is_quantize(node):
        stated = get_attribute(node, "output_dtype", 0)
        return ir.DataType(stated) if stated else ir.DataType.UINT8
    codes = node.inputs[0]
    producer = None if codes is None else codes.producer()
    if producer is not None and producer.op_type == "Clip" and producer.inputs:
        producer = None if producer.inputs[0] is None else producer.inputs[0].producer()
    return get_code_type(producer) if producer is not None and is_quantize(producer) else None


def may_saturate_codes(rows: Array) -> bool:
    """Return whether two products of uint8 codes and int8 weights of a row can exceed 16 bits.

    A kernel multiplies raw codes in its own order of the reduction axis: any two weights of a
    channel may be neighbours.
    """
    if rows.shape[1] < _PAIR:
        return False
    ordered = np.partition(rows.astype(np.int64), [1, -2], axis=1)
    lowest, highest = np.minimum(ordered[:, :2], 0), np.maximum(ordered[:, -2:], 0)
    low, high = int(lowest.sum(axis=1).min()), int(highest.sum(axis=1).max())
    return _LARGEST_CODE * high > _HIGHEST or _LARGEST_CODE * low < _LOWEST
