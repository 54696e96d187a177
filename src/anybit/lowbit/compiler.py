# SPDX-License-Identifier: Apache-2.0
"""From a graph to its regions, and to the graph in which each is one node."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.layers.behind import quantizers_behind
from anybit.layers.facts import connected, layers_of
from anybit.layers.layer import Guarantee, Layer
from anybit.lowbit.emission import Region, regions_of
from anybit.lowbit.encoding import encode
from anybit.lowbit.layers import CompiledLayer, compiled
from anybit.lowbit.planning import Memory, Refused
from anybit.lowbit.regions import Walk
from anybit.lowbit.wanted import wanted_codes
from anybit.onnx.analysis.analysis import Analysis, analyze
from anybit.onnx.analysis.carriers import Carrier
from anybit.onnx.graph.editor import Editor
from anybit.onnx.operators.integer_network import DOMAIN, NAME, PROGRAM
from anybit.onnx.passes import FoldConstants, InferShapes


@dataclass(frozen=True, eq=False)
class Plan:
    """What becomes of a graph.

    Attributes:
        model: The graph, its constants folded.
        regions: What is computed with integers.
        layers: The layers in the order of the graph, those that stay float among them.
    """

    model: ir.Model
    regions: tuple[Region, ...]
    layers: tuple[CompiledLayer, ...]


def plan(
    model: ir.Model,
    guarantee: Guarantee,
    ranges: Mapping[str, Carrier] | None = None,
    progress: Callable[[float], None] | None = None,
    *,
    exposed: bool = False,
) -> Plan:
    """The regions of a normalized model whose scales are folded and whose weights are not.

    The model is changed: its constants are folded. Regions that are `exposed` give all tensors of
    codes, too, as the floats that these stand for.
    """
    found = analyze(model, ranges)
    known, inside = _known(model, found)
    FoldConstants(codes=True)(model)
    InferShapes()(model)
    analysis = _named_again(found, model)
    wanted = wanted_codes(model, analysis)
    memory = Memory()
    while True:
        walk = Walk(model, analysis, known, wanted, guarantee, memory, progress)
        try:
            planned = walk.run(exposed=exposed)
            break
        except Refused as refused:
            memory.refused[refused.node] = refused.reason
    regions = regions_of(planned)
    layers = [each for number, region in enumerate(regions) for each in _placed(region, number)]
    return Plan(model, tuple(regions), _in_order(model, [*layers, *walk.layers(), *inside]))


def _known(model: ir.Model, found: Analysis) -> tuple[dict[str, Layer], list[CompiledLayer]]:
    """What is known of the layers by their outputs; and those inside of nodes, which stay float."""
    known, inside = {}, []
    layers = layers_of(model, found, quantizers_behind(found.products))
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


def _named_again(found: Analysis, model: ir.Model) -> Analysis:
    """An analysis in terms of the values that the model has now that constants are folded."""
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
        if value.name in values
    }
    products = [
        replace(product, node=nodes[product.node.outputs[0].name])
        for product in found.products
        if product.node.outputs[0].name in nodes
    ]
    return Analysis(carriers, products)


def _in_order(model: ir.Model, layers: list[CompiledLayer]) -> tuple[CompiledLayer, ...]:
    made = [str(value.name) for node in model.graph for value in node.outputs]
    places = {name: place for place, name in enumerate(made)}
    layers.sort(key=lambda layer: places.get(layer.output, len(places)))
    return tuple(connected(model.graph, layers))


def rewritten(plan: Plan) -> ir.Model:
    """The graph with one node per region. The plan's own model becomes it."""
    model = plan.model
    editor = Editor(model)
    for number, region in enumerate(plan.regions):
        _insert(model.graph, editor, region, f"integers_{number}" if number else "integers")
    model.graph.opset_imports[DOMAIN] = 1
    RemoveUnusedNodesPass()(model)
    model.graph.sort()
    return model


def _insert(graph: ir.Graph, editor: Editor, region: Region, name: str) -> None:
    encoded = encode(region.program)
    constants = [
        editor.constant(f"{name}_{part}", ir.tensor(getattr(encoded, part))) for part in PROGRAM
    ]
    node = ir.Node(
        DOMAIN,
        NAME,
        [*constants, *region.inputs],
        num_outputs=len(region.outputs),
        name=editor.unique(name),
    )
    graph.append(node)
    for old, new in zip(region.outputs, node.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name, old.name = old.name, editor.unique(f"{old.name}_float")
