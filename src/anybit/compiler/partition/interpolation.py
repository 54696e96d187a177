# SPDX-License-Identifier: Apache-2.0
"""Bilinear Resize by powers of two: sums of codes with weights that are small integers.

One convolution computes all results between the same elements as channels of one position, and
their codes are moved to their places, as those of a transposed convolution.
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import find_interpolation
from anybit.compiler.partition.accumulators import describe_mean, is_exact_sum
from anybit.compiler.partition.element_moves import plan_gather
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Accumulators,
    IntegerRange,
    IntegerTensor,
    PlannedInstruction,
)
from anybit.compiler.partition.layout import Layout
from anybit.compiler.partition.transposed_convolutions import number_groups
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.onnx.analysis.sums import bound_error
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array

_ROUNDINGS = 8
"""Most roundings of one result, of values that are at most twice those of x."""


@dataclass(frozen=True, eq=False)
class Interpolation:
    """A Resize as a convolution.

    Attributes:
        root: Its accumulators.
        instructions: The instructions that add borders to the source.
        layout: Layout of its output.
        numbers: The number of the element of its output for each element of the Resize.
    """

    root: AccumulatorRoot
    instructions: tuple[PlannedInstruction, ...]
    layout: Layout
    numbers: Array


def interpolate(
    node: ir.Node, source: IntegerTensor, y: Layout, reach: float, exponent: int | None
) -> Interpolation:
    """Return the accumulators of a bilinear Resize.

    Args:
        node: The node.
        source: Its input.
        y: Layout of its output.
        reach: Largest magnitude of its input.
        exponent: Its input is a multiple of this power of two; None if of none.

    Raises:
        Unsupported: It is not one of those that `find_interpolation` finds.
    """
    factors = find_interpolation(node)
    if factors is None or source.grid.scale == 0:
        raise Unsupported("it is not a bilinear Resize of height and width by 1, 2 or 4")
    is_centered = (
        get_attribute(node, "coordinate_transformation_mode", "half_pixel") != "asymmetric"
    )
    x = source.layout
    sides = [_weigh_side(factor, is_centered=is_centered) for factor in factors]
    starts, taps = [start for _, start, _ in sides], [len(weights[0]) for weights, _, _ in sides]
    bordered, gather = _add_borders(source, starts, taps)
    high, wide = (weights for weights, _, _ in sides)
    kernel = np.einsum("ik,jl->ijkl", high, wide).reshape(-1, high.shape[1], wide.shape[1])
    weights = np.tile(kernel, (x.channels, 1, 1))[..., None]
    layout = replace(x, channels=len(weights))
    numbers = number_groups(x.channels, x.channels, factors, y, layout)
    root = _make_root(node, bordered, weights, sides[0][2] * sides[1][2], reach, exponent)
    return Interpolation(root, (gather,), layout, numbers)


def _weigh_side(factor: int, *, is_centered: bool) -> tuple[Array, int, int]:
    """Return the weights of one axis, their first element, and the number that divides their sum.

    The weights are results x elements of x, for the results of one element.
    """
    divisor = 1 if factor == 1 else factor * (2 if is_centered else 1)
    start = -1 if is_centered and factor > 1 else 0
    stop = 1 if factor == 1 else 2
    weights = np.zeros((factor, stop - start), np.int64)
    for result in range(factor):
        place = (2 * result + 1 - factor) if is_centered else result
        element, rest = divmod(place, divisor)
        weights[result, element - start] += divisor - rest
        if rest:
            weights[result, element - start + 1] += rest
    return weights, start, divisor


def _add_borders(
    source: IntegerTensor, starts: list[int], taps: list[int]
) -> tuple[IntegerTensor, PlannedInstruction]:
    """Repeat the elements at the borders as far as windows reach."""
    x = source.layout
    lines = [
        np.arange(start, size + start + count - 1, dtype=np.int32).clip(0, size - 1)
        for size, start, count in zip((x.height, x.width), starts, taps, strict=True)
    ]
    layout = replace(x, height=len(lines[0]), width=len(lines[1]))
    target = replace(source, layout=layout, identity=object())
    channels = np.arange(x.channels, dtype=np.int32)
    indices = {"rows": lines[0], "columns": lines[1], "channels": channels}
    return target, plan_gather(source, target, 0, indices)


def _make_root(
    node: ir.Node,
    source: IntegerTensor,
    weights: Array,
    divisor: int,
    reach: float,
    exponent: int | None,
) -> AccumulatorRoot:
    grid, count = source.grid, len(weights)
    exact = is_exact_sum(2 * reach * divisor, exponent)
    slack = 0.0 if exact else bound_error(np.asarray(2 * reach), np.asarray(_ROUNDINGS))
    lowest, highest = grid.lowest * divisor, grid.highest * divisor
    weight_bits = max(1, int(weights.max()).bit_length())
    return AccumulatorRoot(
        node=node,
        source=source,
        window=p.Window(weights.shape[1], weights.shape[2], 1, 1, 1, 1, 0, 0, 0, 0),
        groups=source.layout.channels,
        weights=weights,
        accumulators=Accumulators(
            np.full(count, grid.scale / divisor, np.float32),
            IntegerRange(np.full(count, lowest), np.full(count, highest)),
            np.full(count, slack),
        ),
        layer=describe_mean(node, source, weight_bits, (lowest, highest), exact=exact),
    )
