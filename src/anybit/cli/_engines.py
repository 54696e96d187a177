# SPDX-License-Identifier: Apache-2.0
"""The option `--engine`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

import anybit

if TYPE_CHECKING:
    from anybit.model import Model


class RunBy(StrEnum):
    """Engines that run a model."""

    ONNXRUNTIME = "onnxruntime"
    COMPILED = "compiled"


EngineOption: TypeAlias = Annotated[
    RunBy,
    typer.Option(
        metavar="|".join(RunBy),
        help="Engine: ONNX Runtime, or the integer code of `anybit compile`.",
    ),
]


def load_model(path: Path, engine: RunBy) -> "Model":
    """Load a model for an engine."""
    return anybit.load(path) if engine is RunBy.ONNXRUNTIME else anybit.compile(path)
