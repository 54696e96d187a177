# SPDX-License-Identifier: Apache-2.0
"""Times of one row: of a compiled model, its layers and its peers."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit._native import num_threads, set_num_threads
from anybit.compiler.compiled import CompiledModel
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.program.network import Network
from anybit.compiler.program.operands import (
    list_float_sources,
    list_tensor_sources,
    writes_floats,
)
from anybit.compiler.program.program import Program
from anybit.compiler.report import Report, Seconds, Speed
from anybit.data.random_inputs import generate_random_inputs
from anybit.errors import ModelError
from anybit.inputs import list_inputs
from anybit.model import Model, RuntimeEngine
from anybit.onnx import Source, prepare, read
from anybit.onnx.analysis.layers import find_owners
from anybit.onnx.files.origin import find_origin
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.ort_values import to_ort_value
from anybit.onnx.passes import InferShapes, RemoveQuantizers
from anybit.onnx.passes.remove_quantizers import has_quantizers
from anybit.onnx.preparation import apply_passes
from anybit.onnx.process import silence_onnx_logs
from anybit.onnx.qdq.codes.table import is_liftable
from anybit.onnx.runtime import (
    FAILURES,
    exact_session_options,
    make_plain_session,
    make_session,
    run_session,
    set_threads,
)
from anybit.onnx.static_int8 import quantize_static_int8

Key = TypeVar("Key")

_RUNS = 25
_MEASURED = (
    f"the fastest of {_RUNS} runs with one row on one thread; a layer with what follows it up to "
    "the next; of the quantized graph, a run without graph optimizations, divided among its nodes "
    "by ONNX Runtime's profile"
)


def add_times(
    compiled: CompiledModel, source: Source, float_model: str | os.PathLike[str] | None = None
) -> Report:
    """Return the report with the times of layers and of whole runs.

    Args:
        compiled: The compiled model.
        source: The quantized model with the sizes that it was compiled for.
        float_model: The float model to compare with; by default the one that `source` records.
    """
    speed = measure_speed(source, compiled, compiled.session_model, float_model=float_model)
    return replace(time_layers(compiled.report, source, compiled.session_model), speed=speed)


def time_layers(report: Report, source: Source, compiled: ir.Model | None = None) -> Report:
    """Return the report with the seconds of each layer, compiled and in the quantized graph.

    Layers that stay float are measured in the graph of the compiled model, if it is given.
    """
    networks = [Network(program) for program in report.programs]
    regions = [_time_region(report, number, network) for number, network in enumerate(networks)]
    own = {name: seconds for region in regions for name, seconds in region.items()}
    left = tuple(layer for layer in report.layers if layer.place is None)
    if compiled is not None and left:
        own |= _time_float_nodes(prepare(compiled), left)
    floats = _time_float_nodes(prepare(source), report.layers)
    layers = [
        replace(layer, seconds=own.get(layer.name), float_seconds=floats.get(layer.name))
        for layer in report.layers
    ]
    widens = any(map(_widens_bytes, networks))
    return replace(report, layers=tuple(layers), measured=_MEASURED, widens_bytes=widens)


def _widens_bytes(network: Network) -> bool:
    """Return whether the CPU cannot add products of bytes exactly without 16-bit operands."""
    return any(stage["kernel"] == "wide8" for stage in network.describe()["stages"])


def _time_region(report: Report, region: int, network: Network) -> dict[str, float]:
    """Return the seconds of the layers of a region by name."""
    program = report.programs[region]
    names = {
        layer.place[1]: layer.name
        for layer in report.layers
        if layer.place and layer.place[0] == region
    }
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((1, *port.sizes), dtype=np.float32) for port in program.inputs]
    seconds = np.min([network.run_timed(inputs)[1] for _ in range(_RUNS)], axis=0)
    return _sum_by_name(_assign_instructions(program, names), dict(enumerate(seconds.tolist())))


def _assign_instructions(program: Program, names: Mapping[int, str]) -> dict[int, str]:
    """Return the layer of every instruction: its own, or that of the instructions it reads."""
    order = {name: place for place, name in enumerate(names.values())}
    writers: dict[int, str] = {}  # of tensors; of floats by negative numbers, the first by -1
    inputs = len(program.inputs)
    layers = {}
    for number, instruction in enumerate(program.instructions):
        floats = [number for number in list_float_sources(instruction) if number >= inputs]
        read = {*list_tensor_sources(instruction), *(inputs - 1 - number for number in floats)}
        read &= writers.keys()
        last = max((writers[tensor] for tensor in read), key=order.__getitem__, default="")
        name = names.get(number, last)
        if name:
            layers[number] = name
            is_output = writes_floats(instruction)
            writers[-1 - instruction.target if is_output else instruction.target] = name
    return layers


def _time_float_nodes(model: ir.Model, layers: tuple[CompiledLayer, ...]) -> dict[str, float]:
    """Return the seconds of the nodes of the layers, in a model that is ready to run."""
    owning = find_owners(model.graph, [layer.layer for layer in layers])
    for number, node in enumerate(model.graph):
        node.name = str(number)
    declared = list_inputs(model.graph, "the model")
    feeds = generate_random_inputs(declared)
    rows = max((array.shape[0] for array in feeds.values() if array.ndim), default=1) or 1
    profile = profile_nodes(model, feeds)
    whole = min(_time_run(model, feeds), sum(profile.values()))
    share = whole / (sum(profile.values()) or 1) / rows
    named = {str(node.name): name for node, name in owning.items()}
    return _sum_by_name(named, {node: seconds * share for node, seconds in profile.items()})


def _sum_by_name(names: Mapping[Key, str], seconds: Mapping[Key, float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for key, name in names.items():
        sums[name] = sums.get(name, 0.0) + seconds.get(key, 0.0)
    return sums


def _time_run(model: ir.Model, feeds: Mapping[str, Array]) -> float:
    """Return the seconds of a run."""
    options = exact_session_options()
    options.intra_op_num_threads = 1
    session = make_session(model, options)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, to_ort_value(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    taken = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        taken.append(time.perf_counter() - start)
    return min(taken)


def profile_nodes(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, float]:
    """Return the seconds of nodes by name, rounded down to microseconds by the runtime."""
    options = exact_session_options()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = make_session(model, options)
        for _ in range(_RUNS):
            run_session(session, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    shortest: dict[str, float] = {}
    for event in events:
        name = event["name"].removesuffix("_kernel_time")
        if event.get("cat") == "Node" and name != event["name"]:
            shortest[name] = min(shortest.get(name, float("inf")), event["dur"] * 1e-6)
    return shortest


_BURST = 1e-3
"""Least seconds of a burst of calls: short, so that some bursts are undisturbed."""
_ENOUGH_ROUNDS = 10
"""Rounds after which a measurement may end."""
_PATIENCE = 5
"""Factor of the time of a measurement with fewer rounds, on a busy machine."""
_SPIN = 5e-3
"""Seconds for which the threads of the last session spin."""

_STRIPPED = "float network without quantizers"
_INTEGER = "file with integer operators"
_DEFAULT_THREADS = 0

_REFUSALS: tuple[type[Exception], ...] = (ModelError, ValueError, *FAILURES)

TimedCall: TypeAlias = Callable[[], object]
Clock: TypeAlias = Callable[[], float]


@silence_onnx_logs()
def measure_speed(
    source: Source,
    compiled: Model,
    model: ir.Model | None,
    *,
    float_model: str | os.PathLike[str] | None = None,
    seconds: float = 0.5,
    int8: bool = True,
) -> Speed:
    """Measure a compiled model, its float model, static int8 and quantized graph on one random row.

    The calls of each number of threads take turns in short bursts, and the shortest time of each
    side counts. ONNX Runtime runs float models and int8 with its default options.

    Args:
        source: The quantized model, with the sizes that it was compiled for.
        compiled: The compiled model.
        model: The compiled graph, which a session with default options runs; None if none does.
        float_model: The float model; by default the file that `source` records. Where there is
            none, the quantized network without its quantizers stands for it, or the network itself
            if it has integer operators.
        seconds: About how long to measure for each number of threads.
        int8: Whether to make and measure ONNX Runtime's static int8 of the float model.

    Raises:
        ModelError: `float_model` cannot be read, or does not take the inputs of `source`.
    """
    quantized = prepare(source)
    feeds = generate_random_inputs(compiled.inputs)
    floats, name, note = _float_model(source, quantized, float_model)
    peers = {} if floats is None else _make_peers(floats, feeds, int8 and name != _INTEGER)
    if floats is not None and not peers:
        problem = f"{name} does not run in ONNX Runtime on the inputs of the quantized model"
        if float_model is not None:
            raise ModelError(f"{problem}: give the float model that it was quantized from")
        note = problem
    sides: dict[str, list[float]] = {}
    for threads in (1, _DEFAULT_THREADS):
        calls: dict[str, TimedCall] = {
            "compiled": _make_network_call(compiled, feeds)
            if model is None
            else make_session_call(model, feeds, threads),
            "quantized_graph": partial(
                RuntimeEngine(quantized, "the quantized graph", threads).run, feeds
            ),
        }
        for key, peer in peers.items():
            calls[key] = partial(_make_session(peer, threads).run, None, feeds)
        with limit_threads(threads):
            clock = time.thread_time if threads == 1 else time.perf_counter
            for key, best in measure_best(calls, seconds, clock).items():
                sides.setdefault(key, []).append(best)
    return Speed(**{key: Seconds(*both) for key, both in sides.items()}, float_name=name, note=note)


def _float_model(
    source: Source, quantized: ir.Model, float_model: str | os.PathLike[str] | None
) -> tuple[ir.Model | None, str, str]:
    """Return the float model, what to call it, and why it is not the file that was quantized."""
    if float_model is not None:
        return read(float_model), f"float model {os.path.basename(float_model)}", ""
    path, missing = find_origin(quantized)
    if path is not None:
        return read(path), f"float model {path.name}", ""
    note = f"{missing}: name it with --float"
    if not has_quantizers(quantized) or any(map(is_liftable, quantized.graph)):
        return quantized.clone(), _INTEGER, note
    stripped = quantized.clone()
    thresholds = any(is_multi_threshold(node) for node in iter_nodes(read(source).graph))
    apply_passes(stripped, source, InferShapes(), RemoveQuantizers(), RemoveUnusedNodesPass())
    if thresholds or has_quantizers(stripped):
        return None, "", note
    return stripped, _STRIPPED, note


def _make_peers(floats: ir.Model, feeds: Mapping[str, Array], int8: bool) -> dict[str, ir.Model]:
    """Return the models that plain ONNX Runtime runs on the feeds, by their fields in `Speed`."""
    peers: dict[str, ir.Model] = {}
    if _can_run(floats, feeds):
        peers["float_model"] = floats
        quantized = quantize_static_int8(floats, feeds) if int8 else None
        if quantized is not None and _can_run(quantized, feeds):
            peers["static_int8"] = quantized
    return peers


def _can_run(model: ir.Model, feeds: Mapping[str, Array]) -> bool:
    try:
        _make_session(model, 1).run(None, dict(feeds))
    except _REFUSALS:
        return False
    return True


def _make_session(model: ir.Model, threads: int) -> Any:
    """Return a session with default options, except the number of threads."""
    every = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return make_plain_session(model, {}, every, threads=threads)


def _make_network_call(compiled: Model, feeds: Mapping[str, Array]) -> TimedCall:
    return partial(compiled.run, next(iter(feeds.values())) if len(feeds) == 1 else feeds)


def make_session_call(model: ir.Model, feeds: Mapping[str, Array], threads: int) -> TimedCall:
    """Return a run of a compiled graph in ONNX Runtime with its default options."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    set_threads(options, threads)
    return partial(make_session(model, options).run, None, feeds)


