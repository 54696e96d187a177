# SPDX-License-Identifier: Apache-2.0
"""Crops of large activations: some rows of a product, or a strip of an image."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array
from anybit.ptq.graph.matmul_form import find_matmul_form
from anybit.ptq.graph.targets import ActivationTensor, TargetNode

# Strips begin at places that follow one another by this share of all.
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Crop:
    """A crop of a tensor along one axis.

    Attributes:
        axis: The axis that is cut.
        least: The fewest elements to keep along it.
        largest: The bytes of the crop.
    """

    axis: int
    least: int
    largest: int

    def __call__(self, x: Array, samples: int, number: int, around_largest: bool) -> Array:
        """Return the tensor, or a strip of it.

        Args:
            x: The tensor.
            samples: The number of samples joined in it.
            number: The index of the sample, which determines the position of the strip.
            around_largest: Whether to take the strip around the largest magnitude instead.
        """
        if x.nbytes <= self.largest * samples or not -x.ndim <= self.axis < x.ndim:
            return x
        axis = self.axis % x.ndim
        size = x.shape[axis]
        kept = min(max(self.least, size * self.largest * samples // x.nbytes), size)
        start = int(number * _GOLDEN % 1 * (size - kept + 1))
        if around_largest:
            others = tuple(other for other in range(x.ndim) if other != axis)
            reach = np.maximum(-x.min(axis=others), x.max(axis=others))
            start = min(max(int(reach.argmax()) - kept // 2, 0), size - kept)
        return np.take(x, np.arange(start, start + kept), axis)


def make_crops(sources: Sequence[ActivationTensor], most: int) -> dict[str, Crop | None]:
    """Return the crops of tensors, by name, on which all layers that read them can run.

    Args:
        sources: The tensors.
        most: Bytes of a tensor, and of a layer's output, kept per sample.
    """
    readers: dict[ir.Value, list[tuple[TargetNode, int]]] = {}
    for source in sources:
        readers.setdefault(source.value, []).extend(source.readers)
    return {str(value.name): _make_common_crop(layers, most) for value, layers in readers.items()}


def _make_common_crop(readers: Sequence[tuple[TargetNode, int]], most: int) -> Crop | None:
    crops = [_make_crop(layer, most) for layer, _ in readers]
    usable = [crop for crop in crops if crop is not None]
    if len(usable) < len(crops) or len({crop.axis for crop in usable}) != 1:
        return None
    least, largest = max(crop.least for crop in usable), min(crop.largest for crop in usable)
    return Crop(usable[0].axis, least, largest)


def _make_crop(layer: TargetNode, most: int) -> Crop | None:
    """Return a crop of rows, or of the first image axis of a convolution; None if it has none."""
    product = find_matmul_form(layer)
    fixed = layer.bias is not None and layer.bias_axis is None  # it may have rows
    if product is None or fixed or len(layer.weights) > 1 or len(layer.computed_inputs) > 1:
        return None
    ((weight, array),) = layer.constants
    largest = int(
        most / max(1.0, _compute_growth(array.shape, weight.channel_axes, weight.input_axis))
    )
    if not product.windows:
        return Crop(-2 if layer.activation_axis == -1 else -1, 1, largest)
    dilations = get_attribute(layer.node, "dilations", ()) or (1,)
    return Crop(2, dilations[0] * (array.shape[2] - 1) + 1, largest)


def _compute_growth(shape: Sequence[int], channels: Sequence[int], inputs: int | None) -> float:
    """Return the ratio of the sizes of output and input."""
    return shape[channels[-1]] / shape[inputs] if channels and inputs is not None else 1.0
