# SPDX-License-Identifier: Apache-2.0
"""Layers as matrix products: rows of what they read, times columns of their weight, in groups."""

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.lib.stride_tricks import sliding_window_view

from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array
from anybit.quantization.placement import Layer, Weight

# Places of windows that are taken from an array follow one another by this share of all: wherever
# one stops, they lie nearly evenly.
_GOLDEN = (5**0.5 - 1) / 2
# Rows that are taken at a time.
_TOGETHER = 2048


@dataclass(frozen=True)
class Product:
    """One weight of a layer, as the factor of a matrix product.

    Attributes:
        layer: The layer.
        weight: The weight.
        groups: How many products lie side by side, of different channels.
        windows: Whether rows are the windows of a convolution.
    """

    layer: Layer
    weight: Weight
    groups: int
    windows: bool

    def matrix(self, array: Array) -> Array:
        """An array of the weight's shape as [groups, columns, summed]."""
        turned = self._turned(array)
        summed = math.prod(turned.shape[1:]) if self.windows else turned.shape[-1]
        return turned.reshape(self.groups, -1, summed)

    def array(self, matrix: Array, shape: tuple[int, ...]) -> Array:
        """The way back."""
        turned = self._turned(np.empty(shape, np.bool_)).shape
        found = matrix.reshape(turned)
        return found if self.windows else np.moveaxis(found, -1, self.weight.inputs or 0)

    def reads(self, shape: tuple[int, ...]) -> Hashable:
        """What is the same for two products only if they have the same rows for the same x.

        Args:
            shape: That of the weight.
        """
        return (self.layer, shape) if self.windows else self._axis

    def rows(self, x: Array, shape: tuple[int, ...], most: int) -> Iterator[Array]:
        """What is multiplied with the columns, as [groups, rows, summed], some rows at a time.

        Args:
            x: What the layer reads.
            shape: That of the weight.
            most: How many rows are taken at most, from all over x.
        """
        if self.windows:
            yield from _windows(self.layer.node, x, shape[2:], self.groups, most)
            return
        found = np.moveaxis(x, self._axis, -1).reshape(1, -1, x.shape[self._axis])
        for chosen in _spread(found.shape[1], most):
            yield found[:, chosen]

    @property
    def _axis(self) -> int:
        """That of x along which is summed, if there are no windows."""
        return -2 if self.layer.x_axis is None else self.layer.x_axis

    def _turned(self, array: Array) -> Array:
        return array if self.windows else np.moveaxis(array, self.weight.inputs or 0, -1)


def product_of(layer: Layer) -> Product | None:
    """The product with the first weight of a layer; None if it is not a plain one.

    That of a recurrent layer is the one for what it reads. The other is for its states, which
    depend on it.
    """
    if not layer.weights:
        return None
    weight = layer.weights[0]
    if layer.node.op_type == "Conv" and weight.index == 1:
        return Product(layer, weight, attribute_of(layer.node, "group", 1), windows=True)
    if layer.node.op_type == "ConvTranspose" or weight.inputs is None:
        return None
    return Product(layer, weight, 1, windows=False)


def _spread(count: int, most: int) -> Iterator[Array]:
    """So many of the first numbers at most, nearly evenly, some at a time."""
    for start in range(0, min(count, most), _TOGETHER):
        places = np.arange(start, min(count, most, start + _TOGETHER))
        yield places if count <= most else (places * _GOLDEN % 1 * count).astype(np.int64)


def _windows(
    node: ir.Node, x: Array, kernel: tuple[int, ...], groups: int, most: int
) -> Iterator[Array]:
    rank = len(kernel)
    strides = attribute_of(node, "strides", ()) or (1,) * rank
    dilations = attribute_of(node, "dilations", ()) or (1,) * rank
    reach = [step * (size - 1) + 1 for step, size in zip(dilations, kernel, strict=True)]
    pads = _pads(node, x.shape[2:], strides, reach)
    padded = np.pad(x, [(0, 0), (0, 0), *pads]) if np.any(pads) else x
    view = sliding_window_view(padded, reach, axis=tuple(range(2, 2 + rank)))
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    places = np.moveaxis(view[:, :, *steps], 1, 1 + rank)
    for chosen in _spread(math.prod(places.shape[: 1 + rank]), most):
        rows = places[np.unravel_index(chosen, places.shape[: 1 + rank])]
        terms = x.shape[1] // groups * math.prod(kernel)
        yield rows.reshape(len(chosen), groups, terms).swapaxes(0, 1)


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
