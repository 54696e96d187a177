# SPDX-License-Identifier: Apache-2.0
"""Sums with several readers: the value up to which all of them share one computation."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from anybit.lowbit.arithmetic import arithmetic_of
from anybit.lowbit.elementwise import is_quantizer, is_uniform, varying_inputs
from anybit.lowbit.layers import CompiledLayer
from anybit.lowbit.parts import (
    Coded,
    Expression,
    Outlet,
    PairRoot,
    Planned,
    SumRoot,
)
from anybit.lowbit.planning import Refused


def read_instructions(planned: Sequence[Planned]) -> list[Planned]:
    """The instructions whose results reach an output."""
    live: set[object] = set()
    kept = []
    for each in reversed(planned):
        if isinstance(each.writes, Outlet) or each.writes.tensor in live:
            kept.append(each)
            live.update(read.tensor for read in each.reads if isinstance(read, Coded))
    return kept[::-1]


def shared_values(
    planned: Sequence[Planned],
    model: ir.Model,
    coded: Container[ir.Value],
    tried: Container[ir.Value],
) -> dict[ir.Value, CompiledLayer | None]:
    """Return the value to share of each sum that several instructions compute.

    It is the last one that all readers depend on and that has not been tried: first of those that
    can be tensors of codes. None means that it is shared as codes; a layer, that it is shared as
    floats, which are the results of that layer.
    """
    groups: dict[ir.Node, list[Planned]] = {}
    for each in read_instructions(planned):
        if each.origin is not None:
            assert isinstance(each.origin.root, SumRoot), "only products have one"
            groups.setdefault(each.origin.root.node, []).append(each)
    found: dict[ir.Value, CompiledLayer | None] = {}
    for group in groups.values():
        if len(group) > 1:
            found.update(_shared(group, model, coded, tried))
    return found


def _shared(
    group: Sequence[Planned],
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
            return {stem.value: replace(merged(layers), levels=0, steps=0)}
    return {}


def _gives_floats(expression: Expression, model: ir.Model) -> bool:
    """Return whether a region can give a function of a sum as floats."""
    root = expression.root
    if expression.pending is not None or not isinstance(root, SumRoot):
        return False
    return arithmetic_of(expression.function(model), root) is not None


def merged(layers: Sequence[CompiledLayer]) -> CompiledLayer:
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


def floats_before(expression: Expression, reader: str) -> list[ir.Value]:
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
    node = root.node if isinstance(root, SumRoot) else expression.value.producer()
    assert node is not None, "expressions come from nodes"
    raise Refused(node, f"{reader} needs its floats, which no instruction gives")
