# SPDX-License-Identifier: Apache-2.0
"""What computes a model: `--engine`."""

from enum import StrEnum
from typing import Annotated, TypeAlias

import typer


class RunBy(StrEnum):
    """What computes a model."""

    ONNXRUNTIME = "onnxruntime"
    COMPILED = "compiled"


Engine: TypeAlias = Annotated[
    RunBy,
    typer.Option(
        metavar="|".join(RunBy),
        help="What computes: ONNX Runtime, or what `anybit compile` makes of the model.",
    ),
]
