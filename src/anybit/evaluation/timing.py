# SPDX-License-Identifier: Apache-2.0
"""The time of a model per row, as a user would run it on this machine.

A file without operators of this package runs in ONNX Runtime with its default options, graph
optimization included; one with them as `anybit.load` runs it. Both have one thread for each core
that this process may use.
"""

import math
import os
import time
from collections.abc import Mapping

import onnxruntime  # type: ignore[import-untyped]

from anybit.compiler.compiled import Compiled
from anybit.errors import ModelError
from anybit.inputs import Array
from anybit.model import Engine, Model, RuntimeEngine
from anybit.onnx import Source, read
from anybit.onnx.graph.walk import nodes_in
from anybit.onnx.runtime import FAILURES, plain_session
from anybit.quantization.items import Sample
from anybit.workers.here import cores

_OF_RUNTIME = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_FAILURES: tuple[type[Exception], ...] = (ModelError, *FAILURES)
_FEWEST_RUNS, _MOST_RUNS, _SECONDS = 3, 1000, 0.1


def seconds_per_row(source: Source, model: Model, sample: Sample, rows: int) -> float:
    """Return the least time of several runs of a sample, after one that is not counted, per row.

    Args:
        source: The model as it was given.
        model: The same, ready to run by the engine that was asked for.
        sample: What it is run on.
        rows: How many rows the sample has.

    Raises:
        ModelError: The model cannot be run.
    """
    timed = _as_users_run(source, model, sample)
    least, runs, start = math.inf, 0, time.perf_counter()
    while runs < _FEWEST_RUNS or (runs < _MOST_RUNS and time.perf_counter() - start < _SECONDS):
        before = time.perf_counter()
        timed.run(sample)
        least = min(least, time.perf_counter() - before)
        runs += 1
    return least / max(rows, 1)


class _OptimizedEngine:
    """A session of ONNX Runtime with default options, in the place of an exact one."""

    def __init__(self, engine: Engine, session: onnxruntime.InferenceSession) -> None:
        self.inputs, self.outputs = engine.inputs, engine.outputs
        self._session, self._names = session, [each.name for each in engine.outputs]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))


def _as_users_run(source: Source, model: Model, sample: Sample) -> Model:
    """Return the model in a session of its own that has run once."""
    if not isinstance(model.engine, RuntimeEngine):
        model.run(sample)
        return model
    graph = model.model if isinstance(model, Compiled) else read(source)
    ours = any(node.domain not in _OF_RUNTIME for node in nodes_in(graph.graph))
    if not ours and not isinstance(model, Compiled):
        try:
            plain = Model(_OptimizedEngine(model.engine, _session(source)))
            plain.run(sample)
        except _FAILURES:  # a file that needs to be normalized first
            pass
        else:
            return plain
    found = Model(RuntimeEngine(graph, "the model", threads=cores()))
    found.run(sample)
    return found


def _session(source: Source) -> onnxruntime.InferenceSession:
    """Return a session with default options for what was given: a file is read by the runtime."""
    if not isinstance(source, str | os.PathLike):
        level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        return plain_session(read(source), {}, level, threads=cores())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        os.fspath(source), options, providers=["CPUExecutionProvider"], enable_fallback=0
    )
