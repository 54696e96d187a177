# SPDX-License-Identifier: Apache-2.0
"""Blocks of what a model computes: their scales follow from the numbers as it runs.

The graph is Reshape, Abs, ReduceMax, Max, FloatQuant, Mul, FloatQuant or IntQuant, Reshape. The
first FloatQuant has no mantissa bits and rounds down: it gives 2^floor(log2(amax)), of amax that is
not less than what has the scale 2^-127. Blocks that hold an infinity or NaN become NaN: these
have an infinite amax, and FloatQuant gives NaN for that.
"""

from dataclasses import dataclass, replace

import numpy as np

from anybit.errors import ModelError
from anybit.formats import FloatFormat
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array
from anybit.onnx.quantizers.grids import Match, match
from anybit.ops.grids import FloatGrid, Grid
from anybit.ptq.graph.blocks import Blocks
from anybit.ptq.graph.targets import Layer, Source
from anybit.ptq.specs.block_scales import block_grid, candidates, largest_power
from anybit.quant_types.block_formats import BlockFormat, ScaleRule

OPSET = 18
"""The first opset whose operators are written."""

_ONE = np.ones((), np.float32)
_HIGHEST = 2.0**127


@dataclass(frozen=True)
class DynamicGrid:
    """Blocks of MX along an axis of a tensor.

    Attributes:
        format: The format.
        axis: The axis, counted from the front.
        sizes: The sizes of the tensor, None where they are not known.
    """

    format: BlockFormat
    axis: int
    sizes: tuple[int | None, ...]

    @property
    def ends(self) -> tuple[float, float]:
        """They follow what is rounded."""
        return -np.inf, np.inf

    def rounded(self, x: Array) -> Array:
        """What the graph gives for finite numbers."""
        blocks = Blocks(x.shape, self.axis, self.axis, self.format.size)
        cut = blocks.split(x)
        reach = np.abs(cut).max(axis=blocks.axis, keepdims=True, initial=0)
        (grid,) = candidates(reach, self.format, ScaleRule.FLOOR)
        found = match(grid)
        assert found is not None, "there is an operator"
        values = found.operator.function(cut, **found.call.parameters, **found.call.attributes)
        return blocks.merged(np.asarray(values))

    @property
    def least(self) -> float:
        """The least magnitude that a scale follows from."""
        return 2.0 ** (largest_power(self.format) - 127)

    @property
    def factor(self) -> float:
        """By which the power of two below a magnitude is multiplied: that gives the scale."""
        return float(self.elements.scale) * 2.0 ** -largest_power(self.format)

    @property
    def elements(self) -> Grid:
        """The grid of a block whose power of two is 1."""
        return block_grid(np.zeros((), np.int32), self.format)

    @property
    def powers(self) -> Match:
        """The call that gives the power of two below a magnitude, times 1."""
        bias = 128 - largest_power(self.format)
        found = match(FloatGrid(_ONE, FloatFormat(8, 0, bias, _HIGHEST)))
        assert found is not None, "there is an operator"
        attributes = {**found.call.attributes, "rounding_mode": "FLOOR"}
        return Match(found.operator, replace(found.call, attributes=attributes))


def dynamic_grid(source: Source, of: BlockFormat) -> DynamicGrid:
    """The blocks of a tensor, along the axis that all that read it add up.

    Raises:
        ModelError: There is no such axis.
    """
    value, shape = source.value, source.value.shape
    names = ", ".join(repr(layer.name) for layer, _ in source.readers)
    remedy = f'; say another word for {names}, as in --layer "NAME={of}/uint8"'
    if shape is None:
        raise ModelError(f"{value.name!r} has no known rank, and {of} no blocks{remedy}")
    axes = {_summed(layer, index, shape.rank()) % shape.rank() for layer, index in source.readers}
    if len(axes) > 1:
        raise ModelError(f"{value.name!r} is added up along several axes, and {of} has one{remedy}")
    sizes = tuple(each if isinstance(each, int) else None for each in shape)
    return DynamicGrid(of, axes.pop(), sizes)


def _summed(layer: Layer, index: int, rank: int) -> int:
    """The axis of an input along which products are added up."""
    node = layer.node
    match node.op_type:
        case "MatMul":
            return -1 if index == 0 or rank == 1 else -2
        case "Gemm":
            turned = attribute_of(node, "transB" if index else "transA", 0)
            return -1 if bool(turned) == bool(index) else -2
        case "ConvTranspose":
            return 0 if index else 1
        case "Conv":
            return 1
        case _:
            return -1
