# SPDX-License-Identifier: Apache-2.0
"""Layers as matrix products: rows of what they read, times columns of their weight, in groups."""

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array
from anybit.ptq.graph.targets import TargetNode, WeightInput

# Places of windows that are taken from an array follow one another by this share of all: wherever
# one stops, they lie nearly evenly.
_GOLDEN = (5**0.5 - 1) / 2
# Rows that are taken at a time.
_TOGETHER = 2048


@dataclass(frozen=True)
class MatMulForm:
    """One weight of a layer, as the factor of a matrix product.

    Attributes:
        layer: The layer.
        weight: The weight.
        groups: How many products lie side by side, of different channels.
        windows: Whether rows are the windows of a convolution.
    """

    layer: TargetNode
    weight: WeightInput
    groups: int
    windows: bool

    def to_matrix(self, array: Array) -> Array:
        """An array of the weight's shape as [groups, columns, summed]."""
        turned = self._turned(array)
        summed = math.prod(turned.shape[1:]) if self.windows else turned.shape[-1]
        return turned.reshape(self.groups, -1, summed)

    def from_matrix(self, matrix: Array, shape: tuple[int, ...]) -> Array:
        """The way back."""
        turned = self._turned(np.empty(shape, np.bool_)).shape
        found = matrix.reshape(turned)
        return found if self.windows else np.moveaxis(found, -1, self.weight.input_axis or 0)

    def get_rows_key(self, shape: tuple[int, ...]) -> Hashable:
        """What is the same for two products only if they have the same rows for the same x.

        Args:
            shape: That of the weight.
        """
        return (self.layer, shape) if self.windows else self._axis

    def iter_rows(
        self,
        x: Array,
        shape: tuple[int, ...],
        most: int,
        read: Callable[[Array], Array] = lambda x: x,
    ) -> Iterator[Array]:
        """What is multiplied with the columns, as [groups, rows, summed], some rows at a time.

        Args:
            x: What the layer reads.
            shape: That of the weight.
            most: How many rows are taken at most, from all over x.
            read: What becomes of the elements of x first, each by itself. It is called with those
                that are taken, whose channels lie along the same axis.
        """
        if self.windows:
            for windows in _windows(self.layer.node, x, shape[2:], most, read):
                yield windows.reshape(len(windows), self.groups, -1).swapaxes(0, 1)
            return
        rows = np.moveaxis(x, self._axis, -1).reshape(-1, x.shape[self._axis])
        for chosen in _spread(len(rows), most):
            taken = np.moveaxis(rows[chosen], -1, self._axis)
            yield np.moveaxis(read(taken), self._axis, -1)[None]

    @property
    def _axis(self) -> int:
        """That of x along which is summed, if there are no windows."""
        return -2 if self.layer.activation_axis is None else self.layer.activation_axis

    def _turned(self, array: Array) -> Array:
        return array if self.windows else np.moveaxis(array, self.weight.input_axis or 0, -1)


def find_matmul_form(layer: TargetNode) -> MatMulForm | None:
    """The product with the first weight of a layer; None if it is not a plain one.

    That of a recurrent layer is the one for what it reads. The other is for its states, which
    depend on it.
    """
    if not layer.weights:
        return None
    weight = layer.weights[0]
    if layer.node.op_type == "Conv" and weight.index == 1:
        return MatMulForm(layer, weight, attribute_of(layer.node, "group", 1), windows=True)
    if layer.node.op_type == "ConvTranspose" or weight.input_axis is None:
        return None
    return MatMulForm(layer, weight, 1, windows=False)


def _spread(count: int, most: int) -> Iterator[Array]:
    """So many of the first numbers at most, nearly evenly, some at a time."""
    for start in range(0, min(count, most), _TOGETHER):
        places = np.arange(start, min(count, most, start + _TOGETHER))
        yield places if count <= most else (places * _GOLDEN % 1 * count).astype(np.int64)


def _windows(
    node: ir.Node, x: Array, kernel: tuple[int, ...], most: int, read: Callable[[Array], Array]
) -> Iterator[Array]:
    """Windows of images, as [windows, channels, *kernel], some at a time. Around an image that was
    read there are zeros."""
    rank = len(kernel)
    strides = attribute_of(node, "strides", ()) or (1,) * rank
    dilations = attribute_of(node, "dilations", ()) or (1,) * rank
    reach = [step * (size - 1) + 1 for step, size in zip(dilations, kernel, strict=True)]
    pads = _pads(node, x.shape[2:], strides, reach)
    counts = [
        (size + sum(pad) - width) // stride + 1
        for size, pad, width, stride in zip(x.shape[2:], pads, reach, strides, strict=True)
    ]
    for chosen in _spread(len(x) * math.prod(counts), most):
        image, *places = np.unravel_index(chosen, (len(x), *counts))
        index: list[Any] = [image.reshape(-1, *[1] * rank)]
        inside: Array = np.ones((), np.bool_)
        for axis, size in enumerate(x.shape[2:]):
            first = places[axis] * strides[axis] - pads[axis][0]
            at = np.add.outer(first, dilations[axis] * np.arange(kernel[axis]))
            at = at.reshape(-1, *(kernel[axis] if each == axis else 1 for each in range(rank)))
            inside = inside & (at >= 0) & (at < size)
            index.append(at % size)  # outside it is any place that there is
        windows = read(np.moveaxis(x[index[0], :, *index[1:]], -1, 1))
        np.copyto(windows, 0, where=~inside[:, None])
        yield windows


def _pads(
    node: ir.Node, sizes: tuple[int, ...], strides: tuple[int, ...], reach: list[int]
) -> list[tuple[int, int]]:
    """What stands before and behind each axis."""
    rank = len(sizes)
    automatic = attribute_of(node, "auto_pad", "NOTSET")
    if automatic == "NOTSET":
        pads = attribute_of(node, "pads", ()) or (0,) * (2 * rank)
        return list(zip(pads[:rank], pads[rank:], strict=True))
    if automatic == "VALID":
        return [(0, 0)] * rank
    found = []
    for size, stride, width in zip(sizes, strides, reach, strict=True):
        total = max((-(-size // stride) - 1) * stride + width - size, 0)
        less, more = total // 2, total - total // 2
        found.append((less, more) if automatic == "SAME_UPPER" else (more, less))
    return found
