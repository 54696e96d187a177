# SPDX-License-Identifier: Apache-2.0
"""Sums with several readers: the value up to which all of them share one computation."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from anybit.compiler.layer import CompiledLayer
from anybit.compiler.lower.lowerer import Refused
from anybit.compiler.operators import is_quantizer, is_uniform, varying_inputs
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Expression,
    IntegerTensor,
    PairRoot,
    PlannedInstruction,
    RegionOutput,
)
from anybit.compiler.requantize.float_replay import replay_floats


def live_instructions(planned: Sequence[PlannedInstruction]) -> list[PlannedInstruction]:
    """The instructions whose results reach an output."""
    live: set[object] = set()
    kept = []
    for each in reversed(planned):
        if isinstance(each.writes, RegionOutput) or each.writes.tensor in live:
            kept.append(each)
            live.update(read.tensor for read in each.reads if isinstance(read, IntegerTensor))
    return kept[::-1]


def find_shared_values(
    planned: Sequence[PlannedInstruction],
    model: ir.Model,
    coded: Container[ir.Value],
    tried: Container[ir.Value],
) -> dict[ir.Value, CompiledLayer | None]:
    """Return the value to share of each sum that several instructions compute.

    It is the last one that all readers depend on and that has not been tried: first of those that
    can be tensors of codes. None means that it is shared as codes; a layer, that it is shared as
    floats, which are the results of that layer.
    """
    groups: dict[ir.Node, list[PlannedInstruction]] = {}
    for each in live_instructions(planned):
        if each.origin is not None:
            assert isinstance(each.origin.root, AccumulatorRoot), "only products have one"
            groups.setdefault(each.origin.root.node, []).append(each)
    found: dict[ir.Value, CompiledLayer | None] = {}
    for group in groups.values():
        if len(group) > 1:
            found.update(_shared(group, model, coded, tried))
    return found


def _shared(
    group: Sequence[PlannedInstruction],
    model: ir.Model,
    coded: Container[ir.Value],
    tried: Container[ir.Value],
) -> dict[ir.Value, CompiledLayer | None]:
    """Return the value to share of one sum; none if its floats cannot be an output."""
    stems = [{stem.value: stem for stem in _stems(each.origin)} for each in group if each.origin]
    common = [stem for value, stem in stems[0].items() if all(value in each for each in stems)]
    common = [stem for stem in common[::-1] if stem.value not in tried]
    for stem in common:
        producer = stem.value.producer()
        if producer is not None and is_quantizer(producer) and stem.value in coded:
            return {stem.value: None}
    for stem in common:
        if _gives_floats(stem, model):
            layers = [each.layer for each in group if each.layer is not None]
            return {stem.value: replace(merge_layers(layers), levels=0, steps=0)}
    return {}


def _gives_floats(expression: Expression, model: ir.Model) -> bool:
    """Return whether a region can give a function of a sum as floats."""
    root = expression.root
    if expression.pending is not None or not isinstance(root, AccumulatorRoot):
        return False
    return replay_floats(expression.function(model), root) is not None


def merge_layers(layers: Sequence[CompiledLayer]) -> CompiledLayer:
    """Return one layer for several computations of it, with the weakest of their guarantees."""
    weakest = max(layers, key=lambda layer: -1 if layer.guarantee is None else layer.guarantee.rank)
    risks = {risk for layer in layers for risk in layer.risks}
    more = any(layer.more_risks for layer in layers)
    return replace(weakest, risks=tuple(sorted(risks)), more_risks=more)


def _stems(expression: Expression) -> Iterator[Expression]:
    """Yield the functions of a sum that all of an expression depends on, the sum itself first."""
    if expression.behind is not None:
        yield from _stems(expression.behind)
    values = [*expression.starts, *(node.outputs[0] for node in expression.nodes)]
    for count in range(len(values)):
        later = expression.nodes[count:]
        inside = set(values[: count + 1])
        if {x for node in later for x in varying_inputs(node)} & inside <= {values[count]}:
            yield replace(
                expression,
                value=values[count],
                nodes=expression.nodes[:count],
                same=all(map(is_uniform, expression.nodes[:count])),
                quantized=None,
            )


def float_inputs(expression: Expression, reader: str) -> list[ir.Value]:
    """Return the floats that the nodes of an expression read, if they are to run as they are.

    Raises:
        Refused: Its root is a sum, whose results are not an output of the region.
    """
    root = expression.root
    if isinstance(root, PairRoot):
        return [root.first.value, root.second.value]
    if expression.starts[0] is not expression.value:
        return [expression.starts[0]]
    if expression.behind is not None:
        return [expression.behind.value]
    node = root.node if isinstance(root, AccumulatorRoot) else expression.value.producer()
    assert node is not None, "expressions come from nodes"
    raise Refused(node, f"{reader} needs its floats, which no instruction gives")
