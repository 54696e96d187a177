# SPDX-License-Identifier: Apache-2.0
"""From a graph to its regions, and to the graph in which each is one node."""

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from anybit.compiler.analyze.tensor_grids import choose_tensor_grids
from anybit.compiler.backends.onnx_node import make_node, read_encoded
from anybit.compiler.encode import Region, encode_regions
from anybit.compiler.layer import CompiledLayer, compiled
from anybit.compiler.lower.lowerer import Memory, Refused
from anybit.compiler.operators import captures_of, varying_inputs
from anybit.compiler.partition.expressions import PlannedInstruction
from anybit.compiler.partition.partitioner import Partitioner
from anybit.compiler.partition.sharing import merge_layers
from anybit.compiler.prepare.channel_shuffle import replace_channel_shuffles
from anybit.compiler.prepare.eligibility import is_integer_only, why_unquantized
from anybit.compiler.prepare.hoist_quantizers import hoist_quantizers
from anybit.compiler.program.encoding import encode
from anybit.compiler.report import Report
from anybit.compiler.rewrite.float_weights import fits_int8, store_integer_weights
from anybit.compiler.timing import measured, timed
from anybit.errors import ModelError
from anybit.inputs import Array, Tensor, declared, declared_inputs
from anybit.layers.behind import quantizers_behind
from anybit.layers.facts import connected, layers_of
from anybit.layers.layer import Guarantee, Layer
from anybit.made_up_inputs import with_sizes
from anybit.model import Engine, Model, RuntimeEngine
from anybit.onnx import Source, save
from anybit.onnx.analysis.analysis import Analysis, analyze
from anybit.onnx.analysis.carriers import Carrier
from anybit.onnx.analysis.ranges import Ranges, carriers_of
from anybit.onnx.files.collection import seldom_collected
from anybit.onnx.files.quiet import quiet
from anybit.onnx.files.reader import read_copy
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import described, label_of
from anybit.onnx.graph.shapes import has_free_sizes
from anybit.onnx.graph.walk import nodes_in, values_in
from anybit.onnx.operators.integer_network import DOMAIN, PROGRAM, is_integer_network
from anybit.onnx.passes import FoldConstants, InferShapes
from anybit.onnx.preparation import errors_named_after, followable, runnable

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
    replace_channel_shuffles(model)
    copies = hoist_quantizers(model)
    found = analyze(model, ranges)
    known, inside = _known(model, found)
    outside = set(values_in(model.graph))
    FoldConstants(codes=True)(model)
    InferShapes()(model)
    analysis = _named_again(found, outside, model)
    wanted = choose_tensor_grids(model, analysis)
    memory = Memory()
    walk, planned = _last_walk(
        lambda: Partitioner(model, analysis, known, wanted, guarantee, memory, progress),
        memory,
        model,
    )
    regions = [replace(each, codes=each.codes - copies) for each in encode_regions(planned)]
    placed = [each for number, region in enumerate(regions) for each in _placed(region, number)]
    layers = _without_floats(model, regions, _once(placed))
    weights = {
        str(value.name): each for value, each in analysis.carriers.items() if fits_int8(each)
    }
    in_order = _in_order(model, [*layers, *walk.layers(), *inside])
    return Plan(model, tuple(regions), in_order, weights)


def _last_walk(
    walk: Callable[[], Partitioner], memory: Memory, model: ir.Model
) -> tuple[Partitioner, list[PlannedInstruction]]:
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


def _once(layers: Iterable[CompiledLayer]) -> list[CompiledLayer]:
    """Return one layer for all instructions that compute the same one."""
    groups: dict[str, list[CompiledLayer]] = {}
    for layer in layers:
        groups.setdefault(layer.output, []).append(layer)
    return [merge_layers(group) for group in groups.values()]


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
    return tuple(connected(list(model.graph), layers))


def replace_regions(model: ir.Model, regions: Iterable[Region]) -> dict[str, Region]:
    """Let the planned model have one node per region: these by the names of their nodes."""
    editor = Editor(model)
    found = {}
    given: dict[ir.Value, ir.Value] = {}
    for region in regions:
        node = make_node(region.program, [given.get(x, x) for x in region.inputs], editor)
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
        if region is None or not read_encoded(node).equals(encode(region.program)):
            raise ModelError(f"{described(node)} is not what was compiled")
        inputs = [value for value in node.inputs[len(PROGRAM) :] if value is not None]
        more = make_node(region.exposed.program, inputs, editor)
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


