# SPDX-License-Identifier: Apache-2.0
"""How fast a compiled model is, beside the float graph."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from onnxruntime import SessionOptions  # type: ignore[import-untyped]

from anybit.compilation import Compiled
from anybit.made_up_inputs import random_inputs
from anybit.model import load
from anybit.onnxruntime import session
from anybit.text import duration

_SECONDS = 0.5
_ROUNDS = 5


def speed(path: Path, compiled: Compiled) -> str:
    """Both on the same random row by turns, and a session that optimizes; the fastest count."""
    plain = load(path)
    feeds = random_inputs(plain.inputs)
    given = next(iter(feeds.values())) if len(feeds) == 1 else feeds
    optimized = session(path, session_options=SessionOptions())
    calls: list[Callable[[], object]] = [
        partial(compiled.run, given),
        partial(plain.run, given),
        partial(optimized.run, None, feeds),
    ]
    best = [float("inf")] * len(calls)
    for _ in range(_ROUNDS):
        best = [min(known, _of_one(call)) for known, call in zip(best, calls, strict=True)]
    mine, exact, other = best
    return (
        f"{duration(mine)} per run of one row. The float graph in ONNX Runtime: {duration(exact)}, "
        f"{exact / mine:.3g} times as long; optimized, which may change its results: "
        f"{duration(other)}, {other / mine:.3g} times"
    )


def _of_one(run: Callable[[], object]) -> float:
    """The seconds of one call, as the mean of so many that a clock can tell."""
    run()
    count = 1
    while True:
        start = time.perf_counter()
        for _ in range(count):
            run()
        taken = time.perf_counter() - start
        if taken > _SECONDS / _ROUNDS / 2:
            return taken / count
        count *= 2
