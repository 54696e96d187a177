# SPDX-License-Identifier: Apache-2.0
"""Measure a compiled model beside what users would run instead, side by side in one process."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit._native import num_threads, set_num_threads
from anybit.errors import ModelError
from anybit.inputs import Array
from anybit.lowbit.speed import Seconds, Speed
from anybit.model import Model, RuntimeEngine
from anybit.onnx import Source, prepare, read
from anybit.onnx.files.origin import find_origin
from anybit.onnx.files.quiet import quiet
from anybit.onnx.graph.walk import nodes_in
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.passes import InferShapes, RemoveQuantizers
from anybit.onnx.passes.remove_quantizers import has_quantizers
from anybit.onnx.preparation import apply
from anybit.onnx.runtime import FAILURES, plain_session
from anybit.onnx.static_int8 import static_int8
from anybit.random_inputs import random_inputs

# Short, so that some of them are not disturbed on a busy machine.
_BURST = 1e-3
# On a busy machine fewer rounds tell little; slow models are disturbed less.
_ENOUGH_ROUNDS = 10
_PATIENCE = 5
# The threads of the session that ran last spin for about this long.
_SPIN = 5e-3

_STRIPPED = "float network without quantizers"
_DEFAULT_THREADS = 0

_REFUSALS: tuple[type[Exception], ...] = (ModelError, ValueError, *FAILURES)

Call: TypeAlias = Callable[[], object]
Feeds: TypeAlias = Mapping[str, Array]


@quiet()
def measured(
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
        compiled: What `compile` made of it.
        model: The compiled graph, for a session of one thread; None where no session runs it.
        float_model: The float model; by default the file that `source` records. Where there is
            none, the quantized network without its quantizers stands for it.
        seconds: About how long to measure for each number of threads.
        int8: Whether to make and measure ONNX Runtime's static int8 of the float model.

    Raises:
        ModelError: `float_model` cannot be read, or does not take the inputs of `source`.
    """
    quantized = prepare(source)
    feeds = random_inputs(compiled.inputs)
    floats, name, note = _float_model(source, quantized, float_model)
    peers = _peers(floats, feeds, int8) if floats is not None else {}
    if floats is not None and not peers:
        problem = f"{name} does not run in ONNX Runtime on the inputs of the quantized model"
        if float_model is not None:
            raise ModelError(f"{problem}: give the float model that it was quantized from")
        note = problem
    sides: dict[str, list[float]] = {}
    for threads in (1, _DEFAULT_THREADS):
        calls: dict[str, Call] = {
            "compiled": _compiled_call(compiled, model, feeds, threads),
            "quantized_graph": partial(
                RuntimeEngine(quantized, "the quantized graph", threads).run, feeds
            ),
            **{
                key: partial(_session(each, threads).run, None, feeds)
                for key, each in peers.items()
            },
        }
        with _threads(threads):
            for key, best in _best(calls, seconds).items():
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
    stripped = quantized.clone()
    thresholds = any(is_multi_threshold(node) for node in nodes_in(read(source).graph))
    apply(stripped, source, InferShapes(), RemoveQuantizers(), RemoveUnusedNodesPass())
    note = f"{missing}: name it with --float"
    if thresholds or has_quantizers(stripped):
        return None, "", note
    return stripped, _STRIPPED, note


def _peers(floats: ir.Model, feeds: Feeds, int8: bool) -> dict[str, ir.Model]:
    """Return the models that plain ONNX Runtime runs on the feeds, by their fields in `Speed`."""
    peers: dict[str, ir.Model] = {}
    if _runs(floats, feeds):
        peers["float_model"] = floats
        quantized = static_int8(floats, feeds) if int8 else None
        if quantized is not None and _runs(quantized, feeds):
            peers["static_int8"] = quantized
    return peers


def _runs(model: ir.Model, feeds: Feeds) -> bool:
    try:
        _session(model, 1).run(None, dict(feeds))
    except _REFUSALS:
        return False
    return True


def _session(model: ir.Model, threads: int) -> Any:
    """Return a session with default options but for the number of threads."""
    every = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return plain_session(model, {}, every, threads=threads)


def _compiled_call(compiled: Model, model: ir.Model | None, feeds: Feeds, threads: int) -> Call:
    if threads and model is not None:
        compiled = Model(RuntimeEngine(model, "the compiled model", threads))
    return partial(compiled.run, next(iter(feeds.values())) if len(feeds) == 1 else feeds)


@contextmanager
def _threads(threads: int) -> Iterator[None]:
    """Let networks without a session run on so many threads, too."""
    before = num_threads()
    if threads:
        set_num_threads(threads)
    try:
        yield
    finally:
        set_num_threads(before)


def _best(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Return the shortest time of each call; they take turns."""
    counts = {name: _count(call) for name, call in calls.items()}
    best = dict.fromkeys(calls, float("inf"))
    start, rounds = time.perf_counter(), 0
    while not rounds or time.perf_counter() - start < seconds * (
        1 if rounds >= _ENOUGH_ROUNDS else _PATIENCE
    ):
        for name, call in calls.items():
            time.sleep(_SPIN)
            call()
            best[name] = min(best[name], _seconds(call, counts[name]))
        rounds += 1
    return best


def _count(run: Call) -> int:
    """Return how many calls a clock can tell."""
    run()
    count = 1
    while _seconds(run, count) * count < _BURST:
        count *= 2
    return count


def _seconds(run: Call, count: int) -> float:
    """Return the seconds of one call, as the mean of `count`."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count
