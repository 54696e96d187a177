# SPDX-License-Identifier: Apache-2.0
"""How the elements of a tensor lie in blocks that have a scale each.

Blocks lie along the axis whose elements are added up. A last one may be short: it is pad with
zeros, which change no scale and no other element.
"""

import math
from dataclasses import dataclass

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ptq.graph.targets import WeightInput


@dataclass(frozen=True)
class BlockLayout:
    """The axes first .. last of a tensor as one axis, which is cut into blocks.

    Attributes:
        shape: The tensor's.
        first, last: The axes; the same if it is one.
        block_size: How many elements a block has. Where there are fewer, it has these.
    """

    shape: tuple[int, ...]
    first: int
    last: int
    block_size: int

    @property
    def length(self) -> int:
        """Of the axis that is cut."""
        return math.prod(self.shape[self.first : self.last + 1])

    @property
    def size(self) -> int:
        """Of a block."""
        return max(min(self.block_size, self.length), 1)

    @property
    def count(self) -> int:
        """How many blocks lie along the axis."""
        return -(-self.length // self.size)

    @property
    def axis(self) -> int:
        """The axis within blocks, of a tensor that is cut."""
        return self.first + 1

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """The tensor's shape with one axis to be cut."""
        return self._with(self.length)

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape with whole blocks, not cut: longer than the tensor where the last is short."""
        return self._with(self.count * self.size)

    @property
    def split_shape(self) -> tuple[int, ...]:
        """The shape with an axis of blocks, and one within them."""
        return self._with(self.count, self.size)

    def pad(self, array: Array) -> Array:
        """With zeros behind the last block if that is short, in the shape `joined`."""
        flat = array.reshape(self.flat_shape)
        missing = self.count * self.size - self.length
        if not missing:
            return flat
        widths = [(0, missing if axis == self.first else 0) for axis in range(flat.ndim)]
        return np.pad(flat, widths)

    def split(self, array: Array) -> Array:
        """In the shape `cut`."""
        return self.pad(array).reshape(self.split_shape)

    def expand(self, scales: Array) -> Array:
        """One number per block as one per element, in the tensor's shape."""
        return self.merge(np.broadcast_to(scales, self.split_shape))

    def merge(self, cut: Array) -> Array:
        """A tensor in the shape `cut` in its own shape."""
        return self._short(cut.reshape(self.padded_shape)).reshape(self.shape)

    def gather(self, spread: Array) -> Array:
        """One number per block, of those that `spread` gave; they broadcast to `cut`."""
        flat = spread.reshape(self.flat_shape)
        where = [slice(None)] * flat.ndim
        where[self.first] = slice(None, None, self.size)
        return np.expand_dims(flat[tuple(where)], self.axis)

    def first_block(self, spread: Array) -> Array:
        """The numbers of the only block, in a shape that broadcasts to the tensor."""
        axes = range(self.first, self.last + 1)
        where = tuple(slice(1) if axis in axes else slice(None) for axis in range(spread.ndim))
        return spread[where]

    def _short(self, array: Array) -> Array:
        where = [slice(None)] * array.ndim
        where[self.first] = slice(self.length)
        return array[tuple(where)]

    def _with(self, *sizes: int) -> tuple[int, ...]:
        return (*self.shape[: self.first], *sizes, *self.shape[self.last + 1 :])


def choose_block_layout(shape: tuple[int, ...], weight: WeightInput, size: int) -> BlockLayout:
    """The blocks of a weight: along the axis that its inputs lie along.

    Where that is shorter than a block, as is that of few channels of an image, or is none that is
    added up, as of depthwise convolutions, they are cut of all axes that are added up together.
    """
    summed = [axis for axis in range(len(shape)) if axis not in weight.channel_axes]
    along = weight.input_axis if weight.input_axis in summed else None
    together = bool(summed) and summed == list(range(summed[0], summed[-1] + 1))
    if together and (along is None or shape[along] < size):
        return BlockLayout(shape, summed[0], summed[-1], size)
    axis = along if along is not None else (summed or [0])[0]
    return BlockLayout(shape, axis, axis, size)
