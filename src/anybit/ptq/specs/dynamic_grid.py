# SPDX-License-Identifier: Apache-2.0
"""Dynamic grids of activations: their scales are computed at run time.

MX blocks are one BlockQuant.

Integers have one scale per row or tensor. With L the number of steps and S the largest scale with
a finite S L, each operation in float32,

    w = amax                                   the magnitude of a row, for symmetric integers
    w = max(x, 0) - min(x, 0)                  the width of its range, with a zero-point
    scale = min(max(w, L 2^-124) / L, S)       infinity if w is infinite
    zeropt = clip(round(lowest code - min(x, 0) / scale))

IntQuant follows. A row with an infinity or NaN becomes NaN, because its scale is infinite.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from anybit.errors import ModelError
from anybit.formats import LARGEST_FLOAT32
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import IntegerGrid
from anybit.ops.int_quant import get_codes
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.quant_types.block_formats import BlockFormat
from anybit.quant_types.dynamic_scales import SMALLEST_DYNAMIC_SCALE, find_largest_scale
from anybit.quant_types.spec import QuantSpec
from anybit.quant_types.spec_parser import IntegerFormat

DYNAMIC_GRID_OPSET = 18
"""First opset with the operators of the graph of integers."""

_FLOAT32_DIGITS = 24


@dataclass(frozen=True)
class _UnboundedGrid:
    """Grid of a tensor whose scales are computed at run time."""

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest value: no bounds, because scales follow the tensor."""
        return -np.inf, np.inf


@dataclass(frozen=True)
class MxGrid(_UnboundedGrid):
    """MX blocks along an axis of a tensor.

    Attributes:
        format: Format of the elements.
        axis: The axis, counted from the front.
    """

    format: BlockFormat
    axis: int


@dataclass(frozen=True)
class DynamicIntegerGrid(_UnboundedGrid):
    """Integers with one scale per row of a tensor, or one for all of it.

    Attributes:
        codes: The codes.
        asymmetric: Whether there is a zero-point, computed at run time, too.
        axes: The axes of a row, counted from the front; all axes if empty.
    """

    codes: range
    asymmetric: bool
    axes: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Number of steps from 0 to the magnitude of a row, or from end to end of its range."""
        return len(self.codes) - 1 if self.asymmetric else self.codes[-1]

    @property
    def smallest_width(self) -> float:
        """Magnitude or width of a range below which its scale stays the same."""
        return self.steps * SMALLEST_DYNAMIC_SCALE

    @property
    def largest_scale(self) -> float:
        """Largest scale whose multiples up to the number of steps are finite."""
        return find_largest_scale(self.steps, LARGEST_FLOAT32, _FLOAT32_DIGITS)

    def make_grid(self, scale: Array, zeropt: Array) -> IntegerGrid:
        """Return the grid for scales and zero-points."""
        return IntegerGrid(scale, zeropt, self.codes)


DynamicGrid: TypeAlias = MxGrid | DynamicIntegerGrid
"""Grid of a tensor whose scales are computed at run time."""


def make_dynamic_grid(tensor: ActivationTensor, spec: QuantSpec) -> DynamicGrid:
    """Return the grid of a spec whose scales follow from the tensor.

    The elements that the readers sum have one scale: blocks and rows lie along their reduction
    axes.

    Raises:
        ModelError: The rank is unknown, or readers reduce different axes.
        TypeError: The spec has static scales.
    """
    match spec.format:
        case BlockFormat():
            (axis,) = _find_axes(tensor, spec, blocks=True)
            return MxGrid(spec.format, axis)
        case IntegerFormat():
            codes = get_codes(spec.bits, spec.format.signed, spec.narrow)
            axes = _find_axes(tensor, spec, blocks=False) if spec.per_row else ()
            return DynamicIntegerGrid(codes, spec.asymmetric, axes)
        case _:
            raise TypeError(f"{spec.text!r} has static scales")


def _find_axes(tensor: ActivationTensor, spec: QuantSpec, *, blocks: bool) -> tuple[int, ...]:
    """Return the axes along which readers of a tensor sum.

    Raises:
        ModelError: The rank is unknown, or readers reduce different axes.
    """
    value, shape = tensor.value, tensor.value.shape
    names = ", ".join(dict.fromkeys(repr(layer.name) for layer, _ in tensor.readers))
    other = f"{spec.text}/uint8" if blocks else f"SPEC/{spec.format} dynamic per-tensor"
    remedy = f'choose another format for {names}: --layer "NAME={other}"'
    if shape is None:
        raise ModelError(
            f"{value.name!r}: its rank is unknown, and {spec.text} needs an axis; {remedy}"
        )
    rank = shape.rank()
    find = _find_block_axis if blocks else _find_row_axes
    axes = {
        tuple(axis % rank for axis in find(layer, index, rank)) for layer, index in tensor.readers
    }
    if len(axes) > 1:
        reduced = " and ".join(", ".join(map(str, group)) for group in sorted(axes))
        raise ModelError(
            f"{value.name!r}: {spec.text} needs one reduction axis, and its readers reduce axes "
            f"{reduced}; {remedy}"
        )
    return axes.pop()


def _find_row_axes(layer: TargetNode, index: int, rank: int) -> tuple[int, ...]:
    """Return all axes along which products are summed; windows of images lie on several."""
    match layer.node.op_type, index:
        case ("Conv", _) | ("ConvTranspose", 0):
            return tuple(range(1, rank))
        case ("ConvTranspose", _):
            return 0, *range(2, rank)
        case _:
            return _find_block_axis(layer, index, rank)


def _find_block_axis(layer: TargetNode, index: int, rank: int) -> tuple[int, ...]:
    """Return the axis of an input of this rank along which products are summed."""
    node = layer.node
    match node.op_type:
        case "MatMul":
            return (-1 if index == 0 or rank == 1 else -2,)
        case "Gemm":
            transposed = get_attribute(node, "transB" if index else "transA", 0)
            return (-1 if bool(transposed) == bool(index) else -2,)
        case "ConvTranspose":
            return (0 if index else 1,)
        case "Conv":
            return (1,)
        case _:
            return (-1,)
