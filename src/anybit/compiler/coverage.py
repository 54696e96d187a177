# SPDX-License-Identifier: Apache-2.0
"""Layers of a compiled model: which run on integers, and why others do not."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import onnx_ir as ir

from anybit.compiler.analyze.analysis import AnalyzedModel
from anybit.compiler.encode import Region
from anybit.compiler.layer import CompiledLayer, merge_layers
from anybit.compiler.operators import get_captures, get_varying_inputs
from anybit.compiler.partition.partitioner import Partition
from anybit.compiler.prepare.codes.lifting import LiftedOperator, LiftedOperators
from anybit.compiler.reason import Reason
from anybit.compiler.rewrite.dynamic_matmuls import DynamicPair, describe_layer
from anybit.compiler.selection import LeftRegion
from anybit.onnx.analysis.layers import connect_layers
from anybit.onnx.graph.names import get_label, get_source_name
from anybit.onnx.qdq.integer_layers import INTEGER_REASON
from anybit.quant_types.layer_info import LayerInfo


def collect_layers(
    analyzed: AnalyzedModel,
    partition: Partition,
    regions: Sequence[Region],
    left: Mapping[Region, LeftRegion] = MappingProxyType({}),
    pairs: Mapping[str, DynamicPair] = MappingProxyType({}),
    codes: LiftedOperators | None = None,
) -> tuple[CompiledLayer, ...]:
    """Return all layers in the order of the graph.

    Args:
        analyzed: The model.
        partition: Its partition.
        regions: The regions of the compiled model.
        left: Other regions, whose layers stay float32.
        pairs: Products that nodes of their own compute on integers, by their outputs.
        codes: Operators on codes, which stay where no region has them.
    """
    lifted = {} if codes is None else codes.find_by_output()
    integers = list(_iterate_integer_layers(analyzed.model, regions))
    operators = {layer.output for layer in analyzed.kept if layer.layer.integer}
    operators |= lifted.keys()
    others = {layer.output for layer in integers}
    placed = [*integers, *_iterate_left_layers(left, others, operators)]
    layers = [
        *placed,
        *(
            describe_layer(layer, pairs[layer.output]) if layer.output in pairs else layer
            for layer in map(
                partial(_keep_integers, lifted.keys()), partition.float_layers(analyzed)
            )
        ),
        *_iterate_kept_layers(analyzed, partition, {layer.output for layer in placed}, codes),
    ]
    values = [value for node in analyzed.model.graph for value in node.outputs]
    positions = {str(value.name): position for position, value in enumerate(values)}
    layers = [_name_operator(layer, lifted) for layer in layers]
    layers.sort(key=lambda layer: positions.get(layer.output, len(positions)))
    infos = connect_layers(list(analyzed.model.graph), [layer.layer for layer in layers])
    names = {str(value.name): get_source_name(value) for value in values}
    infos = [_rename(info, names) for info in infos]
    return tuple(replace(layer, layer=info) for layer, info in zip(layers, infos, strict=True))


def _name_operator(layer: CompiledLayer, lifted: Mapping[str, LiftedOperator]) -> CompiledLayer:
    """Return a layer with the operator on codes that its file has."""
    own = lifted.get(layer.output)
    if own is None:
        return layer
    info = replace(layer.layer, operator=own.node.op_type)
    if own.weights and info.parameters and info.macs is not None:
        macs = info.macs * own.weights // info.parameters
        info = replace(info, macs=macs, parameters=own.weights)
    return replace(layer, layer=info)


def _keep_integers(lifted: Collection[str], layer: CompiledLayer) -> CompiledLayer:
    """Return a layer that no region has: as an integer operator if the file has one."""
    if layer.output not in lifted:
        return layer
    reason = f"{INTEGER_REASON}: {layer.reason}"
    return replace(layer, layer=replace(layer.layer, integer=True), reason=reason)


def _iterate_kept_layers(
    analyzed: AnalyzedModel,
    partition: Partition,
    others: Collection[str],
    codes: LiftedOperators | None,
) -> Iterator[CompiledLayer]:
    """Yield the layers that no region has, with the reasons of integer operators."""
    reasons = {
        str(node.outputs[0].name): product if isinstance(product, Reason) else reason
        for node, product in analyzed.integer_products.items()
        if (reason := partition.reasons.get(node)) or isinstance(product, Reason)
    }
    explained = {} if codes is None else codes.kept
    for layer in analyzed.kept:
        if layer.output not in others:
            reason = None if layer.output in explained else reasons.get(layer.output)
            text = layer.reason if reason is None else f"{layer.reason}: {reason}"
            yield replace(layer, reason=text)


def _rename(info: LayerInfo, names: Mapping[str, str]) -> LayerInfo:
    """Return a layer with the names of the source graph, those of unnamed nodes included."""
    name = names.get(info.name, info.name) if info.name == info.output else info.name
    return replace(info, name=name, output=names.get(info.output, info.output))


def _iterate_left_layers(
    left: Mapping[Region, LeftRegion], others: Collection[str], operators: Collection[str]
) -> Iterator[CompiledLayer]:
    """Yield the layers of regions that are left, except those of other regions and means.

    They stay float32, or integer operators of the file.
    """
    for region, described in left.items():
        for layer in _merge_equal_layers(region.layers.values()):
            if layer.output in others or not layer.macs:
                continue
            if layer.output in operators:
                info = replace(layer.layer, integer=True)
                yield CompiledLayer.in_float(info, described.integer_reason)
            else:
                yield CompiledLayer.in_float(layer.layer, described.reason)


def find_float_readers(model: ir.Model, regions: Sequence[Region]) -> dict[str, str]:
    """Return the values that float nodes compute besides the regions, and a reader of each."""
    computed = {value for region in regions for value in region.outputs}
    waiting = [(value, "an output of the model") for value in model.graph.outputs]
    waiting += [(value, "an integer region") for region in regions for value in region.inputs]
    readers: dict[ir.Value, str] = {}
    while waiting:
        value, reader = waiting.pop()
        node = value.producer()
        if node is None or value in computed or value in readers:
            continue
        readers[value] = reader
        waiting += [(x, get_label(node)) for x in (*get_varying_inputs(node), *get_captures(node))]
    return {str(value.name): reader for value, reader in readers.items()}


def _iterate_integer_layers(model: ir.Model, regions: Sequence[Region]) -> Iterator[CompiledLayer]:
    """Yield the layers of regions. Those that float nodes compute, too, do not count."""
    readers = find_float_readers(model, regions)
    for layer in _merge_equal_layers(_place_layers(regions)):
        reader = readers.get(layer.output)
        if reader is None:
            yield layer
        else:
            reason = f"{reader} needs its floats, so that it is computed in floats, too"
            yield replace(layer, guarantee=None, reason=reason)


def _place_layers(regions: Sequence[Region]) -> Iterator[CompiledLayer]:
    """Yield the layers of regions with their instructions and kernels."""
    for number, region in enumerate(regions):
        stages = region.network.describe()["stages"]
        for instruction, layer in region.layers.items():
            kernel = stages[instruction]["kernel"]
            yield replace(layer, kernel=kernel, place=(number, instruction))


def _merge_equal_layers(layers: Iterable[CompiledLayer]) -> list[CompiledLayer]:
    """Return one layer for all instructions that compute the same one."""
    groups: dict[str, list[CompiledLayer]] = {}
    for layer in layers:
        groups.setdefault(layer.output, []).append(layer)
    # The risks of one computation are sorted already, and may be a million.
    return [group[0] if len(group) == 1 else merge_layers(group) for group in groups.values()]
