# SPDX-License-Identifier: Apache-2.0
"""Workers that are killed: one of each step, on its first piece. Other processes import this."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anybit.evaluation import contest
from anybit.quantization import attempts, judging, sensitivity, survey

FOLDER = "DOOMED"
"""The variable with the folder where they leave marks."""


def surveyor(*job: Any) -> Callable[[Any], Any]:
    """Looks at shards."""
    return _doomed("surveyor", survey.surveyor(*job))


def chooser(*job: Any) -> Callable[[Any], Any]:
    """Chooses what becomes of tensors."""
    return _doomed("chooser", attempts.chooser(*job))


def prober(*job: Any) -> Callable[[Any], Any]:
    """Answers questions about noise."""
    return _doomed("prober", sensitivity.prober(*job))


def comparer(*job: Any) -> Callable[[Any], Any]:
    """Compares models."""
    return _doomed("comparer", judging.comparer(*job))


def scorer(*job: Any) -> Callable[[Any], Any]:
    """Evaluates models."""
    return _doomed("scorer", contest.scorer(*job))


def _doomed(name: str, worker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    mark = Path(os.environ[FOLDER]) / name

    def done(piece: Any) -> Any:
        found = worker(piece)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return done
