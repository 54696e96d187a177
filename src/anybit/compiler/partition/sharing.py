# SPDX-License-Identifier: Apache-2.0
"""Accumulators with several readers: the value up to which these share one computation."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from anybit.compiler.layer import CompiledLayer, merge_layers
from anybit.compiler.operators import get_varying_inputs, is_quantizer, is_uniform
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Expression,
    IntegerTensor,
    PairRoot,
    PlannedInstruction,
    RegionInput,
    RegionOutput,
)
from anybit.compiler.partition.lowering import Lowering
from anybit.compiler.reason import MustStayFloat
from anybit.onnx.graph.require import require_producer


def select_live_instructions(
    instructions: Sequence[PlannedInstruction], outputs: Container[ir.Value]
) -> list[PlannedInstruction]:
    """Return the instructions whose results reach an output."""
    live: set[object] = set()
    kept = []
    for instruction in reversed(instructions):
        writes = instruction.writes
        is_output = isinstance(writes, RegionOutput) and writes.value in outputs
        if is_output or get_identity(writes) in live:
            kept.append(instruction)
            live.update(map(get_identity, instruction.reads))
    return kept[::-1]


def get_identity(operand: RegionInput | RegionOutput | IntegerTensor) -> object:
    """Return the key of an operand: several values may name one tensor."""
    return operand.identity if isinstance(operand, IntegerTensor) else operand


def find_shared_values(
    instructions: Sequence[PlannedInstruction],
    outputs: Container[ir.Value],
    lowering: Lowering,
    gridded: Container[ir.Value],
    tried: Container[ir.Value],
) -> dict[ir.Value, CompiledLayer | None]:
    """Return one value to share for all accumulators that several instructions compute.

    It is the last one that all readers depend on and that has not been tried, preferably one on a
    grid. None means that it is shared as codes; a layer means that it is shared as the float32
    results of the layer.
    """
    groups: dict[ir.Node, list[PlannedInstruction]] = {}
    for instruction in select_live_instructions(instructions, outputs):
        if instruction.origin is not None:
            assert isinstance(instruction.origin.root, AccumulatorRoot), "only products have one"
            groups.setdefault(instruction.origin.root.node, []).append(instruction)
    shared: dict[ir.Value, CompiledLayer | None] = {}
    for group in groups.values():
        if len(group) > 1:
            shared.update(_share(group, lowering, gridded, tried))
    return shared


def _share(
    group: Sequence[PlannedInstruction],
    lowering: Lowering,
    gridded: Container[ir.Value],
    tried: Container[ir.Value],
) -> dict[ir.Value, CompiledLayer | None]:
    """Return the value to share of one set of accumulators; none if it has no integer code."""
    stems = [
        {stem.value: stem for stem in _iterate_stems(instruction.origin)}
        for instruction in group
        if instruction.origin
    ]
    common = [stem for value, stem in stems[0].items() if all(value in other for other in stems)]
    common = [stem for stem in common[::-1] if stem.value not in tried]
    for stem in common:
        producer = stem.value.producer()
        if producer is not None and is_quantizer(producer) and stem.value in gridded:
            return {stem.value: None}
    for stem in common:
        if lowering.gives_floats(stem):
            layers = [instruction.layer for instruction in group if instruction.layer is not None]
            return {stem.value: replace(merge_layers(layers), levels=0, steps=0)}
    return {}


def _iterate_stems(expression: Expression) -> Iterator[Expression]:
    """Yield the functions that all of an expression depends on, the accumulators first."""
    if expression.moved_from is not None:
        yield from _iterate_stems(expression.moved_from)
    values = [*expression.starts, *(node.outputs[0] for node in expression.nodes)]
    for count in range(len(values)):
        later = expression.nodes[count:]
        before = set(values[: count + 1])
        if {x for node in later for x in get_varying_inputs(node)} & before <= {values[count]}:
            yield replace(
                expression,
                value=values[count],
                nodes=expression.nodes[:count],
                same=all(map(is_uniform, expression.nodes[:count])),
                quantized=None,
            )


def find_float_inputs(expression: Expression, reader: str) -> list[ir.Value]:
    """Return the floats that an expression needs if its nodes stay in the graph.

    Raises:
        MustStayFloat: It is a sum, whose node has to stay, too.
    """
    root = expression.root
    if isinstance(root, PairRoot):
        return [root.first.value, root.second.value]
    if expression.starts[0] is not expression.value:
        return [expression.starts[0]]
    if expression.moved_from is not None:
        return [expression.moved_from.value]
    node = root.node if isinstance(root, AccumulatorRoot) else require_producer(expression.value)
    raise MustStayFloat(node, f"{reader} needs its floats, which no instruction gives")
