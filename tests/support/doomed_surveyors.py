# SPDX-License-Identifier: Apache-2.0
"""Workers of calibration that are killed. Other processes import this module."""

import os
import signal
from collections.abc import Callable

from anybit.quantization.findings import Findings
from anybit.quantization.shards import Shard
from anybit.quantization.survey import Survey, surveyor


def doomed_surveyor(survey: Survey) -> Callable[[Shard], tuple[Shard, Findings]]:
    """Looks at shards, but one of those who do ends in the middle of it."""
    found = surveyor(survey)
    assert survey.cache is not None
    mark = survey.cache / "ended"

    def done(shard: Shard) -> tuple[Shard, Findings]:
        if shard.first == 32 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found(shard)

    return done
