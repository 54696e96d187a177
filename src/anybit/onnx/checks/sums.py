# SPDX-License-Identifier: Apache-2.0
"""Sums of products, and means, of quantized tensors that float32 may round.

The analysis bounds a sum for the worst input and the actual weights. Here it is expressed in steps
of the products.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.analysis.analysis import analyze
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.rules.pools import count_averaged
from anybit.onnx.analysis.view import View
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.walk import iter_nodes
from anybit.ops.grids import Grid, IntegerGrid

# Operators that return input values, or 0.
_ON_GRID = OpTrait.DATA_MOVEMENT | OpTrait.SELECTION | OpTrait.RECTIFIER


@dataclass(frozen=True)
class LongSum:
    """The longest sum of a node, in steps of the products.

    `inexact_step` is a step that is not a power of two, `bias` a bias that is not a multiple of the
    steps; None if there is none. `floating` marks a factor that is a float of few bits instead of
    an integer times a step.
    """

    longest: float
    inexact_step: float | None
    bias: float | None
    floating: bool


def find_sums(subject: Subject) -> Iterator[tuple[ir.Node, LongSum]]:
    """Yield the sums of products of quantized tensors that float32 may round."""
    nodes, opset = iter_nodes(subject.model.graph), subject.model.graph.opset_imports.get("", 1)
    if all(not has_trait(node, OpTrait.MATMUL, opset) for node in nodes):
        return
    grids = _find_grids(subject)
    for product in analyze(subject.model).products:
        long_sum = None if product.exact else _analyze_sum(product, grids)
        if long_sum is not None:
            yield product.node, long_sum


def find_means(subject: Subject) -> Iterator[tuple[ir.Node, int]]:
    """Yield the means of quantized values, with the number of values."""
    grids, view = _find_grids(subject), View(subject.model)
    for node in iter_nodes(subject.model.graph):
        if has_trait(node, OpTrait.MEAN) and node.inputs and node.inputs[0] in grids:
            try:
                count = count_averaged(node, view)
            except ModelError:  # reported by the checker
                continue
            if count:
                yield node, count


def _find_grids(subject: Subject) -> dict[ir.Value, Grid]:
    """Return the grids of quantized tensors, also after operators that keep values on them."""
    quantizers = {quantizer.node: quantizer for quantizer in subject.quantizers}
    opset = subject.model.graph.opset_imports.get("", 1)
    grids: dict[ir.Value, Grid] = {}
    for node in iter_nodes(subject.model.graph):
        if not node.outputs:
            continue
        grid = None
        if node in quantizers:
            grid = quantizers[node].grid
        elif has_trait(node, _ON_GRID, opset) and node.inputs and node.inputs[0] is not None:
            grid = grids.get(node.inputs[0])
        if grid is not None and grid.scale.size:
            grids[node.outputs[0]] = grid
    return grids


def _analyze_sum(product: ProductAnalysis, grids: dict[ir.Value, Grid]) -> LongSum | None:
    """Return the sum of a node; None if a factor is not quantized, or nothing bounds it."""
    layout, total = product.layout, product.sum
    if layout is None or total is None:
        return None
    inputs = (product.node.inputs[index] for index in (layout.x, layout.weight))
    factors = [grids.get(value) for value in inputs if value is not None]
    known_grids = [grid for grid in factors if grid is not None]
    if len(known_grids) < 2:
        return None
    step = float(np.prod([_find_step(grid) for grid in known_grids]))
    longest = float(total.reach.max(initial=0)) / step if step > 0 else np.inf
    if not np.isfinite(longest):
        return None
    floating = any(not isinstance(grid, IntegerGrid) for grid in known_grids)
    return LongSum(longest, _find_inexact_step(known_grids), total.bias, floating)


def _find_step(grid: Grid) -> float:
    """Return the smallest distance of two values."""
    unit = 1.0 if isinstance(grid, IntegerGrid) else grid.format.smallest_subnormal
    return float(np.abs(np.asarray(grid.scale, np.float64)).min()) * unit


def _find_inexact_step(grids: Iterable[Grid]) -> float | None:
    """Return a step that is not a power of two."""
    for grid in grids:
        steps = np.unique(np.abs(np.asarray(grid.scale, np.float64)))
        wrong = steps[np.frexp(steps)[0] != 0.5]
        if wrong.size:
            unit = 1.0 if isinstance(grid, IntegerGrid) else grid.format.smallest_subnormal
            return float(wrong[0]) * unit
    return None
