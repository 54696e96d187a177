# SPDX-License-Identifier: Apache-2.0
"""From a graph to its regions, and to the graph in which each is one node."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.errors import ModelError
from anybit.lowbit.earlier import quantize_earlier
from anybit.lowbit.elementwise import captures_of, varying_inputs
from anybit.lowbit.emission import Region, regions_of
from anybit.lowbit.encoding import encode
from anybit.lowbit.float_weights import is_coded
from anybit.lowbit.layers import CompiledLayer, compiled
from anybit.lowbit.node import encoded_of, node_of
from anybit.lowbit.parts import Planned
from anybit.lowbit.planning import Memory, Refused
from anybit.lowbit.regions import Walk
from anybit.lowbit.sharing import merged
from anybit.lowbit.shuffles import gather_shuffled
from anybit.lowbit.wanted import wanted_codes
from anybit.onnx.analysis.analysis import Analysis, analyze
from anybit.onnx.analysis.carriers import Carrier
from anybit.onnx.analysis.layers import connected, layers_of, quantizers_after
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import described, label_of
from anybit.onnx.graph.walk import values_in
from anybit.onnx.operators.integer_network import DOMAIN, PROGRAM, is_integer_network
from anybit.onnx.passes import FoldConstants, InferShapes
from anybit.quant_types.layer_info import Guarantee, LayerInfo

_MOST_WALKS = 8
"""A walk finds all that is refused but for what follows from what is refused: few do."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What becomes of a graph.

    Attributes:
        model: The graph, its constants folded.
        regions: What is computed with integers.
        layers: The layers in the order of the graph, those that stay float among them.
        weights: The codes of constants, by the names of their values.
    """

    model: ir.Model
    regions: tuple[Region, ...]
    layers: tuple[CompiledLayer, ...]
    weights: Mapping[str, Carrier]


def plan(
    model: ir.Model,
    guarantee: Guarantee,
    ranges: Mapping[str, Carrier] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Plan:
    """The regions of a normalized model whose scales are folded and whose weights are not.

    The model is changed: its constants are folded.
    """
    gather_shuffled(model)
    copies = quantize_earlier(model)
    found = analyze(model, ranges)
    known, inside = _known(model, found)
    outside = set(values_in(model.graph))
    FoldConstants(codes=True)(model)
    InferShapes()(model)
    analysis = _named_again(found, outside, model)
    wanted = wanted_codes(model, analysis)
    memory = Memory()
    walk, planned = _last_walk(
        lambda: Walk(model, analysis, known, wanted, guarantee, memory, progress), memory, model
    )
    regions = [replace(each, codes=each.codes - copies) for each in regions_of(planned)]
    placed = [each for number, region in enumerate(regions) for each in _placed(region, number)]
    layers = _without_floats(model, regions, _once(placed))
    weights = {str(value.name): each for value, each in analysis.carriers.items() if is_coded(each)}
    in_order = _in_order(model, [*layers, *walk.layers(), *inside])
    return Plan(model, tuple(regions), in_order, weights)


def _last_walk(
    walk: Callable[[], Walk], memory: Memory, model: ir.Model
) -> tuple[Walk, list[Planned]]:
    """Walk until nothing is refused and no sum is computed twice, as far as that can be had."""
    refusals = shares = 0
    while True:
        if refusals == _MOST_WALKS:
            memory.refused.update(dict.fromkeys(model.graph, "too much around it stays float"))
        last = walk()
        try:
            planned = last.run()
        except Refused:
            refusals += 1
            continue
        shared = last.shared(more=shares < _MOST_WALKS)
        if not shared:
            return last, planned
        shares += 1
        memory.shared.update(shared)


def _known(model: ir.Model, found: Analysis) -> tuple[dict[str, LayerInfo], list[CompiledLayer]]:
    """What is known of the layers by their outputs; and those inside of nodes, which stay float."""
    known, inside = {}, []
    layers = layers_of(model, found, quantizers_after(found.products))
    for layer, product in zip(layers, found.products, strict=True):
        if product.node.graph is model.graph:
            known[layer.output] = layer
        else:
            why = "it stands in a branch or a loop"
            inside.append(compiled(layer, guarantee=None, reason=why))
    return known, inside


def _placed(region: Region, number: int) -> Iterator[CompiledLayer]:
    """The layers of a region, with their places and what computes each here."""
    stages = region.network.describe()["stages"]
    for instruction, layer in region.layers.items():
        kernel = stages[instruction]["kernel"]
        yield replace(layer, kernel=kernel, place=(number, instruction))


def _once(layers: Iterable[CompiledLayer]) -> list[CompiledLayer]:
    """Return one layer for all instructions that compute the same one."""
    groups: dict[str, list[CompiledLayer]] = {}
    for layer in layers:
        groups.setdefault(layer.output, []).append(layer)
    return [merged(group) for group in groups.values()]


def _without_floats(
    model: ir.Model, regions: Iterable[Region], layers: Iterable[CompiledLayer]
) -> Iterator[CompiledLayer]:
    """Yield the layers of regions; those that float nodes compute, too, are not covered."""
    readers = float_readers(model, regions)
    for layer in layers:
        reader = readers.get(layer.output)
        why = f"{reader} needs its floats, so that it is computed in floats, too"
        yield layer if reader is None else replace(layer, guarantee=None, reason=why)


def float_readers(model: ir.Model, regions: Iterable[Region]) -> dict[str, str]:
    """Return what needs each value that float nodes compute beside the regions, by its name."""
    regions = list(regions)
    given = {value for region in regions for value in region.outputs}
    waiting = [(value, "an output of the model") for value in model.graph.outputs]
    waiting += [(value, "an integer region") for region in regions for value in region.inputs]
    readers: dict[ir.Value, str] = {}
    while waiting:
        value, reader = waiting.pop()
        node = value.producer()
        if node is None or value in given or value in readers:
            continue
        readers[value] = reader
        waiting += [(x, label_of(node)) for x in (*varying_inputs(node), *captures_of(node))]
    return {str(value.name): reader for value, reader in readers.items()}


def _named_again(found: Analysis, outside: Container[ir.Value], model: ir.Model) -> Analysis:
    """An analysis in terms of the values that the model has now that constants are folded.

    Those that stood `outside` of branches are meant: inside, a name may stand for another value.
    """
    values = {
        value.name: value
        for node in model.graph
        for value in (*node.inputs, *node.outputs)
        if value is not None
    }
    values.update((value.name, value) for value in model.graph.inputs)
    nodes = {value.name: node for node in model.graph for value in node.outputs}
    carriers = {
        values[value.name]: carrier
        for value, carrier in found.carriers.items()
        if value in outside and value.name in values
    }
    products = [
        replace(product, node=nodes[product.node.outputs[0].name])
        for product in found.products
        if product.node.outputs[0] in outside and product.node.outputs[0].name in nodes
    ]
    return Analysis(carriers, products)


def _in_order(model: ir.Model, layers: list[CompiledLayer]) -> tuple[CompiledLayer, ...]:
    made = [str(value.name) for node in model.graph for value in node.outputs]
    places = {name: place for place, name in enumerate(made)}
    layers.sort(key=lambda layer: places.get(layer.output, len(places)))
    infos = connected(list(model.graph), [layer.layer for layer in layers])
    return tuple(replace(layer, layer=info) for layer, info in zip(layers, infos, strict=True))


def rewritten(model: ir.Model, regions: Iterable[Region]) -> dict[str, Region]:
    """Let the planned model have one node per region: these by the names of their nodes."""
    editor = Editor(model)
    found = {}
    given: dict[ir.Value, ir.Value] = {}
    for region in regions:
        node = node_of(region.program, [given.get(x, x) for x in region.inputs], editor)
        model.graph.append(node)
        for old, new in zip(region.outputs, node.outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            new.name, old.name = old.name, editor.unique(f"{old.name}_float")
            given[old] = new
        found[str(node.name)] = region
    model.graph.opset_imports[DOMAIN] = 1
    RemoveUnusedNodesPass()(model)
    model.graph.sort()
    return found


def expose(model: ir.Model, regions: Mapping[str, Region]) -> None:
    """Let a model, as a file has it, give all that its regions compute, tensors of codes too.

    Floats that only their own region reads are left out: nothing is promised of their last bits.

    Raises:
        ModelError: A node has not the program of its region.
    """
    editor = Editor(model)
    for node in [node for node in model.graph if is_integer_network(node)]:
        region = regions.get(str(node.name))
        if region is None or not encoded_of(node).equals(encode(region.program)):
            raise ModelError(f"{described(node)} is not what was compiled")
        inputs = [value for value in node.inputs[len(PROGRAM) :] if value is not None]
        more = node_of(region.exposed.program, inputs, editor)
        model.graph.insert_before(node, more)
        given = len(node.outputs)
        inner = set()
        for old, new in zip(node.outputs, more.outputs[:given], strict=True):
            if not old.uses() and not old.is_graph_output():
                inner.add(new)
            new.name, new.type, new.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        for value, new in zip(region.exposed.outputs[given:], more.outputs[given:], strict=True):
            new.name, new.type = editor.unique(str(value.name)), value.type
        shown = (new for new in more.outputs if not new.is_graph_output() and new not in inner)
        model.graph.outputs.extend(shown)
        model.graph.remove(node, safe=True)
