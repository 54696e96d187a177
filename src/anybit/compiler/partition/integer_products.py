# SPDX-License-Identifier: Apache-2.0
"""Expressions of products that a file stores as integer operators on dynamic codes.

Weights less their zero-points may need 9 bits. Channels of such weights are read twice or more:
their weights are sums of 8-bit integers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.analyze.integer_products import IntegerProduct
from anybit.compiler.partition.accumulators import accumulate_product, compute_reach
from anybit.compiler.partition.dynamic_codes import append_zero_weights, count_zero_weights
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Expression,
    IntegerTensor,
    PlannedInstruction,
)
from anybit.compiler.partition.layout import Layout, make_layout
from anybit.compiler.partition.values import Values
from anybit.compiler.partition.windows import is_padded
from anybit.compiler.program import program as p
from anybit.compiler.reason import Reason, Unsupported, accept
from anybit.onnx.analysis.products import count_bits
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.require import require_input

_LOWEST, _HIGHEST = -128, 127
_MOST_CHANNELS = 2**16


@dataclass(frozen=True, eq=False)
class _Fitted:
    """Weights of 8 bits that compute the sums of wider ones, and subtract the zero-point.

    Attributes:
        weights: Integers, output channel x kernel row x kernel column x input channel: the
            channels of a group, then those that are repeated, then those of the zero-point.
        repeated: The channels of a group that are repeated.
        zeros: The number of channels of the zero-point.
    """

    weights: Array
    repeated: Array
    zeros: int


def express_integer_product(
    node: ir.Node, products: Mapping[ir.Node, IntegerProduct | Reason], values: Values
) -> Expression:
    """Return the expression of the float32 sums of an integer operator on dynamic codes.

    Args:
        node: The operator.
        products: The products of the graph.
        values: The values of the walk. Instructions are added.

    Raises:
        Unsupported: It has no integer kernel.
        MustStayFloat: A layer of a weaker guarantee would compute its input.
    """
    form = accept(products[node])
    x, result = form.quantizer.x, form.result
    repeated = (form.quantizer.scale, form.quantizer.zero, *form.factors)
    values.set_rows((node.outputs[0], *filter(None, repeated)), x)
    readers = (products.get(reader) for reader, _ in require_input(node).uses())
    others = [other for other in readers if isinstance(other, IntegerProduct)]
    zeros = max(map(_count_zero_channels, others))
    axis = 1 if node.op_type == "ConvInteger" else len(values.sizes(x))
    layout = make_layout(values.sizes(result), axis)
    tensor = values.dynamic_codes(form.quantizer, axis, zeros, get_label(node)).tensor
    channels = tensor.layout.channels - zeros
    root, instructions = _accumulate(form, tensor, channels, layout)
    values.append(*instructions)
    values.fuse(form.cast)
    return Expression(root, result, layout, starts=(result,))


def _count_zero_channels(form: IntegerProduct) -> int:
    """Return the number of channels of zero-points that the codes of a product need.

    Raises:
        Unsupported: Its weights do not fit its groups, or need too many channels.
    """
    layout, codes = form.product.layout, form.product.codes
    assert layout is not None, "integer products have a layout"
    assert codes is not None, "integer products have weights"
    split = layout.canonical(codes.astype(np.int64))
    weights = split.transpose(0, 1, 3, 2).reshape(-1, 1, split.shape[3], split.shape[2])
    fitted = _fit_weights(weights)
    return fitted.zeros if _is_direct(fitted, layout.groups) else min(fitted.zeros, 1)


def _accumulate(
    form: IntegerProduct, source: IntegerTensor, channels: int, y: Layout
) -> tuple[AccumulatorRoot, tuple[PlannedInstruction, ...]]:
    """Return the accumulators of a product, and the instructions that arrange its codes.

    Args:
        form: The product.
        source: Its codes; channels after those of the input hold the zero-point.
        channels: The number of channels of the input.
        y: Layout of its output.

    Raises:
        Unsupported: A window that does not fit, or sums of more than 32 bits.
    """
    plain = replace(source, layout=replace(source.layout, channels=channels))
    root, _ = accumulate_product(form.product, form.layer, plain, y)
    fitted = _fit_weights(root.weights)
    arranged, weights = source, fitted.weights
    instructions: tuple[PlannedInstruction, ...] = ()
    if _is_direct(fitted, root.groups):
        weights = append_zero_weights(root.weights, source.layout.channels - channels)
    else:
        arranged, instructions = _arrange(source, channels, root.groups, fitted)
    reach = compute_reach(source, weights, is_padded(root.window))
    span = int(reach.lowest.min()), int(reach.highest.max())
    layer = replace(root.layer, accumulator=span, accumulator_bits=count_bits(*span))
    sums = replace(root.accumulators, reach=reach)
    accumulators = replace(root, source=arranged, weights=weights, accumulators=sums, layer=layer)
    return accumulators, instructions


def _is_direct(fitted: _Fitted, groups: int) -> bool:
    """Return whether a product reads all channels of its codes in their order."""
    return groups == 1 and not fitted.repeated.size


def _fit_weights(weights: Array) -> _Fitted:
    """Return 8-bit weights of repeated channels, and of those of the zero-point.

    Raises:
        Unsupported: The zero-point needs too many channels.
    """
    parts, repeated = [np.clip(weights, _LOWEST, _HIGHEST)], list[Array]()
    rest = weights - parts[0]
    while rest.any():
        (places,) = np.nonzero(rest.any(axis=(0, 1, 2)))
        parts.append(np.clip(rest[..., places], _LOWEST, _HIGHEST))
        repeated.append(places)
        rest[..., places] -= parts[-1]
    fitted = np.concatenate(parts, axis=3)
    zeros = count_zero_weights(fitted)
    empty = np.zeros(0, np.int64)
    return _Fitted(append_zero_weights(fitted, zeros), np.concatenate([empty, *repeated]), zeros)


def _arrange(
    source: IntegerTensor, channels: int, groups: int, fitted: _Fitted
) -> tuple[IntegerTensor, tuple[PlannedInstruction, ...]]:
    """Return the channels of each group with those that are repeated, and of the zero-point."""
    size = channels // groups
    group = np.concatenate([np.arange(size), fitted.repeated])
    picks = np.arange(groups)[:, None] * size + group
    zeros = np.full((groups, fitted.zeros), channels)
    numbers = np.concatenate([picks, zeros], axis=1).ravel().astype(np.int32)
    if numbers.size > _MOST_CHANNELS:
        raise Unsupported(f"its zero-points need {numbers.size} channels, more than 65536")
    layout = replace(source.layout, channels=numbers.size)
    target = replace(source, layout=layout, identity=object())
    fields = {
        "rows": np.arange(layout.height, dtype=np.int32),
        "columns": np.arange(layout.width, dtype=np.int32),
        "channels": numbers,
        "first_channel": 0,
        "fill": 0,
    }
    return target, (PlannedInstruction(p.Gather, (source,), target, fields),)
