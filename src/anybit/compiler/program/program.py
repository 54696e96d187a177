# SPDX-License-Identifier: Apache-2.0
"""Programs of integer regions: their records and what these mean.

One half of a pair: `_native/lowbit/program.hpp` declares the same records for the kernels, and a
test compares the two. `reference.py` computes them in NumPy, `encoding.py` writes them down.

A program works on rows, one per index of the first axis of its inputs; rows are independent.
Between its ports it has tensors of codes: height x width x channels per row, where a code is
`lowest + step * index` for an index in [0, levels). How a machine stores them, in bytes or in
planes of bits, is not part of a program. It may have tensors of float32, too.

Arrays of float32 are numbered: first the inputs, then the tensors, then the outputs. Targets count
from the first tensor.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

MOST_LEVELS = 256  # of a tensor: an index is stored in a byte
MOST_PIECES = 512  # of a channel: two for every index
MOST_SHIFT = 2**20  # float32 holds the integers that are rounded and shifted
MOST_RIGHT_SHIFT = 51  # an index shifted left as far, less a product or a term, fits 64 bits
MOST_ASYMMETRIC_BLOCK = 2**14  # kernels write a sum of its codes as two integers of 16 bits
MOST_TERM = 2**62  # added to a product of two integers of 32 bits, it fits 64 bits

Floats: TypeAlias = npt.NDArray[np.float32]
Integers: TypeAlias = npt.NDArray[np.int32]
Bytes: TypeAlias = npt.NDArray[np.uint8]


class Operation(IntEnum):
    """A function of a float32 y and an operand c, each one IEEE operation."""

    ADD = 0
    """y + c"""
    SUBTRACT = 1
    """y - c"""
    SUBTRACT_FROM = 2
    """c - y"""
    MULTIPLY = 3
    """y * c"""
    DIVIDE = 4
    """y / c"""
    MAXIMUM = 5
    """y if y > c else c; NaN stays"""
    MINIMUM = 6
    """y if y < c else c; NaN stays"""
    KEEP = 7
    """y, which is kept besides; before that 0 is. Operands of this one and the next are not read"""
    ADD_KEPT = 8
    """y + what is kept"""
    MULTIPLY_KEPT = 9
    """y * what is kept"""
    SIGMOID = 10
    """1 / (1 + exp(-y)), by the operations of `reference.py`. Its operand is not read"""
    GELU = 11  # y * (1 + erf(y / sqrt 2)) / 2, likewise


@dataclass(frozen=True, eq=False)
class Step:
    """One operation, with one operand or one per channel."""

    operation: int
    operands: Floats


@dataclass(frozen=True, eq=False)
class Port:
    """An array of float32 that goes in or comes out.

    Attributes:
        sizes: The sizes after the first axis; their product is height * width * channels.
        channels_first: Whether a row lies as channels x height x width, and not as height x width
            x channels.
    """

    sizes: Integers
    height: int
    width: int
    channels: int
    channels_first: int


@dataclass(frozen=True, eq=False)
class Tensor:
    """Codes between the instructions: `lowest + step * index` for an index in [0, levels)."""

    height: int
    width: int
    channels: int
    lowest: int
    step: int
    levels: int


@dataclass(frozen=True, eq=False)
class FloatTensor:
    """Float32 numbers between the instructions, height x width x channels."""

    height: int
    width: int
    channels: int


@dataclass(frozen=True, eq=False)
class Thresholds:
    """index = the number of thresholds of the channel that direction * accumulator reaches.

    Attributes:
        directions: 1 or -1 per channel.
        thresholds: levels - 1 per channel, ascending, channel by channel.
    """

    directions: Integers
    thresholds: Integers


@dataclass(frozen=True, eq=False)
class Affine:
    """index = rint(float32(accumulator) * gain + offset) + shift, saturated to the levels.

    The arithmetic is that of float32, with a rounding each; gains and offsets are per channel, and
    the shift is at most MOST_SHIFT, up or down. Ties go to the even number before the shift, which
    is the index of a code of 0 where the graph rounds codes.
    """

    gains: Floats
    offsets: Floats
    shift: int


@dataclass(frozen=True, eq=False)
class Table:
    """index = the entry of the channel at (accumulator - first of the channel).

    All channels have the same number of entries, which cover every accumulator there can be.
    """

    first: Integers
    entries: Bytes


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """A float32 result: float32(accumulator) * scale of the channel, then the steps in turn."""

    scales: Floats
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Rounded:
    """index = rint(y) + shift, saturated to the levels, where y is what an `Arithmetic` gives.

    The shift is at most MOST_SHIFT, up or down; NaN has the index 0.
    """

    scales: Floats
    steps: tuple[Step, ...]
    shift: int


@dataclass(frozen=True, eq=False)
class Scaled:
    """index = y >> right_shift, saturated to the levels, for y = accumulator * multiplier + term.

    All numbers are integers, and 64 bits hold them for every accumulator. If bit k of `late` is
    set, the first accumulator with index k has one less: the bits of y that are shifted out are
    less than the magnitude of the multiplier there.

    Attributes:
        multipliers: One per channel; the index falls where one is negative.
        terms: Two words per channel, the lower 32 bits first, within +-MOST_TERM. They include what
            rounds.
        right_shifts: One per channel, at most MOST_RIGHT_SHIFT.
        late: A bit per level, channel by channel without gaps, the first in the lowest bit: steps
            that come one accumulator later, such as where ties go to even numbers. Or empty.
    """

    multipliers: Integers
    terms: Integers
    right_shifts: Bytes
    late: Bytes


@dataclass(frozen=True, eq=False)
class Piecewise:
    """index = entry n of the channel, where n is the number of its starts the accumulator reaches.

    Attributes:
        starts: The first accumulators of all pieces but the first, ascending, channel by channel.
        entries: The index of each piece. All channels have the same number, at most MOST_PIECES.
    """

    starts: Integers
    entries: Bytes


Epilogue: TypeAlias = Thresholds | Affine | Table | Arithmetic | Rounded | Scaled | Piecewise
"""Epilogue of an accumulator."""


@dataclass(frozen=True, eq=False)
class Window:
    """The elements that a convolution or pooling combines.

    Outside the tensor there are codes of 0 for a product, and no elements for a pooling.
    """

    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    dilation_height: int
    dilation_width: int
    pad_top: int
    pad_left: int
    pad_bottom: int
    pad_right: int


@dataclass(frozen=True, eq=False)
class Quantize:
    """index = the number of thresholds that x reaches, or the levels less that; float32 to codes.

    Attributes:
        source: Floats: an input, or others that have been written.
        target: A tensor.
        directions: 1 or -1, one or one per channel: -1 where the index falls as x grows.
        thresholds: levels - 1, ascending, for all channels or for each. `x >= threshold` counts;
            infinities are numbers like others.
        nan: The index of NaN; -1 where NaN is an error.
        factors, offsets: Numbers by which x is multiplied first, and that are added then, one per
            channel, each result rounded to float32; or none of either. With these, thresholds and
            direction are those of all channels. No factor is 0.
    """

    source: int
    target: int
    directions: Integers
    thresholds: Floats
    nan: int
    factors: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    offsets: Floats = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(frozen=True, eq=False)
class Product:
    """accumulator = the sum of code * weight over a window and the channels of a group.

    Attributes:
        source: A tensor.
        target: A tensor; with an `Arithmetic` epilogue floats.
        window: The window; 1 x 1 for a matrix product.
        groups: The number of groups of channels, of the source and of the target.
        weight_bits: The size of a weight's index, 1 to 8.
        weights: The indices without gaps, the first in the lowest bits, in the order target
            channel, kernel row, kernel column, source channel of the group.
        values: The weight of each index, within -128..127: at most 2^weight_bits.
        epilogue: Epilogue of the accumulator.
    """

    source: int
    target: int
    window: Window
    groups: int
    weight_bits: int
    weights: Bytes
    values: Integers
    epilogue: Epilogue


@dataclass(frozen=True, eq=False)
class MaxPool:
    """The largest index of a window, channel by channel."""

    source: int
    target: int
    window: Window


@dataclass(frozen=True, eq=False)
class Lookup:
    """index = the entry at the source's index, of one table or of one per channel."""

    source: int
    target: int
    entries: Bytes


