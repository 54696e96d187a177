# SPDX-License-Identifier: Apache-2.0
"""How fast a compiled model is, beside the float graph."""

import time
from collections.abc import Callable
from functools import partial

from onnxruntime import SessionOptions  # type: ignore[import-untyped]

from anybit.compilation import Compiled
from anybit.made_up_inputs import random_inputs
from anybit.model import load
from anybit.onnx import Source
from anybit.onnxruntime import session
from anybit.text import duration

_SECONDS = 1.0
# Short, so that some of them are not disturbed on a busy machine.
_BURST = 1e-3
_FEWEST_ROUNDS = 3


def speed(source: Source, compiled: Compiled) -> str:
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
    end, rounds = time.perf_counter() + _SECONDS, 0
    while rounds < _FEWEST_ROUNDS or time.perf_counter() < end:
        found = [_seconds(*pair) for pair in zip(calls, counts, strict=True)]
        best = [min(pair) for pair in zip(best, found, strict=True)]
        rounds += 1
    mine, exact, other = best
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
