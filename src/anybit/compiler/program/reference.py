# SPDX-License-Identifier: Apache-2.0
"""Reference implementation of programs in NumPy, which the kernels equal bit for bit."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anybit.arrays import Array
from anybit.compiler.program import program as p


def run(program: p.Program, inputs: Sequence[Array]) -> list[Array]:
    """Run a program on float32 inputs with the same number of rows, which may be 0.

    Raises:
        ValueError: An instruction refuses NaN.
    """
    rows = len(inputs[0])
    run_ = _Run(program, inputs, rows)
    for instruction in program.instructions:
        getattr(run_, type(instruction).__name__.lower())(instruction)
    return [
        _restore_graph_order(port, y) for port, y in zip(program.outputs, run_.outputs, strict=True)
    ]


class _Run:
    """Indices of each tensor, and the outputs, in rows x height x width x channels."""

    def __init__(self, program: p.Program, inputs: Sequence[Array], rows: int) -> None:
        self.inputs = [
            _move_channels_last(port, x) for port, x in zip(program.inputs, inputs, strict=True)
        ]
        self.tensors = program.tensors
        self.indices = [
            np.zeros((rows, tensor.height, tensor.width, tensor.channels), np.int64)
            for tensor in program.tensors
        ]
        self.outputs = [
            np.zeros((rows, port.height, port.width, port.channels), np.float32)
            for port in program.outputs
        ]
        self.targets = [
            np.zeros((rows, tensor.height, tensor.width, tensor.channels), np.float32)
            for tensor in program.floats
        ] + self.outputs

    def quantize(self, at: p.Quantize) -> None:
        x, tensor = self._floats[at.source], self.tensors[at.target]
        with np.errstate(all="ignore"):
            x = x * at.factors if at.factors.size else x
            x = x + at.offsets if at.offsets.size else x
        steps = tensor.levels - 1
        thresholds = at.thresholds.reshape(at.thresholds.size // steps if steps else 1, steps)
        count = (x[..., None] >= thresholds).sum(axis=-1)
        index = np.where(at.directions > 0, count, tensor.levels - 1 - count)
        nans = np.isnan(x)
        if nans.any() and at.nan < 0:
            raise ValueError("the input has NaN, which the quantizer that reads it keeps")
        self.indices[at.target][:] = np.where(nans, at.nan, index)

    def product(self, at: p.Product) -> None:
        source = self.tensors[at.source]
        codes = source.lowest + source.step * self.indices[at.source]
        arithmetic = isinstance(at.epilogue, p.Arithmetic)
        target = self.targets if arithmetic else self.indices
        channels = target[at.target].shape[-1]
        weights = unpack_weights(at, channels, source.channels)
        inside = source.channels // at.groups
        group_size = channels // at.groups
        sums = np.zeros(target[at.target].shape, np.int64)
        for row, column, taken in _iterate_windows(codes, at.window, sums.shape[1:3], 0):
            for group in range(at.groups):
                outer = slice(group * group_size, (group + 1) * group_size)
                inner = slice(group * inside, (group + 1) * inside)
                sums[..., outer] += taken[..., inner] @ weights[outer, row, column].T
        target[at.target][:] = apply_epilogue(
            at.epilogue, sums, 0 if arithmetic else self.tensors[at.target].levels
        )

    def blockproduct(self, at: p.BlockProduct) -> None:
        indices = self._unpack_block_weights(at)
        self._add_blocks(at, at.lowest + indices)

    def asymmetricblockproduct(self, at: p.AsymmetricBlockProduct) -> None:
        indices = self._unpack_block_weights(at)
        blocks = -(-indices.shape[1] // at.block)
        zeros = unpack_indices(at.zero_points, at.weight_bits, (len(indices), blocks))
        self._add_blocks(at, indices - np.repeat(zeros, at.block, axis=1)[:, : indices.shape[1]])

    def _unpack_block_weights(self, at: p.BlockProduct | p.AsymmetricBlockProduct) -> Array:
        """Return the indices of weights, target channel x source channel."""
        shape = self.targets[at.target].shape[-1], self.tensors[at.source].channels
        return unpack_indices(at.weights, at.weight_bits, shape)

    def _add_blocks(self, at: p.BlockProduct | p.AsymmetricBlockProduct, weights: Array) -> None:
        """Write the sums of scaled accumulators of blocks."""
        source, y = self.tensors[at.source], self.targets[at.target]
        codes = source.lowest + self.indices[at.source]
        if at.zero >= 0:
            bounds = source.lowest, source.lowest + source.levels - 1
            codes = codes - _round_and_saturate(self._floats[at.zero], 0, *bounds)
        starts = range(0, source.channels, at.block)
        y[:] = 0
        for start, scales in zip(starts, at.scales.reshape(len(weights), -1).T, strict=True):
            block = slice(start, start + at.block)
            sums = codes[..., block] @ weights[:, block].T
            with np.errstate(all="ignore"):
                y += sums.astype(np.float32) * scales

    def maxpool(self, at: p.MaxPool) -> None:
        largest = self.indices[at.target]
        largest[:] = -1
        for _, _, taken in _iterate_windows(
            self.indices[at.source], at.window, largest.shape[1:3], -1
        ):
            np.maximum(largest, taken, out=largest)

    def lookup(self, at: p.Lookup) -> None:
        index, levels = self.indices[at.source], self.tensors[at.source].levels
        self.indices[at.target][:] = _look_up(at.entries, index, levels)

    def combine(self, at: p.Combine) -> None:
        levels = self.tensors[at.second].levels
        index = self.indices[at.first] * levels + self.indices[at.second]
        size = self.tensors[at.first].levels * levels
        self.indices[at.target][:] = _look_up(at.entries, index, size)

    def add(self, at: p.Add) -> None:
        first, second = self.indices[at.first], self.indices[at.second]
        self.indices[at.target][:] = add_indices(at, first, second)

    def multiply(self, at: p.Multiply) -> None:
        first, second = self.indices[at.first], self.indices[at.second]
        self.indices[at.target][:] = multiply_indices(at, first, second)

    def gather(self, at: p.Gather) -> None:
        source = self.indices[at.source]
        taken = source[:, at.rows][:, :, at.columns][..., at.channels]
        rows, columns = (at.rows < 0)[:, None, None], (at.columns < 0)[:, None]
        filled = np.where(rows | columns | (at.channels < 0), at.fill, taken)
        last = at.first_channel + len(at.channels)
        self.indices[at.target][..., at.first_channel : last] = filled

    def reshape(self, at: p.Reshape) -> None:
        source, target = self.indices[at.source], self.indices[at.target]
        if at.source_channels_first:
            source = source.transpose(0, 3, 1, 2)
        if not at.target_channels_first:
            target[:] = source.reshape(target.shape)
            return
        rows, height, width, channels = target.shape
        target[:] = source.reshape(rows, channels, height, width).transpose(0, 2, 3, 1)

    def dequantize(self, at: p.Dequantize) -> None:
        index, levels = self.indices[at.source], self.tensors[at.source].levels
        self.targets[at.target][:] = _look_up(at.values, index, levels)

    def matmul(self, at: p.MatMul) -> None:
        first = self._view(at.first, at.first_view, (at.groups, at.rows, at.depth))
        second = self._view(at.second, at.second_view, (at.groups, at.columns, at.depth))
        sums = first @ second.swapaxes(-1, -2)
        if at.merges:
            sums = sums.swapaxes(1, 2)
        arithmetic = isinstance(at.epilogue, p.Arithmetic)
        target = (self.targets if arithmetic else self.indices)[at.target]
        levels = 0 if arithmetic else self.tensors[at.target].levels
        target[:] = apply_epilogue(at.epilogue, sums.reshape(target.shape), levels)

    def _view(self, number: int, view: Array, sizes: tuple[int, ...]) -> Array:
        """Return the codes of a view of a tensor: rows of the batch x groups x lines x depth."""
        tensor, indices = self.tensors[number], self.indices[number]
        places = int(view[0]) + np.tensordot(view[1:].astype(np.int64), np.indices(sizes), axes=1)
        elements = tensor.height * tensor.width * tensor.channels
        codes = tensor.lowest + tensor.step * indices.reshape(len(indices), elements)
        return np.asarray(codes[:, places])

    def softmax(self, at: p.Softmax) -> None:
        self.targets[at.target][:] = compute_softmax(self._floats[at.source])

    def layernorm(self, at: p.LayerNorm) -> None:
        self.targets[at.target][:] = normalize(self._floats[at.source], at)

    def spatialmean(self, at: p.SpatialMean) -> None:
        x = self._floats[at.source]
        rows, height, width, channels = x.shape
        pixels = x.reshape(rows, height * width, channels).swapaxes(1, 2)
        with np.errstate(all="ignore"):
            mean = add_lanes(pixels, _PIXEL_LANES) / np.float32(pixels.shape[-1])
        self.targets[at.target][:] = mean.reshape(rows, 1, 1, channels)

    def elementwise(self, at: p.Elementwise) -> None:
        floats, steps = self._floats, at.steps
        y = floats[at.first]
        if at.second >= 0:
            steps = (p.Step(at.operation, floats[at.second]), *steps)
        with np.errstate(all="ignore"):
            y = apply_steps(steps, y)
        self.targets[at.target][:] = y

    def dynamicscale(self, at: p.DynamicScale) -> None:
        above, below = self._reach(at.source, at.target)
        with np.errstate(over="ignore"):
            width = above + below if at.asymmetric else np.maximum(above, below)
        scale = np.minimum(np.maximum(width, at.least) / at.steps, at.most)
        self.targets[at.target][:] = np.where(np.isinf(width), width, scale)

    def dynamiczero(self, at: p.DynamicZero) -> None:
        _, below = self._reach(at.source, at.target)
        with np.errstate(all="ignore"):
            y = np.float32(at.lowest) - -below / self._floats[at.scale]
        self.targets[at.target][:] = _round_and_saturate(y, 0, at.lowest, at.highest)

    def dynamicquantize(self, at: p.DynamicQuantize) -> None:
        x, scale, tensor = self._floats[at.source], self._floats[at.scale], self.tensors[at.target]
        zero = self._floats[at.zero] if at.zero >= 0 else np.zeros_like(scale)
        bounds = tensor.lowest, tensor.lowest + tensor.levels - 1
        origin = _round_and_saturate(zero, 0, *bounds)
        order = at.channels
        if not order.size:
            order = np.pad(np.arange(x.shape[-1]), (0, tensor.channels), constant_values=-1)
            order = order[: tensor.channels]
        with np.errstate(all="ignore"):
            y = x[..., order] / scale
            if at.rounds_first:
                lowest, highest = (np.float32(bound - origin) for bound in bounds)
                inside = np.clip(np.where(y > lowest, y, lowest), None, highest)
                codes = np.asarray(np.rint(inside), np.int64) + origin
            else:
                y = y + zero
                codes = np.where(np.isnan(y), origin, _round_and_saturate(y, 0, *bounds))
        self.indices[at.target][:] = np.where(order < 0, origin, codes) - tensor.lowest

    @property
    def _floats(self) -> list[Array]:
        return [*self.inputs, *self.targets]

    def _reach(self, source: int, target: int) -> tuple[Array, Array]:
        """Return the largest magnitudes of positive and of negative numbers, where NaN is both."""
        x, pixels = self._floats[source], self.targets[target].shape[1:3]
        axes = (1, 2, 3) if pixels == (1, 1) else (3,)
        nan = np.isnan(x).any(axis=axes, keepdims=True)
        with np.errstate(all="ignore"):
            ends = [np.maximum(side, 0).max(axis=axes, keepdims=True) for side in (x, -x)]
        above, below = (np.where(nan, np.float32(np.inf), end) for end in ends)
        return above, below


def unpack_weights(product: p.Product, channels: int, source_channels: int) -> Array:
    """Return the weights, target channel x kernel row x kernel column x source channel."""
    window = product.window
    shape = (
        channels,
        window.kernel_height,
        window.kernel_width,
        source_channels // product.groups,
    )
    indices = unpack_indices(product.weights, product.weight_bits, shape)
    return np.asarray(product.values.astype(np.int64)[indices])


def unpack_indices(packed: Array, bits: int, shape: tuple[int, ...]) -> Array:
    """Return indices of few bits that lie without gaps, the first in the lowest bits."""
    flags = np.unpackbits(packed, count=math.prod(shape) * bits, bitorder="little")
    indices = flags.reshape(-1, bits).astype(np.int64) @ (1 << np.arange(bits))
    return np.asarray(indices.reshape(shape))


def _iterate_windows(codes: Array, window: p.Window, sizes: tuple[int, ...], outside: int) -> Any:
    """Yield row, column and elements of all windows at the positions of a window."""
    w = window
    padded = np.pad(
        codes,
        ((0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right), (0, 0)),
        constant_values=outside,
    )
    for row in range(w.kernel_height):
        for column in range(w.kernel_width):
            first_row, first_column = row * w.dilation_height, column * w.dilation_width
            yield (
                row,
                column,
                padded[
                    :,
                    first_row : first_row + (sizes[0] - 1) * w.stride_height + 1 : w.stride_height,
                    first_column : first_column
                    + (sizes[1] - 1) * w.stride_width
                    + 1 : w.stride_width,
                ],
            )


def apply_epilogue(epilogue: p.Epilogue, sums: Array, levels: int) -> Array:
    match epilogue:
        case p.Thresholds():
            thresholds = epilogue.thresholds.reshape(sums.shape[-1], levels - 1)
            reached = (sums * epilogue.directions)[..., None] >= thresholds
            return np.asarray(reached.sum(axis=-1))
        case p.Affine():
            return compute_index(epilogue, sums, levels)
        case p.Table():
            entries = epilogue.entries.reshape(sums.shape[-1], -1)
            chosen = entries[np.arange(sums.shape[-1]), sums - epilogue.first]
            return np.asarray(chosen, np.int64)
        case p.Arithmetic():
            return compute_result(epilogue, sums)
        case p.Rounded():
            return round_to_index(compute_result(epilogue, sums), epilogue.shift, levels)
        case p.Scaled():
            return scale_down(epilogue, sums, levels)
        case p.Piecewise():
            return _select_pieces(epilogue, sums)


def scale_down(epilogue: p.Scaled, sums: Array, levels: int) -> Array:
    """Return the indices of accumulators; channels lie along the last axis."""
    shifts = epilogue.right_shifts.astype(np.int64)
    y = sums.astype(np.int64) * epilogue.multipliers + join_words(epilogue.terms)
    index = y >> shifts
    if epilogue.late.size:
        first = y - (index << shifts) < np.abs(epilogue.multipliers.astype(np.int64))
        late = unpack_late(epilogue, levels)
        inside = np.clip(index, 0, levels - 1)
        bits = late[np.arange(sums.shape[-1]), inside]
        index = index - (bits & first & (index == inside))
    return np.asarray(np.clip(index, 0, levels - 1))


def unpack_late(epilogue: p.Scaled, levels: int) -> Array:
    """Return the late bits, channels x levels."""
    channels = epilogue.multipliers.size
    bits = np.unpackbits(epilogue.late, count=channels * levels, bitorder="little")
    return bits.reshape(channels, levels)


def join_words(words: Array) -> Array:
    """Return the int64 numbers of pairs of words, the lower one first."""
    low, high = words.reshape(-1, 2).astype(np.int64).T
    return np.asarray((high << 32) + (low & 0xFFFFFFFF))


def split_words(numbers: Array) -> Array:
    """Return the words of int64 numbers, the lower one of each first."""
    pairs = np.stack([numbers & 0xFFFFFFFF, numbers >> 32 & 0xFFFFFFFF], axis=-1)
    return np.asarray(pairs.astype(np.uint32).view(np.int32).ravel())


def _select_pieces(epilogue: p.Piecewise, sums: Array) -> Array:
    channels = sums.shape[-1]
    starts, entries = epilogue.starts.reshape(channels, -1), epilogue.entries.reshape(channels, -1)
    indices = np.empty(sums.shape, np.int64)
    for channel in range(channels):
        piece = np.searchsorted(starts[channel], sums[..., channel], side="right")
        indices[..., channel] = entries[channel][piece]
    return indices


def compute_index(epilogue: p.Affine, sums: Array, levels: int) -> Array:
    """Return the indices of accumulators; channels lie along the last axis."""
    with np.errstate(all="ignore"):
        y = sums.astype(np.float32) * epilogue.gains + epilogue.offsets
    return np.asarray(np.clip(np.rint(y) + np.float32(epilogue.shift), 0, levels - 1), np.int64)


def round_to_index(y: Array, shift: int, levels: int) -> Array:
    """Return the indices of numbers in steps of the codes."""
    return _round_and_saturate(y, shift, 0, levels - 1)


def add_indices(at: p.Add, first: Array, second: Array) -> Array:
    """Return the indices of sums of two tensors from their indices."""
    with np.errstate(all="ignore"):
        x, other = _scale_operands(at, first, second)
        y = (x + other) / at.divisor[0] + at.offset[0]
    return _round_and_saturate(y, at.shift, at.lowest, at.highest)


def multiply_indices(at: p.Multiply, first: Array, second: Array) -> Array:
    """Return the indices of products of two tensors from their indices."""
    with np.errstate(all="ignore"):
        x, other = _scale_operands(at, first, second)
        y = x * other / at.divisor[0] + at.offset[0]
    return _round_and_saturate(y, at.shift, at.lowest, at.highest)


def _scale_operands(at: p.Add | p.Multiply, first: Array, second: Array) -> tuple[Array, Array]:
    x, other = (
        (index - zero).astype(np.float32) * gain
        for index, zero, gain in zip((first, second), at.zeros, at.gains, strict=True)
    )
    return x, other


def _round_and_saturate(y: Array, shift: int, lowest: int, highest: int) -> Array:
    bottom, top = np.float32(lowest - shift), np.float32(highest - shift)
    inside = np.clip(np.where(y > bottom, y, bottom), None, top)
    return np.asarray(np.rint(inside) + np.float32(shift), np.int64)


def compute_result(epilogue: p.Arithmetic | p.Rounded, sums: Array) -> Array:
    """Return the float32 results of accumulators; channels lie along the last axis."""
    with np.errstate(all="ignore"):
        return apply_steps(epilogue.steps, sums.astype(np.float32) * epilogue.scales)


def apply_steps(steps: Sequence[p.Step], y: Array) -> Array:
    """Return y after all steps."""
    kept = np.zeros_like(y)
    for step in steps:
        y, kept = apply_step(step, y, kept)
    return y


def apply_step(step: p.Step, y: Array, kept: Array) -> tuple[Array, Array]:
    """Return y and the kept value after a step."""
    operation = p.Operation(step.operation)
    if operation is p.Operation.KEEP:
        return y, y
    if operation is p.Operation.SIGMOID:
        return compute_sigmoid(y), kept
    if operation is p.Operation.GELU:
        return compute_gelu(y), kept
    operand = kept if operation in KEPT else step.operands
    return _OPERATIONS[operation](y, operand), kept


KEPT = (p.Operation.ADD_KEPT, p.Operation.MULTIPLY_KEPT)

_OPERATIONS: Mapping[p.Operation, Callable[[Array, Array], Array]] = {
    p.Operation.ADD_KEPT: np.add,
    p.Operation.MULTIPLY_KEPT: np.multiply,
    p.Operation.ADD: np.add,
    p.Operation.SUBTRACT: np.subtract,
    p.Operation.SUBTRACT_FROM: lambda y, c: c - y,
    p.Operation.MULTIPLY: np.multiply,
    p.Operation.DIVIDE: np.divide,
    p.Operation.MAXIMUM: lambda y, c: np.where(y > c, y, np.where(np.isnan(y), y, c)),
    p.Operation.MINIMUM: lambda y, c: np.where(y < c, y, np.where(np.isnan(y), y, c)),
}


def compute_softmax(x: Array) -> Array:
    """Return the softmax of float32 numbers along the last axis."""
    with np.errstate(all="ignore"):
        largest = np.fmax.reduce(x, axis=-1, keepdims=True, initial=-np.inf)
        y = compute_exp(x - largest)
        return np.asarray(y * (np.float32(1) / add_lanes(y)))


def normalize(x: Array, at: p.LayerNorm) -> Array:
    """Return the layer normalization of float32 numbers along the last axis."""
    with np.errstate(all="ignore"):
        deviation, variance = _find_deviations(x)
        # Squares of large numbers overflow: the same with smaller ones.
        shrunk, shrunk_variance = _find_deviations(x * np.float32(2**-100))
        fits = variance <= np.finfo(np.float32).max
        tiny = np.finfo(np.float32).tiny
        divisor = np.where(fits, variance + at.epsilon, shrunk_variance + tiny)
        scale = np.float32(1) / np.sqrt(divisor)
        return np.asarray(np.where(fits, deviation, shrunk) * scale * at.gains + at.offsets)


def _find_deviations(x: Array) -> tuple[Array, Array]:
    """Return the deviations from the mean along the last axis, and their variance."""
    count = np.float32(x.shape[-1])
    mean = add_lanes(x) / count + np.float32(0)  # 0 has the sign +
    deviation = x - mean
    return deviation, add_lanes(deviation * deviation) / count


_LANES = 16
_PIXEL_LANES = 4
_LOG2_E = np.float32(1.44269504)
# The upper bits of ln 2, whose products with exponents are exact, and the rest.
_LN_2 = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LOWEST_EXPONENT = np.float32(-87)
# 1.5 * 2^23: a sum with it is rounded to an integer, which lies in its lowest bits.
_ROUNDER = np.float32(12582912)
# The Taylor series of exp from x^6 / 6! down to x^2 / 2.
_EXP = [np.float32(1 / math.factorial(n)) for n in range(6, 1, -1)]


_GELU_END, _HALF = np.float32(5.4), np.float32(0.5)
"""The end of the range of z = y, and half of the largest erf."""
_GELU = (
    np.array([7.03916658e-06, 0.000390409201, 0.00601988379, 0.056449499, 0.398941666], np.float32),
    np.array(
        [5.8224623e-07, 0.000140141114, 0.0031472065, 0.0414668061, 0.308154553, 1], np.float32
    ),
)
"""Polynomials in z^2, from the highest power down: z times their quotient is near
erf(z / sqrt 2) / 2."""


def add_lanes(x: Array, count: int = _LANES) -> Array:
    """Return sums of float32 numbers along the last axis, which has size 1 then.

    Lane i of `count`, a power of two, begins with 0 and adds the elements i, i + count, ... in
    turn; then halves of the lanes are added.
    """
    size = x.shape[-1]
    padded = np.zeros((*x.shape[:-1], -(-size // count) * count), np.float32)
    padded[..., :size] = x
    lanes = np.zeros((*x.shape[:-1], count), np.float32)
    for start in range(0, size, count):
        lanes = lanes + padded[..., start : start + count]
    while (half := lanes.shape[-1] // 2) > 0:
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes


def compute_exp(x: Array) -> Array:
    """Return the exponential function of float32 numbers up to 0, with an error of 3 ulp.

    It is 0 below -87, and NaN for NaN.
    """
    below = x < _LOWEST_EXPONENT
    return np.asarray(
        np.where(below, np.float32(0), _compute_exp_within(np.where(below, _LOWEST_EXPONENT, x)))
    )


def compute_sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) of float32 numbers, with an error of 4 ulp.

    Numbers below -87 have the sigmoid of -87; NaN stays.
    """
    with np.errstate(all="ignore"):
        negative = x < 0
        magnitude = np.where(negative, x, -x)
        power = _compute_exp_within(
            np.where(magnitude < _LOWEST_EXPONENT, _LOWEST_EXPONENT, magnitude)
        )
        return np.asarray(np.where(negative, power, np.float32(1)) / (np.float32(1) + power))


