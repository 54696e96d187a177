# SPDX-License-Identifier: Apache-2.0
"""One sum of products: its accumulators, and its exactness in float32."""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.layouts import ProductLayout
from anybit.onnx.graph.constants import Array


@dataclass(frozen=True, eq=False)
class Accumulator:
    """The range of the integers sum((code - zeropt) * (weight code - weight zeropt)).

    Their unit is scale_x * scale_weight. The bias is not included.

    Attributes:
        lowest, highest: One of each per output channel, for the actual weights.
        any_lowest, any_highest: The same for any weights and x of their types.
    """

    lowest: Array
    highest: Array
    any_lowest: int
    any_highest: int

    @property
    def bits(self) -> int:
        """Return the width of the smallest integer type of this range."""
        return count_bits(int(self.lowest.min(initial=0)), int(self.highest.max(initial=0)))

    @property
    def any_bits(self) -> int:
        return count_bits(self.any_lowest, self.any_highest)


def count_bits(lowest: int, highest: int) -> int:
    """Return the width of an integer for a range that includes 0; unsigned if possible."""
    if lowest >= 0:
        return max(1, highest.bit_length())
    return max(highest.bit_length(), (-lowest - 1).bit_length()) + 1


@dataclass(frozen=True, eq=False)
class Sum:
    """The exactness of a sum of products in float32.

    Attributes:
        unit: Per output channel: products and bias are multiples of 2 to this power; None if they
            are not multiples of any.
        longest: Per channel: the largest sum of magnitudes, in these units if there are any.
        reach: Per channel: the same as values, including the bias.
        inexact_scale: A scale that is not a power of two, if any.
        bias: An element of the bias that is not a multiple of the unit of the products and makes
            the sum too long, if any.
        terms: Per channel: the maximal number of nonzero products.
    """

    unit: Array | None
    longest: Array
    reach: Array
    terms: Array
    inexact_scale: float | None = None
    bias: float | None = None


@dataclass(frozen=True, eq=False)
class ProductAnalysis:
    """The analysis of a MatMul-like node.

    Attributes:
        node: Conv, ConvTranspose, Gemm or MatMul.
        layout: The inputs, and the layout of the weight.
        x, weight, bias: Their abstract values; None if unknown or absent.
        codes: Weight code - zero-point, int32 in the weight's own shape; None if the weight is
            not constant, or not on a grid.
        scale: The scale of the weight, float32: 0-d, or one per output channel.
        accumulator: None if x or the weight has no codes, or x has several scales in one sum.
        error: Per output channel: a bound on the error of any float32 evaluation of the sum with
            its bias, relative to the exact sum of the values and to the float32 product of
            accumulator and scale, plus bias, if that scale is a normal number. Infinite if the sum
            may be; None if x or the weight is unknown.
        exact: Whether every float32 evaluation, in any order, is exact.
        reason: The reason why it is not exact; "" if it is.
        macs: Multiplications per inference; None if sizes are unknown.
    """

    node: ir.Node
    layout: ProductLayout | None
    x: AbstractValue | None = None
    weight: AbstractValue | None = None
    bias: AbstractValue | None = None
    codes: Array | None = field(default=None, repr=False)
    scale: Array | None = None
    accumulator: Accumulator | None = None
    sum: Sum | None = None
    error: Array | None = None
    exact: bool = False
    reason: str = ""
    macs: int | None = None

    @property
    def x_bits(self) -> int:
        """Return the bits of x; 32 for an ordinary float."""
        return 32 if self.x is None or self.x.codes is None else self.x.codes.bits

    @property
    def weight_bits(self) -> int:
        """Return the bits of the weight; 32 for an ordinary float."""
        has_codes = self.weight is not None and self.weight.codes is not None
        return self.weight.codes.bits if has_codes else 32  # type: ignore[union-attr]

    @property
    def sparsity(self) -> float | None:
        """Return the share of zeros in the weight."""
        if self.codes is None or not self.codes.size:
            return None
        return float(1 - np.count_nonzero(self.codes) / self.codes.size)
