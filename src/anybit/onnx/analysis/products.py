# SPDX-License-Identifier: Apache-2.0
"""One sum of products: its accumulators, and whether float32 computes it exactly."""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.carriers import Carrier
from anybit.onnx.analysis.layouts import Layout
from anybit.onnx.graph.constants import Array


@dataclass(frozen=True, eq=False)
class Accumulator:
    """The integers that a sum of (code - zeropt) * (weight code - weight zeropt) can be.

    They count steps of (scale of x) * (scale of the weight). A bias is not among them.

    Attributes:
        lowest, highest: One of each per channel of the result, for the weights that are there.
        any_lowest, any_highest: The same for whichever weights and x of their types.
    """

    lowest: Array
    highest: Array
    any_lowest: int
    any_highest: int

    @property
    def bits(self) -> int:
        """The width of an integer that holds all of them, in two's complement if it has a sign."""
        return bits_of(int(self.lowest.min(initial=0)), int(self.highest.max(initial=0)))

    @property
    def any_bits(self) -> int:
        return bits_of(self.any_lowest, self.any_highest)


def bits_of(lowest: int, highest: int) -> int:
    """The width of an integer that holds a range which has 0: without a sign if it needs none."""
    if lowest >= 0:
        return max(1, highest.bit_length())
    return max(highest.bit_length(), (-lowest - 1).bit_length()) + 1


@dataclass(frozen=True, eq=False)
class Sum:
    """How a sum of products fares in float32.

    Attributes:
        unit: Per channel of the result: the exponent of the power of two that products and bias
            are multiples of; None if they are of none.
        longest: Per channel: the largest sum of magnitudes, in such units; in values without.
        reach: Per channel: the same in values, the bias included.
        off: A scale that is not a power of two; None if there is none.
        bias: An element of the bias that makes the sum too long, because it lies between the steps
            of the products; None if there is none.
        terms: Per channel: how many products there are at most that are not 0.
    """

    unit: Array | None
    longest: Array
    reach: Array
    terms: Array
    off: float | None = None
    bias: float | None = None


@dataclass(frozen=True, eq=False)
class ProductAnalysis:
    """A node that adds up products.

    Attributes:
        node: Conv, ConvTranspose, Gemm or MatMul.
        layout: Where x, the weight and the bias are, and how the weight lies.
        x, weight, bias: What is known of them; None if nothing is, or there is none.
        codes: Weight code - zero-point, int32 in the weight's own shape; None if the weight is
            not constant, or not on a grid.
        scale: The scale of the weight, float32: 0-d, or one per channel of the result.
        accumulator: None if x or the weight has no codes, or x has several scales in one sum.
        error: Per channel of the result: by how much any float32 evaluation of the sum, with its
            bias, is off at most, from the exact sum of the values and from the float32 product of
            accumulator and scale, plus bias, where that scale is a normal number; infinite where
            the sum may be; None if nothing is known of x or of the weight.
        exact: Whether every float32 evaluation, in any order, gives the exact sum.
        reason: Why it is not exact; "" if it is.
        macs: Multiplications per inference; None where sizes are not known.
    """

    node: ir.Node
    layout: Layout | None
    x: Carrier | None = None
    weight: Carrier | None = None
    bias: Carrier | None = None
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
        """The bits of x; 32 where it is a float like any other."""
        return 32 if self.x is None or self.x.codes is None else self.x.codes.bits

    @property
    def weight_bits(self) -> int:
        """The bits of the weight; 32 where it is a float like any other."""
        known = self.weight is not None and self.weight.codes is not None
        return self.weight.codes.bits if known else 32  # type: ignore[union-attr]

    @property
    def bops(self) -> int | None:
        """Operations on bits: multiplications times the bits of both factors."""
        return None if self.macs is None else self.macs * self.x_bits * self.weight_bits

    @property
    def sparsity(self) -> float | None:
        """The share of the weight that is 0."""
        if self.codes is None or not self.codes.size:
            return None
        return float(1 - np.count_nonzero(self.codes) / self.codes.size)
