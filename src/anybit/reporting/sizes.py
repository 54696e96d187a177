# SPDX-License-Identifier: Apache-2.0
"""What the constants of a quantized model take, counted as `quantize` counts them.

Weights take the bits that they have, and the scales of their blocks. All other numbers of
quantizers are passed over, as are those that scale channels before one, and what only moves the
elements of weights. A file does not tell blocks that are as long as their axis from channels.
"""

import math
from collections.abc import Collection, Iterable

import onnx_ir as ir

from anybit.onnx.graph.constants import are_powers_of_two, array_of, is_constant
from anybit.onnx.graph.walk import initializers_in, nodes_in
from anybit.onnx.operators.registry import operators_in
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.ops.grids import IntegerGrid
from anybit.quantization.schemes import BYTE_SCALE, FLOAT_SCALE
from anybit.reporting.quantized_layers import Factor

_FLOAT_BITS = 32


def sizes(model: ir.Model, factors: Iterable[Factor]) -> tuple[int, int]:
    """The bytes of all constants, with weights in floats and in as many bits as they have."""
    by_node = {each.quantizer.node: each for each in factors}.values()
    weights = [each for each in by_node if each.is_constant]
    moving = {node for each in weights for node in each.nodes}
    moving |= {node for each in by_node for node in [_smoothing(each.x)] if node is not None}
    quantizers = {node for node, _ in operators_in(model)}
    quantizers |= {
        node for node in nodes_in(model.graph) if is_quantize(node) or is_dequantize(node)
    }
    others = sum(
        value.const_value.nbytes
        for value in initializers_in(model)
        if value.const_value is not None and not _is_passed_over(value, moving, quantizers)
    )
    floats = sum(each.elements for each in weights) * _FLOAT_BITS // 8
    return others + floats, others + sum(map(stored_bytes, weights))


def stored_bytes(weight: Factor) -> int:
    """What a constant takes at its bits, with the scales of its blocks."""
    bits = weight.elements * weight.grid.bits
    return math.ceil((bits + weight.grid.scale.size * _scale_bits(weight)) / 8)


def _scale_bits(weight: Factor) -> int:
    """Of the scale of a block, with its zero-point; 0 if scales are not those of blocks."""
    grid = weight.grid
    if not weight.between or sum(size > 1 for size in grid.scale.shape) < 2:
        return 0
    if not isinstance(grid, IntegerGrid) or are_powers_of_two(grid.scale).all():
        return BYTE_SCALE
    return FLOAT_SCALE + (grid.bits if grid.zeropt.any() else 0)


def _smoothing(x: ir.Value) -> ir.Node | None:
    """What scales channels of an activation before its quantizer: by powers of two."""
    node = x.producer()
    if node is None or node.op_type != "Mul" or len(x.uses()) > 1:
        return None
    by = node.inputs[1]
    if by is None or not is_constant(by):
        return None
    return node if are_powers_of_two(array_of(by)).all() else None


def _is_passed_over(
    value: ir.Value, moving: Collection[ir.Node], quantizers: Collection[ir.Node]
) -> bool:
    """Whether it is a weight, or a number of a quantizer, and nothing else."""
    uses = value.uses()
    return bool(uses) and all(
        use.node in moving or (use.node in quantizers and use.idx > 0) for use in uses
    )
