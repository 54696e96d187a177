# SPDX-License-Identifier: Apache-2.0
"""Options of commands that read data: who does the work."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Workers: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="So many processes do the work; without it, threads of this one. Same result.",
    ),
]
Cluster: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="A Ray cluster does the work: auto, ray://HOST:PORT, or local to start one.",
    ),
]
Cache: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", file_okay=False, help="Keep what is found in the data, to go on from there."
    ),
]