@dataclass(frozen=True, eq=False)
class Combine:
    """index = the entry at (first's index * second's levels + second's index).

    There is one table, or one per channel; both sources have the height and width of the target,
    and its channels or one.
    """

    first: int
    second: int
    target: int
    entries: Bytes


@dataclass(frozen=True, eq=False)
class Gather:
    """target[h, w, first_channel + c] = source[rows[h], columns[w], channels[c]].

    An index of -1 takes the element `fill`. The codes are the same. Several may fill one target.
    """

    source: int
    target: int
    rows: Integers
    columns: Integers
    channels: Integers
    first_channel: int
    fill: int


@dataclass(frozen=True, eq=False)
class Reshape:
    """The same elements in the same order with other sizes; the codes are the same, too.

    The order is channels x height x width with `channels_first`, else height x width x channels.
    """

    source: int
    target: int
    source_channels_first: int
    target_channels_first: int


@dataclass(frozen=True, eq=False)
class Dequantize:
    """y = the value at the index, of one list of values or of one per channel."""

    source: int
    target: int
    values: Floats


@dataclass(frozen=True, eq=False)
class _PairArithmetic:
    first: int
    second: int
    target: int
    zeros: Integers
    gains: Floats
    offset: Floats
    divisor: Floats
    shift: int
    lowest: int
    highest: int


