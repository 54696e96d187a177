# SPDX-License-Identifier: Apache-2.0
"""Model, data and executor of one quantization, shared by all stages."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from anybit.data.dataset import Dataset
from anybit.parallel import Executor
from anybit.ptq.config import QuantizeConfig

Progress: TypeAlias = Callable[[float], None]
"""A function that takes the completed share of the work, from 0 to 1."""


@dataclass(frozen=True)
class Context:
    """Model, data and means of one quantization.

    Attributes:
        model: The float model, after `prepare`. Stages do not change it.
        name: The name of the model in messages.
        dataset: The data: samples for calibration, and held-out samples.
        executor: The executor of tasks on shards, activations and layers.
        progress: The function that reports progress.
        config: The thresholds of the search.
        cache: The folder of cached calibration statistics; None for no cache.
    """

    model: ir.Model
    name: str
    dataset: Dataset
    executor: Executor
    progress: Progress = field(repr=False)
    config: QuantizeConfig
    cache: str | os.PathLike[str] | None = None


def scale_progress(progress: Progress, start: float, stop: float) -> Progress:
    """Return a function that reports the progress of a stage from `start` to `stop`."""
    return lambda share: progress(start + (stop - start) * share)


def ignore_progress(share: float) -> None:
    """Do nothing with the progress."""
