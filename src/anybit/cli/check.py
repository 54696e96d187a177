# SPDX-License-Identifier: Apache-2.0
"""`anybit check`: errors in a model, and what a target does not support."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import anybit
from anybit.cli._console import get_stdout
from anybit.cli._files import check_overwrites
from anybit.cli._report import JsonOption, JsonReportOption, check_report, write_json_result
from anybit.text import escape_name

if TYPE_CHECKING:
    from anybit.onnx.checks.checking import Finding

_COLOURS = {"error": "bold red", "warning": "yellow"}


def check(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Also report what this target does not support: onnxruntime, standard, qdq, finn "
            "or hls4ml.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    as_json: JsonOption = False,
    report: JsonReportOption = None,
) -> None:
    """List the problems of a model, each with its remedy.

    The model is not run. Exit status: 0 without errors, 1 with errors (with --strict also with
    warnings), 2 for bad input.
    """
    check_report(report)
    check_overwrites([("--report", report)], [("MODEL", model)])
    findings = anybit.check(model, target)
    write_json_result([dataclasses.asdict(finding) for finding in findings], as_json, report)
    if not as_json:
        console = get_stdout()
        for finding in findings:
            # Whole lines, also where a pipe has no width.
            console.print(_format_line(finding), soft_wrap=True)
        console.print(_format_counts(findings), highlight=False)
    if any(strict or finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


def _format_line(finding: Finding) -> Text:
    line = Text()
    line.append(f"{finding.severity}: ", style=_COLOURS[finding.severity])
    where = f"{finding.node} ({finding.operator})" if finding.operator else finding.node
    line.append(_join_lines(where or "model"), style="bold")
    line.append(f": {_join_lines(finding.problem)}; {_join_lines(finding.remedy)}")
    line.append(f" [{finding.code}]", style="dim")
    return line


def _join_lines(text: str) -> str:
    return escape_name(" ".join(text.split()))


def _format_counts(findings: tuple[Finding, ...]) -> str:
    if not findings:
        return "[green]no problems found[/green]"
    errors = sum(finding.severity == "error" for finding in findings)
    counts = ((errors, "error"), (len(findings) - errors, "warning"))
    return ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts)
