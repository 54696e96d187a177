# SPDX-License-Identifier: Apache-2.0
"""Grids of the tensors of codes.

Data movement keeps codes. Values that are joined by it have the same grid: the smallest one with
the codes of all, and with 0 if there is padding.
"""

import math
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from anybit.compiler.analyze.disjoint_sets import DisjointSets
from anybit.compiler.operators import get_varying_inputs, is_quantizer
from anybit.compiler.program.program import MOST_LEVELS
from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.operators.registry import find_operator
from anybit.quant_types.grids import TensorGrid


def choose_tensor_grids(model: ir.Model, analysis: Analysis) -> dict[ir.Value, TensorGrid]:
    """Return the grid of every value that can be a tensor of codes."""
    own: dict[ir.Value, TensorGrid] = {}
    for value, abstract in analysis.values.items():
        grid = None if is_constant(value) else _derive_grid(abstract)
        if grid is not None:
            own[value] = grid
    joined = _join_moved(model, own)
    padded = {joined.find(x) for x in _iterate_padded(model)}
    members: dict[ir.Value, list[ir.Value]] = {}
    for value in own:
        members.setdefault(joined.find(value), []).append(value)
    grids = {}
    for root, values in members.items():
        common = _merge([own[value] for value in values], zero=root in padded)
        for value in values:
            grids[value] = common or _merge([own[value]], zero=root in padded) or own[value]
    return grids


def _join_moved(model: ir.Model, grids: Mapping[ir.Value, TensorGrid]) -> DisjointSets[ir.Value]:
    """Join the values of the same scale that data movement connects."""
    joined: DisjointSets[ir.Value] = DisjointSets()
    for node in model.graph:
        if has_trait(node, OpTrait.KEEPS_CODES):
            values = [v for v in (*node.inputs, *node.outputs) if v is not None and v in grids]
            for value in values[1:]:
                if grids[value].scale == grids[values[0]].scale:
                    joined.join(values[0], value)
    return joined


def explain_missing_grid(value: ir.Value, analysis: Analysis) -> str:
    """Return why a value cannot be a tensor of codes."""
    abstract = analysis.values.get(value)
    codes = None if abstract is None else abstract.codes
    name = f"its input {value.name!r}"
    if codes is None and _has_computed_scale(value):
        return f"{name} has a scale computed at run time: quantize it with a static one"
    if codes is None:
        remedy = "quantize with --activations uint8 and --data, or --activations 'int8 dynamic'"
        if value.is_graph_input():
            remedy = f"say what it holds with --input-range {value.name}=..., or {remedy}"
        return f"{name} is not quantized: {remedy}"
    if not codes.integral:
        return f"{name} has a zero-point that is not an integer: quantize it with one that is"
    if codes.scale.min() != codes.scale.max():
        return f"{name} has a scale per channel: quantize it with one for all"
    if codes.scale.flat[0] == 0:
        return f"{name} has the scale 0"
    return f"{name} has codes of more than 8 bits: quantize it to fewer"


def _has_computed_scale(value: ir.Value) -> bool:
    """Return whether a value is quantized with a computed scale, and perhaps moved then."""
    node = value.producer()
    while node is not None and has_trait(node, OpTrait.KEEPS_CODES) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None:
        return False
    operator = find_operator(node)
    if operator is not None and operator.block_axis is not None:
        return True
    if not is_quantizer(node):
        return False
    return any(parameter in get_varying_inputs(node) for parameter in node.inputs[1:])


def _derive_grid(abstract: AbstractValue) -> TensorGrid | None:
    """Return the grid of codes without zero-point; None if it has several scales or is long."""
    codes = abstract.codes
    if codes is None or not codes.integral:
        return None
    if codes.scale.min() != codes.scale.max() or codes.scale.flat[0] == 0:
        return None
    # All codes of the type if it is known: an epilogue is compared with the graph on more
    # accumulators than can occur.
    lowest, highest = (int(bound) for bound in (codes.centered[0].min(), codes.centered[1].max()))
    same = codes.zeropt.min() == codes.zeropt.max()
    step = codes.step if same and codes.members is None else 1
    if isinstance(codes.allowed, range) and same:
        zeropt = int(codes.zeropt.flat[0])
        lowest, highest = codes.allowed[0] - zeropt, codes.allowed[-1] - zeropt
        step = codes.allowed.step
    levels = (highest - lowest) // step + 1
    if levels > MOST_LEVELS:
        return None
    return TensorGrid(float(codes.scale.flat[0]), lowest, step, levels)


def _merge(grids: list[TensorGrid], *, zero: bool) -> TensorGrid | None:
    """Return the smallest grid with the codes of all, perhaps with 0; None if it is too long."""
    lowest = min(grid.lowest for grid in grids)
    highest = max(grid.highest for grid in grids)
    first = lowest
    steps = [grid.step for grid in grids if grid.levels > 1]
    steps += [grid.lowest - first for grid in grids]
    if zero:
        lowest, highest = min(lowest, 0), max(highest, 0)
        steps += [first - lowest, -lowest]
    step = math.gcd(*steps) or 1
    levels = (highest - lowest) // step + 1
    if levels > MOST_LEVELS:
        return None
    return TensorGrid(grids[0].scale, lowest, step, levels)


def _iterate_padded(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the values that a Conv, AveragePool or Pad pads with zeros."""
    for node in model.graph:
        x = node.inputs[0] if node.inputs else None
        if node.domain or x is None:
            continue
        if node.op_type == "Pad":
            yield x
        elif has_trait(node, OpTrait.MAY_PAD):
            automatic = get_attribute(node, "auto_pad", "NOTSET").startswith("SAME")
            if automatic or any(get_attribute(node, "pads", ())):
                yield x
