# SPDX-License-Identifier: Apache-2.0
"""Dynamic grids: MX blocks of activations, whose scales are computed at run time.

The graph is Reshape, Abs, ReduceMax, Max, FloatQuant, Mul, FloatQuant or IntQuant, Reshape. The
first FloatQuant has no mantissa bits and rounds down: it computes 2^floor(log2(amax)). Max limits
amax to magnitudes whose scale is at least 2^-127. A block with an infinity or NaN becomes NaN: its
amax is infinite, and FloatQuant returns NaN for that.
"""

from dataclasses import dataclass

import numpy as np

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.ops.grids import Grid
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.specs.block_scales import get_largest_exponent, make_block_grid
from anybit.quant_types.block_formats import BlockFormat

DYNAMIC_GRID_OPSET = 18
"""First opset with the operators of the graph."""


@dataclass(frozen=True)
class DynamicGrid:
    """MX blocks along an axis of a tensor.

    Attributes:
        format: Format of the elements.
        axis: The axis, counted from the front.
        sizes: Sizes of the tensor, None where unknown.
    """

    format: BlockFormat
    axis: int
    sizes: tuple[int | None, ...]

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest value: no bounds, because scales follow the tensor."""
        return -np.inf, np.inf

    @property
    def smallest_magnitude(self) -> float:
        """Magnitude of a block below which its scale stays the same."""
        return 2.0 ** (get_largest_exponent(self.format) - 127)

    @property
    def scale_factor(self) -> float:
        """Quotient of the scale and the power of two below the magnitude of a block."""
        return float(self.element_grid.scale) * 2.0 ** -get_largest_exponent(self.format)

    @property
    def element_grid(self) -> Grid:
        """Grid of a block whose power of two is 1."""
        return make_block_grid(np.zeros((), np.int32), self.format)

    @property
    def power_bias(self) -> int:
        """Exponent bias of the format that represents the power of two below a magnitude."""
        return 128 - get_largest_exponent(self.format)


def make_dynamic_grid(tensor: ActivationTensor, block_format: BlockFormat) -> DynamicGrid:
    """Return blocks of a tensor, along the reduction axis of its readers.

    Raises:
        ModelError: The rank is unknown, or readers reduce different axes.
    """
    value, shape = tensor.value, tensor.value.shape
    names = ", ".join(dict.fromkeys(repr(layer.name) for layer, _ in tensor.readers))
    remedy = f'choose another format for {names}: --layer "NAME={block_format}/uint8"'
    if shape is None:
        raise ModelError(
            f"{value.name!r}: its rank is unknown, and {block_format} needs an axis; {remedy}"
        )
    axes = {
        _get_reduction_axis(layer, index, shape.rank()) % shape.rank()
        for layer, index in tensor.readers
    }
    if len(axes) > 1:
        raise ModelError(
            f"{value.name!r}: {block_format} needs one reduction axis, and its readers reduce axes "
            f"{', '.join(map(str, sorted(axes)))}; {remedy}"
        )
    sizes = tuple(size if isinstance(size, int) else None for size in shape)
    return DynamicGrid(block_format, axes.pop(), sizes)


def _get_reduction_axis(layer: TargetNode, index: int, rank: int) -> int:
    """Return the axis of an input of this rank along which products are summed."""
    node = layer.node
    match node.op_type:
        case "MatMul":
            return -1 if index == 0 or rank == 1 else -2
        case "Gemm":
            transposed = get_attribute(node, "transB" if index else "transA", 0)
            return -1 if bool(transposed) == bool(index) else -2
        case "ConvTranspose":
            return 0 if index else 1
        case "Conv":
            return 1
        case _:
            return -1
