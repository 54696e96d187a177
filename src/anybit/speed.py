# SPDX-License-Identifier: Apache-2.0
"""A model as it runs, and its float graph: the times of both, measured side by side."""

import time
from collections.abc import Callable
from functools import partial

from onnxruntime import SessionOptions  # type: ignore[import-untyped]

from anybit.lowbit.speed import Speed
from anybit.made_up_inputs import random_inputs
from anybit.model import Model, load
from anybit.onnx import Source
from anybit.onnxruntime import session

# Short, so that some of them are not disturbed on a busy machine.
_BURST = 1e-3
# On a busy machine fewer rounds tell little; slow models are disturbed less.
_ENOUGH_ROUNDS = 10
_PATIENCE = 5


def measured(source: Source, compiled: Model, seconds: float = 1.0) -> Speed:
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
    return Speed(*best)


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
