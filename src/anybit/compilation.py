# SPDX-License-Identifier: Apache-2.0
"""Models whose quantized layers run on integers: `compile` one, and call `run`, or save it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from anybit.errors import ModelError, OptionError
from anybit.inputs import Array, Tensor, declared, declared_inputs
from anybit.layers.layer import Guarantee
from anybit.lowbit.compiler import expose, plan, rewritten
from anybit.lowbit.emission import Region
from anybit.lowbit.float_weights import store_codes
from anybit.lowbit.quantizers import is_integer_only, why_unquantized
from anybit.lowbit.report import Report
from anybit.lowbit.timing import timed
from anybit.model import Engine, Model, RuntimeEngine
from anybit.onnx import Source, save
from anybit.onnx.analysis.carriers import Carrier
from anybit.onnx.analysis.ranges import Ranges, carriers_of
from anybit.onnx.files.collection import seldom_collected
from anybit.onnx.files.quiet import quiet
from anybit.onnx.files.reader import read_copy
from anybit.onnx.graph.shapes import has_free_sizes
from anybit.onnx.graph.walk import nodes_in
from anybit.onnx.preparation import errors_named_after, followable, runnable
from anybit.random_inputs import with_sizes
from anybit.speed import measured


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
        ModelError: The model has no quantizers or cannot be run.
        OptionError: There is no such guarantee, or a shape does not fit.
    """
    where = str(source) if isinstance(source, str | os.PathLike) else "the model"
    weakest = _guarantee(guarantee)
    floats = sized(source, shapes or {})
    model = followable(floats)
    known = _known(model, input_ranges)
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
    regions = rewritten(found.model, found.regions)
    runnable(found.model, floats)
    store_codes(found.model, found.weights)
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
        OptionError: It has no such input, or one of another shape.
    """
    if not shapes:
        return source
    for name, sizes in shapes.items():
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise OptionError(f"input {name!r}: sizes must be integers from 1 on, got {sizes}")
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
    rewritten(found.model, [region.exposed for region in found.regions])
    return runnable(found.model, source)


def _known(model: ir.Model, ranges: Ranges | None) -> dict[str, Carrier]:
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    return carriers_of(ranges, inputs)


def _guarantee(name: str) -> Guarantee:
    try:
        return Guarantee(name)
    except ValueError:
        known = ", ".join(each.value for each in Guarantee)
        raise OptionError(f"guarantee must be one of {known}, got {name!r}") from None


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
