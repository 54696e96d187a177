# SPDX-License-Identifier: Apache-2.0
"""The time of each layer, compiled and in the quantized graph: one row, one thread."""

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from anybit.inputs import Array, declared_inputs
from anybit.layers.facts import owners
from anybit.lowbit.layers import CompiledLayer
from anybit.lowbit.network import Network
from anybit.lowbit.program import Arithmetic, Dequantize, Program, Quantize
from anybit.lowbit.report import Report
from anybit.onnx import Source, prepare
from anybit.onnx.ort_values import ort_value
from anybit.onnx.runtime import exact_session_options, make_session, run_session
from anybit.random_inputs import random_inputs

Key = TypeVar("Key")

_RUNS = 25
_MEASURED = (
    f"the fastest of {_RUNS} runs with one row on one thread; a layer with what follows it up to "
    "the next; of the quantized graph, a run without graph optimizations, divided among its nodes "
    "by ONNX Runtime's profile"
)


def timed(report: Report, source: Source, compiled: ir.Model | None = None) -> Report:
    """Return the report with the seconds of each layer, compiled and in the quantized graph.

    Layers that stay float are measured in the graph of the compiled model, if it is given.
    """
    regions = [_region_seconds(report, number) for number in range(len(report.programs))]
    own = {name: seconds for region in regions for name, seconds in region.items()}
    left = tuple(layer for layer in report.layers if layer.place is None)
    if compiled is not None and left:
        own |= _float_seconds(prepare(compiled), left)
    floats = _float_seconds(prepare(source), report.layers)
    layers = [
        replace(layer, seconds=own.get(layer.name), float_seconds=floats.get(layer.name))
        for layer in report.layers
    ]
    return replace(report, layers=tuple(layers), measured=_MEASURED)


def _region_seconds(report: Report, region: int) -> dict[str, float]:
    """The seconds of the layers of a region by name."""
    program = report.programs[region]
    names = {
        layer.place[1]: layer.name
        for layer in report.layers
        if layer.place and layer.place[0] == region
    }
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((1, *port.sizes), dtype=np.float32) for port in program.inputs]
    network = Network(program)
    seconds = np.min([network.run_timed(inputs)[1] for _ in range(_RUNS)], axis=0)
    return _summed(_instructions(program, names), dict(enumerate(seconds.tolist())))


def _instructions(program: Program, names: Mapping[int, str]) -> dict[int, str]:
    """Which layer each instruction belongs to: itself one, or the last that it reads."""
    order = {name: place for place, name in enumerate(names.values())}
    writers: dict[int, str] = {}  # of tensors; of outputs by negative numbers, the first by -1
    inputs = len(program.inputs)
    found = {}
    for number, instruction in enumerate(program.instructions):
        fields = vars(instruction).keys() & {"source", "first", "second"}
        read = {getattr(instruction, each) for each in fields}
        if isinstance(instruction, Quantize):
            read = {inputs - 1 - instruction.source} if instruction.source >= inputs else set()
        read &= writers.keys()
        before = max((writers[each] for each in read), key=order.__getitem__, default="")
        name = names.get(number, before)
        if name:
            found[number] = name
            floats = isinstance(getattr(instruction, "tail", None), Arithmetic)
            outlet = floats or isinstance(instruction, Dequantize)
            writers[-1 - instruction.target if outlet else instruction.target] = name
    return found


def _float_seconds(model: ir.Model, layers: tuple[CompiledLayer, ...]) -> dict[str, float]:
    """The seconds that the nodes of each layer take in a model that is ready to run."""
    known = owners(model.graph, layers)
    for number, node in enumerate(model.graph):
        node.name = str(number)
    declared = declared_inputs(model.graph, "the model")
    feeds = random_inputs(declared)
    rows = max((array.shape[0] for array in feeds.values() if array.ndim), default=1) or 1
    profile = _profile(model, feeds)
    whole = min(_whole(model, feeds), sum(profile.values()))
    share = whole / (sum(profile.values()) or 1) / rows
    named = {str(node.name): name for node, name in known.items()}
    return _summed(named, {node: seconds * share for node, seconds in profile.items()})


def _summed(of: Mapping[Key, str], seconds: Mapping[Key, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, name in of.items():
        found[name] = found.get(name, 0.0) + seconds.get(key, 0.0)
    return found


def _whole(model: ir.Model, feeds: Mapping[str, Array]) -> float:
    """The seconds of a run."""
    options = exact_session_options()
    options.intra_op_num_threads = 1
    session = make_session(model, options)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort_value(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    taken = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        taken.append(time.perf_counter() - start)
    return min(taken)


def _profile(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, float]:
    """The seconds of each node by its name, rounded down to microseconds by the runtime."""
    options = exact_session_options()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = make_session(model, options)
        for _ in range(_RUNS):
            run_session(session, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    found: dict[str, float] = {}
    for event in events:
        name = event["name"].removesuffix("_kernel_time")
        if event.get("cat") == "Node" and name != event["name"]:
            found[name] = min(found.get(name, float("inf")), event["dur"] * 1e-6)
    return found
