# SPDX-License-Identifier: Apache-2.0
"""How long the sums of products of quantized tensors are, in steps of the products.

The bound is that of the worst input and of the weights that are there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.checks.subject import Subject
from anybit.onnx.folding.evaluation import evaluate_operator
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array, are_powers_of_two, array_of, is_constant
from anybit.onnx.graph.facts import Effect, Product, effect_of, product_of
from anybit.onnx.quantizers.quantizer import OwnQuantizer
from anybit.ops.grids import Grid, IntegerGrid

EXACT = 2.0**24
"""Up to so many units float32 holds every integer."""

Quantizers: TypeAlias = Mapping[ir.Node, OwnQuantizer]

# What gives back values that it takes, or 0.
_ON_GRID = (Effect.MOVE, Effect.SELECT, Effect.RECTIFY)


@dataclass(frozen=True)
class _Steps:
    """Integers of at most `reach`, each times a step.

    Of a float format the step is that of its smallest numbers, and `floating`.
    """

    step: Array
    reach: float
    floating: bool = False


@dataclass(frozen=True)
class _Weight:
    """A quantized constant, and the step of each element, as the consumer sees them."""

    values: Array
    step: Array
    floating: bool

    def transposed(self, order: Sequence[int]) -> "_Weight | None":
        if sorted(order) != list(range(self.values.ndim)):
            return None
        return replace(self, values=self.values.transpose(order), step=self.step.transpose(order))


@dataclass(frozen=True)
class Sum:
    """The longest sum that a node adds up, in units of `unit`, each a step of the products.

    `off` is a step that is not a power of two, `bias` one that is not a multiple of the unit; None
    if there is none. `floating` says that a factor is a float of few bits and not an integer times
    a step.
    """

    longest: float
    off: float | None
    bias: float | None
    floating: bool


def sums_in(subject: Subject) -> Iterator[tuple[ir.Node, Sum]]:
    """The sums of products of quantized tensors, node by node."""
    quantizers, opset = _quantizers(subject), subject.model.graph.opset_imports.get("", 1)
    for node in _valid(subject.model.graph.all_nodes()):
        product = product_of(node)
        if product is not None and len(node.inputs) > product.weight:
            found = _sum(node, product, quantizers, opset)
            if found is not None:
                yield node, found


def means_in(subject: Subject) -> Iterator[tuple[ir.Node, int]]:
    """The means of quantized values, and of how many values they are."""
    quantizers, opset = _quantizers(subject), subject.model.graph.opset_imports.get("", 1)
    for node in _valid(subject.model.graph.all_nodes()):
        if effect_of(node) is Effect.AVERAGE:
            count = _averaged(node) if _steps(node.inputs[0], quantizers, opset) else None
            if count is not None:
                yield node, count


def _valid(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Those whose attributes have the types that are read here; the checker tells the others."""
    for node in nodes:
        if node.domain == "" and node.inputs and node.outputs:
            try:
                for name, default in _READ.items():
                    attribute_of(node, name, default)
            except ModelError:
                continue
            yield node


_READ: Mapping[str, Any] = {
    "alpha": 1.0,
    "beta": 1.0,
    "transB": 0,
    "group": 1,
    "kernel_shape": (),
}


def _quantizers(subject: Subject) -> Quantizers:
    return {quantizer.node: quantizer for quantizer in subject.quantizers}


def _sum(node: ir.Node, product: Product, quantizers: Quantizers, opset: int) -> Sum | None:
    """The longest sum of a product of quantized tensors; None of others, and of invalid nodes."""
    # A MatMul may have its weight on either side.
    swapped = product.bias is None and _weight(node.inputs[0], quantizers) is not None
    at = 0 if swapped else product.weight
    x, weight = _steps(node.inputs[1 - at], quantizers, opset), _weight(node.inputs[at], quantizers)
    if x is None or weight is None or not weight.values.size:
        return None
    if any(attribute_of(node, name, 1.0) != 1 for name in ("alpha", "beta")):
        return None
    unit = float(x.step.min()) * float(weight.step.min())
    magnitudes = _column_sums(node, product, at, np.abs(weight.values))
    if magnitudes is None or unit == 0:
        return None
    steps = (*np.unique(x.step), *np.unique(weight.step))
    off = next((float(each) for each in steps if not are_powers_of_two(each)), None)
    with np.errstate(over="ignore"):
        longest = float((magnitudes / float(weight.step.min())).max(initial=0)) * x.reach
    bias = _bias(node, product, quantizers)
    wrong = None
    if bias is not None and bias.size:
        with np.errstate(over="ignore"):
            units = bias / unit
        longest += float(np.abs(units).max())
        if off is None and (units != np.rint(units)).any():
            wrong = float(bias[units != np.rint(units)][0])
    if not np.isfinite(longest):
        return None
    return Sum(longest, off, wrong, x.floating or weight.floating)