@dataclass(frozen=True, eq=False)
class Add(_PairArithmetic):
    """index = rint((first * gains[0] + second * gains[1]) / divisor + offset) + shift.

    First and second are indices less the zero of each. Sources are those of a `Combine`, arithmetic
    and shift those of an `Affine`; the divisor is positive. Results stay within lowest..highest;
    NaN is the lowest.
    """


@dataclass(frozen=True, eq=False)
class Multiply(_PairArithmetic):
    """index = rint((first * gains[0]) * (second * gains[1]) / divisor + offset) + shift.

    All else is as for an `Add`.
    """


@dataclass(frozen=True, eq=False)
class Elementwise:
    """y = first (operation) second, then the steps in turn; all are float32.

    First has the sizes of the target, second these or sizes of 1 x 1, and the channels of the
    target or one.

    Attributes:
        first, second: Floats: inputs, or others that have been written. Without a second, which is
            -1 then, y = first.
        target: Floats.
        operation: An Operation that reads an operand.
        steps: Operations with constants.
    """

    first: int
    second: int
    target: int
    operation: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class DynamicScale:
    """y = min(max(w, least) / steps, most), or infinity if w is infinite; float32 throughout.

    w is the largest |x|; if asymmetric the largest max(x, 0) less the smallest min(x, 0). NaN
    counts as infinity.

    Attributes:
        source: Floats.
        target: Floats of one channel: with the height and width of the source there is a number
            for each pixel, over its channels; with one pixel a number for all of a row.
        asymmetric: Whether w has both ends of the range.
        steps, least, most: One positive number each.
    """

    source: int
    target: int
    asymmetric: int
    steps: Floats
    least: Floats
    most: Floats


@dataclass(frozen=True, eq=False)
class DynamicZero:
    """y = rint(lowest - min(x, 0) / scale) within lowest..highest, over the elements of a scale.

    NaN among the x counts as -infinity, and a y of NaN is the lowest.

    Attributes:
        source: Floats.
        scale: Floats with the sizes of a `DynamicScale`.
        target: Floats of the same sizes.
    """

    source: int
    scale: int
    target: int
    lowest: int
    highest: int


@dataclass(frozen=True, eq=False)
class DynamicQuantize:
    """code = rint(x / scale + zero), saturated to the codes; float32 to codes.

    NaN becomes the code of the zero-point: rint(zero), saturated. So do channels that the source
    does not have; they let a product subtract the zero-point times the sum of its weights.

    Attributes:
        source: Floats.
        scale, zero: Floats as of a `DynamicScale`; zero is -1 for 0 without further channels.
        target: A tensor whose step is 1.
        rounds_first: Whether code = rint(x / scale) + rint(zero), saturated; NaN is the lowest.
        channels: For each code the channel of the source, or -1 for a zero-point; or empty.
    """

    source: int
    scale: int
    zero: int
    target: int
    rounds_first: int
    channels: Integers = field(default_factory=lambda: np.zeros(0, np.int32))


