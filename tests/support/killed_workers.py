# SPDX-License-Identifier: Apache-2.0
"""Workers of every step of `quantize` and `evaluate` that kill their process after the first task.

Processes of the cluster import this module.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anybit.evaluation import scoring
from anybit.ptq.calibration import shard_stats
from anybit.ptq.mixed_precision import sensitivity
from anybit.ptq.search import choose
from anybit.ptq.search import evaluate as judging

FOLDER = "KILLED_WORKERS"
"""The environment variable with the folder that gets a file per step whose process was killed."""


def make_stats_collector(*job: Any) -> Callable[[Any], Any]:
    """Return the worker for statistics of a shard."""
    return _killed_once("make_stats_collector", shard_stats.make_stats_collector(*job))


def make_chooser(*job: Any) -> Callable[[Any], Any]:
    """Return the worker that chooses the quantizer of a tensor."""
    return _killed_once("make_chooser", choose.make_chooser(*job))


def make_probe_worker(*job: Any) -> Callable[[Any], Any]:
    """Return the worker that measures sensitivity."""
    return _killed_once("make_probe_worker", sensitivity.make_probe_worker(*job))


def make_comparer(*job: Any) -> Callable[[Any], Any]:
    """Return the worker that compares outputs."""
    return _killed_once("make_comparer", judging.make_comparer(*job))


def make_shard_scorer(*job: Any) -> Callable[[Any], Any]:
    """Return the worker that evaluates models."""
    return _killed_once("make_shard_scorer", scoring.make_shard_scorer(*job))


def _killed_once(step: str, worker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    mark = Path(os.environ[FOLDER]) / step

    def run(task: Any) -> Any:
        result = worker(task)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return run
