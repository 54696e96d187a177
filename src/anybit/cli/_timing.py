# SPDX-License-Identifier: Apache-2.0
"""How fast a compiled model is, beside the float graph."""

import time
from collections.abc import Callable
from functools import partial

from onnxruntime import SessionOptions  # type: ignore[import-untyped]

from anybit.compilation import Compiled, NetworkEngine
from anybit.errors import ModelError
from anybit.made_up_inputs import random_inputs
from anybit.model import load
from anybit.onnx import Source
from anybit.onnx.runtime import FAILURES
from anybit.onnxruntime import session
from anybit.text import duration

_SECONDS = 1.0
_GLANCE = 0.3
_CLEARLY = 1.2
_FAILURES: tuple[type[Exception], ...] = (ModelError, *FAILURES)
# Short, so that some of them are not disturbed on a busy machine.
_BURST = 1e-3
# On a busy machine fewer rounds tell little; slow models are disturbed less.
_ENOUGH_ROUNDS = 10
_PATIENCE = 5


def speed(source: Source, compiled: Compiled) -> str:
    """Both in words."""
    return _told(*_measured(source, compiled, _SECONDS))


def slower(source: Source, compiled: Compiled) -> str:
    """That the compiled model is slower than the float graph, if that is clear at a glance.

    A model that is integer throughout is not looked at, nor one that does not run on random inputs.
    """
    if isinstance(compiled.engine, NetworkEngine) or not compiled.report.programs:
        return ""
    try:
        mine, exact, other = _measured(source, compiled, _GLANCE)
    except _FAILURES:
        return ""
    if mine <= _CLEARLY * min(exact, other):
        return ""
    return (
        f"slower than the float graph: {_told(mine, exact, other)}; what stays float between "
        "integer regions costs more than they gain: quantize with --integer-only, or run the model "
        "as it is"
    )


def _measured(source: Source, compiled: Compiled, seconds: float) -> list[float]:
    """Both on the same random row by turns, and a session that optimizes; the fastest count."""
    plain = load(source)
    feeds = random_inputs(plain.inputs)
    given = next(iter(feeds.values())) if len(feeds) == 1 else feeds
    optimized = session(source, session_options=SessionOptions())
    calls: list[Callable[[], object]] = [
        partial(compiled.run, given),
        partial(plain.run, given),
        partial(optimized.run, None, feeds),
    ]
    counts = [_count(call) for call in calls]
    best = [float("inf")] * len(calls)
    start, rounds = time.perf_counter(), 0
    while not rounds or time.perf_counter() - start < seconds * (
        1 if rounds >= _ENOUGH_ROUNDS else _PATIENCE
    ):
        found = [_seconds(*pair) for pair in zip(calls, counts, strict=True)]
        best = [min(pair) for pair in zip(best, found, strict=True)]
        rounds += 1
    return best


def _told(mine: float, exact: float, other: float) -> str:
    return (
        f"{duration(mine)} per run of one row: {exact / mine:.3g} x as fast as the float graph in "
        f"ONNX Runtime ({duration(exact)}), {other / mine:.3g} x with graph optimizations "
        f"({duration(other)}), which may change results"
    )


def _count(run: Callable[[], object]) -> int:
    """How many calls a clock can tell."""
    run()
    count = 1
    while _seconds(run, count) * count < _BURST:
        count *= 2
    return count


def _seconds(run: Callable[[], object], count: int) -> float:
    """The seconds of one call, as the mean of some."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count
