# SPDX-License-Identifier: Apache-2.0
"""Expressions of products that a file stores as integer operators on dynamic codes.

Weights less their zero-points may need 9 bits. Channels of such weights are read twice or more:
their weights are sums of 8-bit integers.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.analyze.integer_products import IntegerProduct
from anybit.compiler.partition.accumulators import accumulate_product, compute_reach
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Expression,
    IntegerTensor,
)
from anybit.compiler.partition.layout import Layout, make_layout
from anybit.compiler.partition.values import Values
from anybit.compiler.partition.windows import is_padded
from anybit.compiler.reason import Reason, Unsupported, accept
from anybit.compiler.zero_weights import FittedWeights, append_zero_weights
from anybit.onnx.analysis.products import count_bits
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.require import require_input

_MOST_CHANNELS = 2**16


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
    zeros = max(_count_zeros(other) for other in readers if isinstance(other, IntegerProduct))
    axis = 1 if node.op_type == "ConvInteger" else len(values.sizes(x))
    layout, channels = make_layout(values.sizes(result), axis), values.sizes(x)[axis - 1]
    order = _order_channels(form.fitted, form.groups, channels)
    codes = values.dynamic_codes(form.quantizer, axis, zeros, get_label(node), order)
    root = _accumulate(form, codes.tensor, channels, layout)
    values.fuse(form.cast)
    return Expression(root, result, layout, starts=(result,))


def _count_zeros(form: IntegerProduct) -> int:
    """Return the number of channels of zero-points after those of the input.

    Raises:
        Unsupported: The weights need too many channels.
    """
    return form.fitted.zeros if _is_direct(form.fitted, form.groups) else 0


def _accumulate(
    form: IntegerProduct, source: IntegerTensor, channels: int, y: Layout
) -> AccumulatorRoot:
    """Return the accumulators of a product.

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
    weights = form.fitted.weights.reshape(*root.weights.shape[:3], -1)
    if _is_direct(form.fitted, root.groups):
        weights = append_zero_weights(root.weights, source.layout.channels - channels)
    reach = compute_reach(source, weights, is_padded(root.window))
    span = int(reach.lowest.min()), int(reach.highest.max())
    layer = replace(root.layer, accumulator=span, accumulator_bits=count_bits(*span))
    sums = replace(root.accumulators, reach=reach)
    return replace(root, source=source, weights=weights, accumulators=sums, layer=layer)


def _is_direct(fitted: FittedWeights, groups: int) -> bool:
    """Return whether a product reads all channels of its codes in their order."""
    return groups == 1 and not fitted.repeated.size


def _order_channels(fitted: FittedWeights, groups: int, channels: int) -> tuple[int, ...]:
    """Return the channels of each group, those that are repeated, and -1 for the zero-point.

    Empty if a product reads the channels of the input in their order, then zero-points.

    Raises:
        Unsupported: There are too many.
    """
    if _is_direct(fitted, groups):
        return ()
    size = channels // groups
    group = np.concatenate([np.arange(size), fitted.repeated])
    numbers = np.arange(groups)[:, None] * size + group
    order = np.pad(numbers, ((0, 0), (0, fitted.zeros)), constant_values=-1).ravel()
    if order.size > _MOST_CHANNELS:
        raise Unsupported(f"its zero-points need {order.size} channels, more than {_MOST_CHANNELS}")
    return tuple(order.tolist())
