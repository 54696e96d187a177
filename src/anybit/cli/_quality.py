# SPDX-License-Identifier: Apache-2.0
"""Quality figures of a quantized model in the terminal."""

import math

from rich.console import Console
from rich.text import Text

from anybit.cli._columns import show
from anybit.inspection.text import correlation, decibels, failure, quality
from anybit.quantization import Verdict
from anybit.quantization.output_quality import OutputQuality

_MOST_ROWS = 12
_SPARED = ("kind", "correlation")
_NUMBERS = ("SQNR", "correlation", "agreement")


def show_quality(verdict: Verdict, console: Console) -> None:
    """Print the figures; those of each output or part, where there are several."""
    if len(verdict.outputs) > 1:
        worst = sorted(verdict.outputs, key=_badness)[:_MOST_ROWS]
        rows = [_row(each) for each in verdict.outputs if each in worst]
        alike = {"kind"} if len({row["kind"] for row in rows}) == 1 else set()
        known = [name for name in rows[0] if name not in alike and any(row[name] for row in rows)]
        rows = [{name: row[name] for name in known} for row in rows]
        show(rows, _SPARED, ("output",), _NUMBERS, console)
        if len(rows) < len(verdict.outputs):
            every = f"{len(verdict.outputs)} outputs and parts"
            console.print(Text(f"the {len(rows)} worst of {every}: --json has all", style="dim"))
    console.print(Text(quality(verdict), style="bold green" if verdict.passed else "bold red"))
    if not verdict.passed:
        console.print(Text(failure(verdict), style="bold red"))


def _badness(each: OutputQuality) -> tuple[float, float]:
    sqnr = math.inf if each.sqnr is None else each.sqnr
    return sqnr, math.inf if each.agreement is None else each.agreement


def _row(each: OutputQuality) -> dict[str, str]:
    return {
        "output": each.name,
        "kind": each.kind,
        "SQNR": decibels(each.sqnr),
        "correlation": correlation(each.correlation),
        "agreement": "" if each.agreement is None else f"{100 * each.agreement:.1f} %",
    }