@contextmanager
def limit_threads(threads: int) -> Iterator[None]:
    """Let networks without a session run on this number of threads, too."""
    before = num_threads()
    if threads:
        set_num_threads(threads)
    try:
        yield
    finally:
        set_num_threads(before)


def measure_best(calls: Mapping[Key, TimedCall], seconds: float, clock: Clock) -> dict[Key, float]:
    """Return the shortest time of each call; they take turns.

    Args:
        calls: The calls.
        seconds: About how long to measure.
        clock: Returns seconds. For calls on one thread its processor time, without that of other
            work on the machine.
    """
    counts = {name: _count_calls(call, clock) for name, call in calls.items()}
    best = dict.fromkeys(calls, float("inf"))
    start, rounds = time.perf_counter(), 0
    while not rounds or time.perf_counter() - start < seconds * (
        1 if rounds >= _ENOUGH_ROUNDS else _PATIENCE
    ):
        for name, call in calls.items():
            time.sleep(_SPIN)
            call()
            best[name] = min(best[name], _measure_seconds(call, counts[name], clock))
        rounds += 1
    return best


def _count_calls(run: TimedCall, clock: Clock) -> int:
    """Return the number of calls of a burst."""
    run()
    count = 1
    while _measure_seconds(run, count, clock) * count < _BURST:
        count *= 2
    return count


def _measure_seconds(run: TimedCall, count: int, clock: Clock) -> float:
    """Return the seconds of one call, as the mean of `count`."""
    start = clock()
    for _ in range(count):
        run()
    return (clock() - start) / count
