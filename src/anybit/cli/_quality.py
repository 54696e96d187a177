# SPDX-License-Identifier: Apache-2.0
"""Quality metrics of a quantized model in the terminal."""

import math

from rich.console import Console
from rich.text import Text

from anybit.cli._columns import show
from anybit.inspection.text import (
    describe_failure,
    describe_quality,
    format_correlation,
    format_decibels,
)
from anybit.metrics.output_quality import OutputQuality
from anybit.ptq import QualityMetrics

_MOST_ROWS = 12
_OMITTED_FIRST = ("kind", "correlation")
_NUMBERS = ("SQNR", "correlation", "agreement")


def show_quality(verdict: QualityMetrics, console: Console) -> None:
    """Print the metrics, also per output or part if there are several."""
    if len(verdict.outputs) > 1:
        worst = sorted(verdict.outputs, key=_order_by_quality)[:_MOST_ROWS]
        rows = [_make_row(output) for output in verdict.outputs if output in worst]
        alike = {"kind"} if len({row["kind"] for row in rows}) == 1 else set()
        columns = [name for name in rows[0] if name not in alike and any(row[name] for row in rows)]
        rows = [{name: row[name] for name in columns} for row in rows]
        show(rows, _OMITTED_FIRST, ("output",), _NUMBERS, console)
        if len(rows) < len(verdict.outputs):
            every = f"{len(verdict.outputs)} outputs and parts"
            console.print(Text(f"the {len(rows)} worst of {every}: --json has all", style="dim"))
    console.print(
        Text(describe_quality(verdict), style="bold green" if verdict.passed else "bold red")
    )
    if not verdict.passed:
        console.print(Text(describe_failure(verdict), style="bold red"))


def _order_by_quality(output: OutputQuality) -> tuple[float, float]:
    sqnr = math.inf if output.sqnr is None else output.sqnr
    return sqnr, math.inf if output.agreement is None else output.agreement


def _make_row(output: OutputQuality) -> dict[str, str]:
    return {
        "output": output.name,
        "kind": output.kind,
        "SQNR": format_decibels(output.sqnr),
        "correlation": format_correlation(output.correlation),
        "agreement": "" if output.agreement is None else f"{100 * output.agreement:.1f} %",
    }
