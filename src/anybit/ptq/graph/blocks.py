# SPDX-License-Identifier: Apache-2.0
"""Blocks of a tensor that share a scale.

Blocks lie along the reduction axis. The last block is padded with zeros, which affect neither its
scale nor other elements.
"""

import math
from dataclasses import dataclass

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ops.blocks import merge_blocks, split_blocks
from anybit.ptq.graph.targets import WeightInput


@dataclass(frozen=True)
class BlockLayout:
    """Blocks along the axes first, ..., last of a tensor, taken as one axis.

    Attributes:
        shape: Shape of the tensor.
        first, last: The axes.
        block_size: Requested number of elements in a block; see `size`.
    """

    shape: tuple[int, ...]
    first: int
    last: int
    block_size: int

    @property
    def length(self) -> int:
        """Length of the axis that is split."""
        return math.prod(self.shape[self.first : self.last + 1])

    @property
    def size(self) -> int:
        """Number of elements in a block: at most the length of the axis."""
        return max(min(self.block_size, self.length), 1)

    @property
    def count(self) -> int:
        """Number of blocks along the axis."""
        return -(-self.length // self.size)

    @property
    def axis(self) -> int:
        """Axis of the elements of a block in `split_shape`."""
        return self.first + 1

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """Shape with the axes first, ..., last as one."""
        return self._replace_axes(self.length)

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """Flat shape with a full last block."""
        return self._replace_axes(self.count * self.size)

    @property
    def split_shape(self) -> tuple[int, ...]:
        """Shape with an axis of blocks and an axis of the elements of a block."""
        return self._replace_axes(self.count, self.size)

    def split(self, array: Array) -> Array:
        """Return the tensor in the split shape."""
        flat = array.reshape(self.flat_shape)
        return np.asarray(split_blocks(flat, self.first, self.block_size))

    def expand(self, scales: Array) -> Array:
        """Return one number per element, from one per block."""
        return self.merge(np.broadcast_to(scales, self.split_shape))

    def merge(self, blocks: Array) -> Array:
        """Return a tensor of the split shape in its own shape."""
        flat = np.broadcast_to(np.zeros((), blocks.dtype), self.flat_shape)
        merged = merge_blocks(blocks.reshape(self.split_shape), flat, self.first)
        return np.asarray(merged.reshape(self.shape))

    def gather(self, expanded: Array) -> Array:
        """Return one number per block, broadcastable to the split shape: undo `expand`."""
        flat = expanded.reshape(self.flat_shape)
        index = [slice(None)] * flat.ndim
        index[self.first] = slice(None, None, self.size)
        return np.expand_dims(flat[tuple(index)], self.axis)

    def get_first_block(self, expanded: Array) -> Array:
        """Return the slice of the first element along the axes, broadcastable to the tensor."""
        axes = range(self.first, self.last + 1)
        index = tuple(slice(1) if axis in axes else slice(None) for axis in range(expanded.ndim))
        return expanded[index]

    def _replace_axes(self, *sizes: int) -> tuple[int, ...]:
        return (*self.shape[: self.first], *sizes, *self.shape[self.last + 1 :])


def choose_block_layout(shape: tuple[int, ...], weight: WeightInput, size: int) -> BlockLayout:
    """Return the blocks of a weight.

    They lie along its input axis. Where that is shorter than a block (the few channels of an
    image), or is not reduced (depthwise convolutions), they lie along all reduction axes.
    """
    reduced = [axis for axis in range(len(shape)) if axis not in weight.channel_axes]
    along = weight.input_axis if weight.input_axis in reduced else None
    is_contiguous = bool(reduced) and reduced == list(range(reduced[0], reduced[-1] + 1))
    if is_contiguous and (along is None or shape[along] < size):
        return BlockLayout(shape, reduced[0], reduced[-1], size)
    axis = along if along is not None else (reduced or [0])[0]
    return BlockLayout(shape, axis, axis, size)
