# SPDX-License-Identifier: Apache-2.0
"""How fast a compiled model is, beside the float graph."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from anybit.compilation import Compiled
from anybit.made_up_inputs import random_inputs
from anybit.model import load
from anybit.text import duration

_SECONDS = 0.5
_ROUNDS = 5


def speed(path: Path, compiled: Compiled) -> str:
    """Both on the same random row, by turns; the fastest rounds count."""
    plain = load(path)
    feeds = random_inputs(plain.inputs)
    given = next(iter(feeds.values())) if len(feeds) == 1 else feeds
    best = [float("inf"), float("inf")]
    for _ in range(_ROUNDS):
        for index, model in enumerate((compiled, plain)):
            best[index] = min(best[index], _of_one(partial(model.run, given)))
    mine, other = best
    times = f"{duration(mine)} per run of one row, the float graph {duration(other)}"
    return f"{times}: {other / mine:.3g} times as fast"


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
