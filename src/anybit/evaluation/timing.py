# SPDX-License-Identifier: Apache-2.0
"""Latency per row of a model, run as a user would run it on this machine.

A file without operators of this package runs in ONNX Runtime with its default options, graph
optimization included; others run as `anybit.load` runs them. Both use `anybit.num_threads()`
threads.
"""

import math
import os
import time
from collections.abc import Mapping

import onnxruntime  # type: ignore[import-untyped]

from anybit._native import num_threads
from anybit.compiler.compiled import CompiledModel
from anybit.data.readers import Sample
from anybit.errors import ModelError
from anybit.model import Engine, Model, RuntimeEngine
from anybit.onnx import Source, read
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.runtime import FAILURES, make_plain_session, set_threads

_RUNTIME_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_FAILURES: tuple[type[Exception], ...] = (ModelError, *FAILURES)
_MIN_RUNS, _MAX_RUNS, _SECONDS = 3, 1000, 0.1


def measure_seconds_per_row(source: Source, model: Model, sample: Sample, rows: int) -> float:
    """Return the minimum time per row of several runs of a sample, after one warm-up run.

    Args:
        source: The model.
        model: The same model, loaded by the chosen engine.
        sample: The inputs.
        rows: The number of rows of the sample.

    Raises:
        ModelError: The model cannot be run.
    """
    timed = _warm_model(source, model, sample)
    shortest, runs, start = math.inf, 0, time.perf_counter()
    while runs < _MIN_RUNS or (runs < _MAX_RUNS and time.perf_counter() - start < _SECONDS):
        run_start = time.perf_counter()
        timed.run(sample)
        shortest = min(shortest, time.perf_counter() - run_start)
        runs += 1
    return shortest / max(rows, 1)


class _OptimizedEngine:
    """A session of ONNX Runtime with default options."""

    def __init__(self, engine: Engine, session: onnxruntime.InferenceSession) -> None:
        self.inputs, self.outputs = engine.inputs, engine.outputs
        self._session, self._names = session, [output.name for output in engine.outputs]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))


def _warm_model(source: Source, model: Model, sample: Sample) -> Model:
    """Return the model in a session of its own, after one run."""
    if not isinstance(model.engine, RuntimeEngine):
        model.run(sample)
        return model
    graph = model.model if isinstance(model, CompiledModel) else read(source)
    is_standard = all(node.domain in _RUNTIME_DOMAINS for node in iter_nodes(graph.graph))
    if is_standard and not isinstance(model, CompiledModel):
        try:
            plain = Model(_OptimizedEngine(model.engine, _make_default_session(source)))
            plain.run(sample)
        except _FAILURES:  # the file has to be normalized first
            pass
        else:
            return plain
    exact = Model(RuntimeEngine(graph, "the model", threads=num_threads()))
    exact.run(sample)
    return exact


def _make_default_session(source: Source) -> onnxruntime.InferenceSession:
    """Return a session with default options. ONNX Runtime reads a file itself."""
    if not isinstance(source, str | os.PathLike):
        level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        return make_plain_session(read(source), {}, level, threads=num_threads())
    options = onnxruntime.SessionOptions()
    set_threads(options, num_threads())
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        os.fspath(source), options, providers=["CPUExecutionProvider"], enable_fallback=0
    )
