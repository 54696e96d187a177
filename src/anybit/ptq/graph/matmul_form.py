# SPDX-License-Identifier: Apache-2.0
"""Layers as matrix products: rows of the activation times columns of the weight, in groups."""

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array
from anybit.ptq.graph.targets import TargetNode, WeightInput

_Transform: TypeAlias = Callable[[Array], Array]

# Samples of rows follow one another by the golden ratio: any number of them is spread evenly.
_GOLDEN_RATIO = (5**0.5 - 1) / 2
_ROWS_PER_BATCH = 2048


@dataclass(frozen=True)
class MatMulForm:
    """Matrix product with one weight of a layer.

    Attributes:
        layer: The layer.
        weight: The weight.
        groups: Number of independent products, each of its own channels.
        windows: Whether rows are the windows of a convolution.
    """

    layer: TargetNode
    weight: WeightInput
    groups: int
    windows: bool

    def to_matrix(self, array: Array) -> Array:
        """Return an array of the weight's shape as [groups, columns, terms]."""
        moved = self._move_terms_last(array)
        terms = math.prod(moved.shape[1:]) if self.windows else moved.shape[-1]
        return moved.reshape(self.groups, -1, terms)

    def from_matrix(self, matrix: Array, shape: tuple[int, ...]) -> Array:
        """Return an array of the weight's shape from [groups, columns, terms]."""
        moved = matrix.reshape(self._move_terms_last(np.empty(shape, np.bool_)).shape)
        return moved if self.windows else np.moveaxis(moved, -1, self.weight.input_axis or 0)

    def get_rows_key(self, shape: tuple[int, ...]) -> Hashable:
        """Return a key that two products share only if the same activation gives the same rows.

        Args:
            shape: Shape of the weight.
        """
        return (self.layer, shape) if self.windows else self._activation_axis

    def iterate_rows(
        self,
        x: Array,
        shape: tuple[int, ...],
        limit: int,
        transform: _Transform = lambda x: x,
    ) -> Iterator[Array]:
        """Yield batches of rows of the activation, as [groups, rows, terms].

        Args:
            x: Activation.
            shape: Shape of the weight.
            limit: Largest number of rows, spread over x.
            transform: Elementwise function of the activation. It is called with the elements that
                are used; their channels lie along the same axis as in x.
        """
        if self.windows:
            for windows in _iterate_windows(self.layer.node, x, shape[2:], limit, transform):
                yield windows.reshape(len(windows), self.groups, -1).swapaxes(0, 1)
            return
        axis = self._activation_axis
        rows = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
        for indices in _iter_index_batches(len(rows), limit):
            batch = np.moveaxis(rows[indices], -1, axis)
            yield np.moveaxis(transform(batch), axis, -1)[None]

    @property
    def _activation_axis(self) -> int:
        """Reduction axis of the activation, without windows."""
        return -2 if self.layer.activation_axis is None else self.layer.activation_axis

    def _move_terms_last(self, array: Array) -> Array:
        return array if self.windows else np.moveaxis(array, self.weight.input_axis or 0, -1)


def find_matmul_form(layer: TargetNode) -> MatMulForm | None:
    """Return the product with the first weight of a layer; None if it is not a matrix product.

    The first weight of a recurrent layer multiplies its input. The second one multiplies states,
    which depend on quantization themselves.
    """
    if not layer.weights:
        return None
    weight = layer.weights[0]
    if layer.node.op_type == "Conv" and weight.index == 1:
        return MatMulForm(layer, weight, get_attribute(layer.node, "group", 1), windows=True)
    if layer.node.op_type == "ConvTranspose" or weight.input_axis is None:
        return None
    return MatMulForm(layer, weight, 1, windows=False)


def _iter_index_batches(count: int, limit: int) -> Iterator[Array]:
    """Yield batches of at most `limit` indices below `count`, spread evenly."""
    for start in range(0, min(count, limit), _ROWS_PER_BATCH):
        positions = np.arange(start, min(count, limit, start + _ROWS_PER_BATCH))
        if count <= limit:
            yield positions
        else:
            yield (positions * _GOLDEN_RATIO % 1 * count).astype(np.int64)


def _iterate_windows(
    node: ir.Node, x: Array, kernel: tuple[int, ...], limit: int, transform: _Transform
) -> Iterator[Array]:
    """Yield batches of windows of images, as [windows, channels, *kernel], padded with zeros."""
    rank = len(kernel)
    strides = get_attribute(node, "strides", ()) or (1,) * rank
    dilations = get_attribute(node, "dilations", ()) or (1,) * rank
    extents = [step * (size - 1) + 1 for step, size in zip(dilations, kernel, strict=True)]
    pads = _get_pads(node, x.shape[2:], strides, extents)
    counts = [
        (size + sum(pad) - extent) // stride + 1
        for size, pad, extent, stride in zip(x.shape[2:], pads, extents, strides, strict=True)
    ]
    for indices in _iter_index_batches(len(x) * math.prod(counts), limit):
        image, *positions = np.unravel_index(indices, (len(x), *counts))
        index: list[Any] = [image.reshape(-1, *[1] * rank)]
        inside: Array = np.ones((), np.bool_)
        for axis, size in enumerate(x.shape[2:]):
            first = positions[axis] * strides[axis] - pads[axis][0]
            pixels = np.add.outer(first, dilations[axis] * np.arange(kernel[axis]))
            shape = [kernel[axis] if other == axis else 1 for other in range(rank)]
            pixels = pixels.reshape(-1, *shape)
            inside = inside & (pixels >= 0) & (pixels < size)
            index.append(pixels % size)  # any pixel does for the padding
        windows = transform(np.moveaxis(x[index[0], :, *index[1:]], -1, 1))
        np.copyto(windows, 0, where=~inside[:, None])
        yield windows


def _get_pads(
    node: ir.Node, sizes: tuple[int, ...], strides: tuple[int, ...], extents: list[int]
) -> list[tuple[int, int]]:
    """Return the padding at the start and at the end of each axis."""
    rank = len(sizes)
    auto_pad = get_attribute(node, "auto_pad", "NOTSET")
    if auto_pad == "NOTSET":
        pads = get_attribute(node, "pads", ()) or (0,) * (2 * rank)
        return list(zip(pads[:rank], pads[rank:], strict=True))
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    result = []
    for size, stride, extent in zip(sizes, strides, extents, strict=True):
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        less, more = total // 2, total - total // 2
        result.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return result