def compute_gelu(x: Array) -> Array:
    """Return x * (1 + erf(x / sqrt 2)) / 2 of float32 numbers, with an error of 3.2e-7 * |x|.

    It is x above 5.4 and -0 below -5.4; NaN stays.
    """
    with np.errstate(all="ignore"):
        z = np.clip(x, -_GELU_END, _GELU_END)
        above, below = (_evaluate(factors, z * z) for factors in _GELU)
        return np.asarray(x * (_HALF + np.clip(z * above / below, -_HALF, _HALF)))


def _evaluate(factors: Array, x: Array) -> Array:
    """Return a polynomial of float32 numbers, from its highest power down."""
    y = factors[0]
    for factor in factors[1:]:
        y = y * x + factor
    return np.asarray(y)


def _compute_exp_within(x: Array) -> Array:
    """Return the exponential function of numbers from -87 to 0."""
    shifted = x * _LOG2_E + _ROUNDER
    exponent = shifted - _ROUNDER
    rest = x - exponent * _LN_2[0] - exponent * _LN_2[1]
    y = np.full_like(rest, _EXP[0])
    for factor in _EXP[1:]:
        y = y * rest + factor
    y = y * rest * rest + rest + np.float32(1)
    power = (shifted.view(np.int32) - _ROUNDER.view(np.int32) + 127) << 23
    return np.asarray(y * power.view(np.float32))


def _look_up(entries: Array, index: Array, size: int) -> Array:
    """Return the entries at indices, from one list of `size` entries or one per channel."""
    lists = entries.reshape(-1, size)
    return np.asarray(lists[np.arange(index.shape[-1]) if len(lists) > 1 else 0, index])


def _move_channels_last(port: p.Port, x: Array) -> Array:
    if port.channels_first:
        return x.reshape(len(x), port.channels, port.height, port.width).transpose(0, 2, 3, 1)
    return x.reshape(len(x), port.height, port.width, port.channels)


def _restore_graph_order(port: p.Port, y: Array) -> Array:
    ordered = y.transpose(0, 3, 1, 2) if port.channels_first else y
    return ordered.reshape(len(y), *port.sizes)
