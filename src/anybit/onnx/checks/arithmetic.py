# SPDX-License-Identifier: Apache-2.0
"""Sums of products that float32 does not compute exactly, so that they depend on their order.

A quantized tensor holds integers times a step. Where all steps are powers of two, products and
sums are exact as long as the sums stay within 2^24 units, whatever the order, the machine and the
runtime. The bound is that of the worst input and of the weights that are there.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.checks.finding import Finding, others, warning
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.evaluation import evaluate_operator
from anybit.onnx.graph.facts import Effect, Product, effect_of, product_of
from anybit.onnx.quantizers import OwnQuantizer
from anybit.ops.grids import Grid, IntegerGrid

_EXACT = 2.0**24

# What gives back values that it takes, or 0.
_ON_GRID = (Effect.MOVE, Effect.SELECT, Effect.RECTIFY)


@dataclass(frozen=True)
class _Steps:
    """Integers of at most `reach`, each times a step."""

    step: Array
    reach: float


def findings(subject: Subject) -> Iterator[Finding]:
    """Each sum that can be too long, and once for the model each other reason to round."""
    rounding: dict[str, list[tuple[ir.Node, str]]] = defaultdict(list)
    sites = {site.node: site for site in subject.quantizers}
    opset = subject.model.graph.opset_imports.get("", 1)
    for node in subject.model.graph.all_nodes():
        if not node.inputs:
            continue
        try:
            if effect_of(node) is Effect.AVERAGE:
                _note_average(node, _steps(node.inputs[0], sites, opset), rounding)
            elif (product := product_of(node)) is not None and len(node.inputs) > product.weight:
                yield from list(_sum_findings(node, product, sites, opset, rounding))
        except (ArithmeticError, IndexError, TypeError, ValueError):
            continue  # no valid node: the checker tells
    for code, (problem, remedy) in _REASONS.items():
        if found := rounding.get(code):
            shown = problem.format(found[0][1]) + others([node for node, _ in found])
            yield warning(found[0][0], code, shown, remedy)


_ORDER = "float32 results depend on the order of the sum"
_REASONS = {
    "products-round": (
        f"a step of {{}} is no power of two: products round, and {_ORDER}",
        "train with power-of-two scales where every bit must agree on every machine",
    ),
    "bias-off-grid": (
        f"the bias {{}} is no multiple of the products' step: adding it rounds, and {_ORDER}",
        "quantize the bias with the product of the two scales",
    ),
    "mean-rounds": (
        "the mean of {} values rounds; runtimes divide, or multiply by the reciprocal",
        "average a power of two of values, or sum and requantize",
    ),
}


def _sum_findings(
    node: ir.Node,
    product: Product,
    sites: dict[ir.Node, OwnQuantizer],
    opset: int,
    rounding: dict[str, list[tuple[ir.Node, str]]],
) -> Iterator[Finding]:
    # A MatMul may have its weight on either side.
    swapped = product.bias is None and _weight(node.inputs[0], sites) is not None
    at = 0 if swapped else product.weight
    x, weight = _steps(node.inputs[1 - at], sites, opset), _weight(node.inputs[at], sites)
    if x is None or weight is None:
        return
    values, step = weight
    factors = (node.attributes.get(name) for name in ("alpha", "beta"))
    if any(factor is not None and factor.value != 1 for factor in factors):
        return
    off = [each for each in (*np.unique(x.step), *np.unique(step)) if not _is_power_of_two(each)]
    unit = float(x.step.min()) * float(step.min())
    sums = _column_sums(node, at, np.abs(values)) / float(step.min())
    longest = float(sums.max(initial=0)) * x.reach
    bias = _bias(node, product, sites)
    if bias is not None and bias.size:
        longest += float(np.abs(bias).max()) / unit
        if not off and (bias / unit != np.rint(bias / unit)).any():
            wrong = bias[bias / unit != np.rint(bias / unit)]
            rounding["bias-off-grid"].append((node, f"{wrong[0]:.6g}"))
    if off:
        rounding["products-round"].append((node, f"{off[0]:.6g}"))
    if longest > _EXACT:
        problem = (
            f"sums reach {longest:.4g} steps of the products, more than the 2^24 up to which "
            f"float32 is exact; an accumulator needs {_bits(longest)} bits"
        )
        remedy = "use fewer bits or smaller weights, or integer accumulators that wide"
        yield warning(node, "accumulator-width", problem, remedy)


def _bits(longest: float) -> int:
    return int(np.ceil(np.log2(longest + 1))) + 1


def _note_average(
    node: ir.Node, steps: _Steps | None, rounding: dict[str, list[tuple[ir.Node, str]]]
) -> None:
    x, y = node.inputs[0], node.outputs[0]
    if x is None or steps is None or x.shape is None:
        return
    kernel = node.attributes.get("kernel_shape")
    if kernel is not None and not kernel.is_ref():
        count = int(np.prod(kernel.as_ints()))
    elif y.shape is not None and x.shape.is_static() and y.shape.is_static():
        count = int(np.prod(x.shape.numpy())) // max(1, int(np.prod(y.shape.numpy())))
    else:
        return
    if not _is_power_of_two(float(count)):
        rounding["mean-rounds"].append((node, str(count)))


def _steps(value: ir.Value | None, sites: dict[ir.Node, OwnQuantizer], opset: int) -> _Steps | None:
    """What is known of a quantized activation."""
    while value is not None:
        node = value.producer()
        if node is None:
            return None
        if node in sites:
            return _steps_of(sites[node].grid)
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
    return _Steps(scale, reach * float(scale.max() / scale.min()))


def _weight(
    value: ir.Value | None, sites: dict[ir.Node, OwnQuantizer]
) -> tuple[Array, Array] | None:
    """A quantized constant and the step of each element, as the consumer sees them."""
    node = None if value is None else value.producer()
    if node is None:
        return None
    if node.op_type == "Transpose" and node.domain == "":
        inner = _weight(node.inputs[0], sites)
        if inner is None:
            return None
        axes = node.attributes.get("perm")
        order = None if axes is None else axes.as_ints()
        return inner[0].transpose(order), inner[1].transpose(order)
    site = sites.get(node)
    steps = _steps_of(site.grid) if site is not None and site.constant else None
    if site is None or steps is None:
        return None
    values = _values(site)
    if values is None:
        return None
    return values, np.broadcast_to(steps.step, values.shape)


def _values(site: OwnQuantizer) -> Array | None:
    """What a quantizer of a constant gives."""
    arrays = [None if value is None else array_of(value) for value in site.node.inputs]
    try:
        return np.asarray(evaluate_operator(site.node, site.operator, arrays), np.float64)
    except ModelError:  # told with its parameters
        return None


def _column_sums(node: ir.Node, at: int, magnitudes: Array) -> Array:
    """The sum over all that one element of the result takes from the weight."""
    rank = magnitudes.ndim
    axes: int | tuple[int, ...]
    if node.op_type == "Conv":
        axes = tuple(range(1, rank))
    elif node.op_type == "ConvTranspose":
        group = node.attributes.get("group")
        count = 1 if group is None else group.as_int()
        magnitudes = magnitudes.reshape(count, -1, *magnitudes.shape[1:])
        axes = (1, *range(3, rank + 1))
    elif node.op_type == "Gemm":
        transposed = node.attributes.get("transB")
        axes = 1 if transposed is not None and transposed.as_int() else 0
    else:
        axes = -1 if at == 0 or rank == 1 else -2
    return np.asarray(magnitudes.sum(axis=axes))


def _bias(node: ir.Node, product: Product, sites: dict[ir.Node, OwnQuantizer]) -> Array | None:
    at = product.bias
    value = node.inputs[at] if at is not None and len(node.inputs) > at else None
    if value is None:
        return None
    producer = value.producer()
    site = None if producer is None else sites.get(producer)
    if site is not None and site.constant:
        return _values(site)
    return np.asarray(array_of(value), np.float64) if is_constant(value) else None


def _is_power_of_two(value: float) -> bool:
    return bool(np.frexp(value)[0] == 0.5)