class Compiled(Model):
    """A model whose integer regions run as such. Made by `compile`.

    One that is integer from input to output takes any number of rows at once, 0 too.

    Attributes:
        model: The ONNX model, in which each region is one node.
        report: What was made of each layer, and why.
    """

    def __init__(
        self, engine: Engine, model: ir.Model, report: Report, regions: Mapping[str, Region]
    ) -> None:
        super().__init__(engine)
        self.model = model
        self.report = report
        self._regions = regions
        if isinstance(engine, NetworkEngine) and engine.takes_and_gives_one:
            # Small networks take less time than a frame of Python does.
            ordinary = engine.network.named(self.outputs[0].name, Model(engine).run)
            self.run = ordinary  # type: ignore[method-assign]

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a compiled model cannot be pickled: write it with save(), and read that with load()"
        )

    @property
    def codes(self) -> frozenset[str]:
        """The names of the tensors that its regions hold as codes."""
        return frozenset().union(*(region.codes for region in self._regions.values()))

    @property
    def session_model(self) -> ir.Model | None:
        """The graph that a session runs; None where the whole network runs without one."""
        return None if isinstance(self.engine, NetworkEngine) else self.model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, as `anybit.save` does.

        It is an ordinary ONNX file, for any program with ONNX Runtime 1.17 or newer that registers
        the library (`anybit.onnxruntime.library_path`), on any processor.
        """
        save(self.model, path)

    def saved(self, path: str | os.PathLike[str]) -> Model:
        """The model as `save` has written it; it gives all tensors of codes besides its outputs.

        Raises:
            ModelError: The file holds another model.
        """
        model = read_copy(path)
        with errors_named_after(path):
            expose(model, self._regions)
        return Model(RuntimeEngine(model, str(path)))


@quiet()
@seldom_collected()
def compile(
    source: Source,
    *,
    guarantee: str = Guarantee.BOUNDED,
    input_ranges: Ranges | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    time: bool = False,
    float_model: str | os.PathLike[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Compiled:
    """Run the quantized layers of a model on integers, with a stated guarantee.

    What follows a sum up to the next quantizer becomes thresholds, found by evaluating the float
    nodes themselves. Each layer has a class:

    * `exact`: its results are those of the float graph, element for element.
    * `certified`: its quantized results are those of every float32 evaluation of the graph.
    * `bounded`: its sums are exact, and what follows is the float graph as it is written. Another
      float32 evaluation may differ, from this one as from itself, at the accumulators that the
      report lists.

    Args:
        source: As for `anybit.load`. It is not changed.
        guarantee: The weakest class of layers that are compiled; the others stay float.
        input_ranges: What inputs hold, by name, or the only one, where no quantizer says: "uint8",
            "uint8/255", "int8*0.5"; as for `anybit.analyze`. Other values are taken for the
            nearest of these.
        shapes: Of inputs, by name, whose sizes the file leaves free: layers of unknown sizes stay
            float. The result is for these; if they say one row, and the file any number, for any.
        time: Measure each layer and whole runs on one row for a few seconds. The report then has
            `speed`: times beside those of the float model and of its static int8 in ONNX Runtime.
        float_model: The float model that `time` compares with, if the quantized model does not
            record it, or its file has moved.
        progress: Called with the share that is done, from 0 to 1.

    Raises:
        ModelError: The model has no quantizers or cannot be run, there is no such class, or a shape
            does not fit.
    """
    where = str(source) if isinstance(source, str | os.PathLike) else "the model"
    weakest = _guarantee(guarantee)
    floats = sized(source, shapes or {})
    model = followable(floats)
    known = _input_carriers(model, input_ranges)
    missing, integer_only = why_unquantized(model, where), is_integer_only(model)
    found = plan(model, weakest, known, progress)
    whole = _engine(model, found.regions, where)
    programs = tuple(region.program for region in found.regions)
    report = Report(
        found.layers,
        programs,
        has_free_sizes=has_free_sizes(model),
        is_integer_only=integer_only,
    )
    regions = replace_regions(found.model, found.regions)
    runnable(found.model, floats)
    store_integer_weights(found.model, found.weights)
    RemoveUnusedOpsetsPass()(found.model)
    engine = RuntimeEngine(found.model, where) if whole is None else whole
    if missing and not regions:
        raise ModelError(missing)
    compiled = Compiled(engine, found.model, report, regions)
    if time:
        compiled.report = with_times(compiled, floats, float_model)
    return compiled


def with_times(
    compiled: Compiled, source: Source, float_model: str | os.PathLike[str] | None = None
) -> Report:
    """Return the report with the times of layers and of whole runs.

    Args:
        compiled: What `compile` made of `source`.
        source: The quantized model, as `sized` gives it.
        float_model: The float model to compare with; by default the one that `source` records.
    """
    speed = measured(source, compiled, compiled.session_model, float_model=float_model)
    return replace(timed(compiled.report, source, compiled.session_model), speed=speed)


def sized(source: Source, shapes: Mapping[str, Sequence[int]]) -> Source:
    """A model with these shapes for some of its inputs. One row leaves their number free.

    Raises:
        ModelError: It has no such input, or one of another shape.
    """
    if not shapes:
        return source
    for name, sizes in shapes.items():
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ModelError(f"input {name!r}: sizes must be integers from 1 on, got {sizes}")
    model = read_copy(source)
    with errors_named_after(source):
        with_sizes(declared_inputs(model.graph, "the model"), shapes)
    inputs = {value.name: value for value in model.graph.inputs}
    for name, sizes in shapes.items():
        rows = list(inputs[name].shape or ())[:1]
        is_free = bool(rows) and not isinstance(rows[0], int)
        inputs[name].shape = ir.Shape((*rows, *sizes[1:]) if is_free and sizes[0] == 1 else sizes)
    for node in nodes_in(model.graph):
        for value in node.outputs:
            value.shape = None  # it was that for any shape
    return model


def exposed(source: Source) -> ir.Model:
    """The compiled model, with all tensors of codes as further results of its regions."""
    found = plan(followable(source), Guarantee.BOUNDED)
    replace_regions(found.model, [region.exposed for region in found.regions])
    return runnable(found.model, source)


def _input_carriers(model: ir.Model, ranges: Ranges | None) -> dict[str, Carrier]:
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    return carriers_of(ranges, inputs)


def _guarantee(name: str) -> Guarantee:
    try:
        return Guarantee(name)
    except ValueError:
        known = ", ".join(each.value for each in Guarantee)
        raise ModelError(f"guarantee must be one of {known}, got {name!r}") from None


def _engine(model: ir.Model, regions: tuple[Region, ...], where: str) -> "NetworkEngine | None":
    """What runs a graph that is one region; None for others."""
    if len(regions) != 1:
        return None
    (region,) = regions
    graph = model.graph
    inputs = [value for value in graph.inputs if not value.is_initializer()]
    if set(inputs) != set(region.inputs) or not set(graph.outputs) <= set(region.outputs):
        return None
    outputs = tuple(declared(value, where) for value in graph.outputs)
    return NetworkEngine(region, declared_inputs(graph, where), outputs)


class NetworkEngine:
    """A network that is integer from input to output: no session, any number of rows."""

    def __init__(
        self, region: Region, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
    ) -> None:
        self.network = region.network
        # Rows do not know of one another, whatever number of them the file was written for.
        self.inputs, self.outputs = (tuple(map(_of_any_rows, each)) for each in (inputs, outputs))
        self._takes = [value.name or "" for value in region.inputs]
        self._gives = [value.name or "" for value in region.outputs]

    @property
    def takes_and_gives_one(self) -> bool:
        """Whether the network has one input and one output, which is that of the model."""
        return len(self._takes) == len(self._gives) == 1

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        arrays = [np.ascontiguousarray(feeds[name]) for name in self._takes]
        try:
            results = self.network.run(arrays)
        except ValueError as error:
            raise ModelError(f"the model cannot be run: {error}") from error
        named = dict(zip(self._gives, results, strict=True))
        return {each.name: named[each.name] for each in self.outputs}


def _of_any_rows(tensor: Tensor) -> Tensor:
    assert tensor.shape is not None, "regions know their sizes"
    return replace(tensor, shape=(None, *tensor.shape[1:]), may_be_empty=True)