def _averaged(node: ir.Node) -> int | None:
    """How many values each mean is of."""
    x, y = node.inputs[0], node.outputs[0]
    kernel = attribute_of(node, "kernel_shape", ())
    if x is None or x.shape is None:
        return None
    if kernel:
        return int(np.prod(kernel))
    if y.shape is None or not x.shape.is_static() or not y.shape.is_static():
        return None
    return int(np.prod(x.shape.numpy())) // max(1, int(np.prod(y.shape.numpy())))


def _steps(value: ir.Value | None, quantizers: Quantizers, opset: int) -> _Steps | None:
    """What is known of a quantized activation."""
    while value is not None:
        node = value.producer()
        if node is None:
            return None
        if node in quantizers:
            return _steps_of(quantizers[node].grid)
        if effect_of(node, opset) not in _ON_GRID:
            return None
        value = node.inputs[0]
    return None


def _steps_of(grid: Grid | None) -> _Steps | None:
    if grid is None or not grid.scale.size:
        return None
    scale = np.abs(np.asarray(grid.scale, np.float64))
    if not np.isfinite(scale).all() or not (scale > 0).all():
        return None
    if isinstance(grid, IntegerGrid):
        zeropt = np.asarray(grid.zeropt, np.float64)
        if not np.isfinite(zeropt).all() or (zeropt != np.rint(zeropt)).any():
            return None
        ends = np.abs(np.stack([grid.lowest - zeropt, grid.highest - zeropt]))
        reach = float(ends.max())
    else:
        scale = scale * grid.format.smallest_subnormal
        reach = grid.format.max_val / grid.format.smallest_subnormal
    if not (scale > 0).all():  # the smallest numbers are too small
        return None
    floating = not isinstance(grid, IntegerGrid)
    with np.errstate(over="ignore"):
        return _Steps(scale, reach * float(scale.max() / scale.min()), floating)


def _weight(value: ir.Value | None, quantizers: Quantizers) -> _Weight | None:
    orders: list[Sequence[int] | None] = []
    node = None if value is None else value.producer()
    while node is not None and (node.domain, node.op_type) == ("", "Transpose"):
        orders.append(_order(node))
        value = node.inputs[0] if node.inputs else None
        node = None if value is None else value.producer()
    quantizer = None if node is None else quantizers.get(node)
    steps = _steps_of(quantizer.grid) if quantizer is not None and quantizer.constant else None
    values = None if quantizer is None or steps is None else _values(quantizer)
    if steps is None or values is None:
        return None
    found: _Weight | None = _Weight(
        values, np.broadcast_to(steps.step, values.shape), steps.floating
    )
    for order in reversed(orders):
        if order is None or found is None:
            return None
        found = found.transposed(order or range(values.ndim)[::-1])
    return found


def _order(node: ir.Node) -> Sequence[int] | None:
    try:
        return attribute_of(node, "perm", ())
    except ModelError:  # the checker tells
        return None


def _values(quantizer: OwnQuantizer) -> Array | None:
    """What a quantizer of a constant gives."""
    try:
        arrays = [None if value is None else array_of(value) for value in quantizer.node.inputs]
        return np.asarray(evaluate_operator(quantizer.node, quantizer.operator, arrays), np.float64)
    except ModelError:  # told with its parameters
        return None


def _column_sums(node: ir.Node, product: Product, at: int, magnitudes: Array) -> Array | None:
    """The sum over all that one element of the result takes from the weight; None if invalid."""
    rank = magnitudes.ndim
    axes: int | tuple[int, ...]
    if node.op_type == "MatMul":
        if rank == 0:
            return None
        axes = -1 if at == 0 or rank == 1 else -2
    elif rank != 2 if node.op_type == "Gemm" else rank < 3:
        return None
    elif node.op_type != "ConvTranspose":
        axes = tuple(axis for axis in range(rank) if axis != product.channel_axis)
    else:
        count = attribute_of(node, "group", 1)
        if not count or count < 0 or len(magnitudes) % count:
            return None
        magnitudes = magnitudes.reshape(count, -1, *magnitudes.shape[1:])
        axes = (1, *range(3, rank + 1))
    return np.asarray(magnitudes.sum(axis=axes))


def _bias(node: ir.Node, product: Product, quantizers: Quantizers) -> Array | None:
    at = product.bias
    value = node.inputs[at] if at is not None and len(node.inputs) > at else None
    if value is None:
        return None
    producer = value.producer()
    quantizer = None if producer is None else quantizers.get(producer)
    if quantizer is not None and quantizer.constant:
        return _values(quantizer)
    if not is_constant(value):
        return None
    try:
        array = array_of(value)
    except ModelError:  # told when the model is folded
        return None
    return np.asarray(array, np.float64) if array.dtype.kind in "fiub" else None
