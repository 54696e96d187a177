# SPDX-License-Identifier: Apache-2.0
"""The option `--cluster` of the commands that read data."""

from typing import Annotated, TypeAlias

import typer

CLUSTER_HELP = "Run on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT or local (default: none)."

ClusterOption: TypeAlias = Annotated[str | None, typer.Option(metavar="ADDRESS", help=CLUSTER_HELP)]