@dataclass(frozen=True, eq=False)
class MatMul:
    """accumulator = the sum of code * code along the depth: products of matrices, group by group.

    A view numbers the elements of a tensor, which lie in the order height x width x channels: its
    start, then the distances between groups, between rows of the first or columns of the second
    operand, and along the depth.

    Attributes:
        first, second: Tensors whose codes fit 16 bits.
        target: A tensor; with an `Arithmetic` epilogue floats. It holds groups x rows x columns,
            with the columns as channels.
        groups, rows, columns, depth: The sizes: groups of rows x depth times depth x columns.
        first_view, second_view: The views of the operands, four numbers each.
        merges: Whether the target holds rows x groups x columns, with the last two as channels.
        epilogue: Epilogue of the accumulator.
    """

    first: int
    second: int
    target: int
    groups: int
    rows: int
    columns: int
    depth: int
    first_view: Integers
    second_view: Integers
    merges: int
    epilogue: Epilogue


@dataclass(frozen=True, eq=False)
class Softmax:
    """y = exp(x - m) / sum of exp(x - m) over the channels of a pixel, where m is the largest x.

    The exponential function is that of `reference.py`, and sums have its order.
    """

    source: int
    target: int


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """y = (x - mean) * (1 / sqrt(variance + epsilon)) * gain + offset over all channels of a pixel.

    Mean and variance are sums in the order of `reference.py`, divided by the number of channels.
    There is a gain and an offset per channel, and one epsilon.
    """

    source: int
    target: int
    gains: Floats
    offsets: Floats
    epsilon: Floats


@dataclass(frozen=True, eq=False)
class SpatialMean:
    """y = the sum of x over all pixels / their number, as in `reference.py`: one pixel."""

    source: int
    target: int


@dataclass(frozen=True, eq=False)
class BlockProduct:
    """y = 0 + float32(accumulator) * scale + ..., block by block of the channels of a pixel.

    The accumulator of a block is the sum of (code - zero) * weight over its channels. Blocks follow
    in ascending order, and each product and each sum is rounded to float32.

    Attributes:
        source: A tensor whose step is 1.
        zero: Floats of zero-points as of a `DynamicQuantize`, of the tensor's codes; -1 for 0.
        target: Floats with the height and width of the source.
        block: The channels of a block; the last one may have fewer.
        lowest: The weight of the index 0; others follow in steps of 1.
        weight_bits, weights: Indices as of a `Product`: target channel, source channel.
        scales: One per target channel and block.
    """

    source: int
    zero: int
    target: int
    block: int
    lowest: int
    weight_bits: int
    weights: Bytes
    scales: Floats


@dataclass(frozen=True, eq=False)
class AsymmetricBlockProduct:
    """A `BlockProduct` whose weights are indices less the zero-point of their block.

    There is a zero-point per target channel and block; they are packed as the indices. A block has
    at most MOST_ASYMMETRIC_BLOCK channels.
    """

    source: int
    zero: int
    target: int
    block: int
    weight_bits: int
    weights: Bytes
    zero_points: Bytes
    scales: Floats


_OnCodes: TypeAlias = Quantize | Product | MaxPool | Lookup | Combine | Gather | Reshape
_Arithmetic: TypeAlias = Dequantize | Add | Multiply | Elementwise
_Dynamic: TypeAlias = DynamicScale | DynamicZero | DynamicQuantize | MatMul | Softmax | LayerNorm
Instruction: TypeAlias = (
    _OnCodes | _Arithmetic | _Dynamic | SpatialMean | BlockProduct | AsymmetricBlockProduct
)

# Their places are their numbers in an encoded program.
INSTRUCTIONS: tuple[type[Any], ...] = get_args(Instruction)
EPILOGUES: tuple[type[Any], ...] = get_args(Epilogue)


@dataclass(frozen=True, eq=False)
class Program:
    """A region: instructions in an order in which they can run.

    Every tensor and every output is written before it is read, and by one instruction only, but
    for those that several `Gather` fill. Programs of version 2 have no `floats`.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    tensors: tuple[Tensor, ...]
    instructions: tuple[Instruction, ...]
    floats: tuple[FloatTensor, ...] = ()
