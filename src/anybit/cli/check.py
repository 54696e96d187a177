# SPDX-License-Identifier: Apache-2.0
"""`anybit check`: what is wrong with a model, and what a target cannot take."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from anybit.cli._console import stdout
from anybit.cli._files import check_overwrites
from anybit.cli._report import Json, Report, check_report, deliver
from anybit.onnx.checks.checking import TARGETS, Finding
from anybit.onnx.checks.checking import check as check_model
from anybit.text import shown

_COLOURS = {"error": "bold red", "warning": "yellow"}


def check(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help=f"Also report what this target cannot take: {', '.join(TARGETS)}.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings too.")] = False,
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Say what is wrong with a model, one line each, and what to do about it.

    The exit code is 1 if there are errors. The model is not run.
    """
    check_report(report)
    check_overwrites([("--report", report)], [("MODEL", model)])
    findings = check_model(model, target)
    deliver([dataclasses.asdict(each) for each in findings], as_json, report)
    if not as_json:
        console = stdout()
        for each in findings:
            # Whole lines, also where a pipe has no width.
            console.print(_line(each), soft_wrap=True)
        console.print(_counts(findings), highlight=False)
    if any(strict or each.severity == "error" for each in findings):
        raise typer.Exit(1)


def _line(finding: Finding) -> Text:
    line = Text()
    line.append(f"{finding.severity}: ", style=_COLOURS[finding.severity])
    where = f"{finding.node} ({finding.operator})" if finding.operator else finding.node
    line.append(_on_one_line(where or "model"), style="bold")
    line.append(f": {_on_one_line(finding.problem)}; {_on_one_line(finding.remedy)}")
    line.append(f" [{finding.code}]", style="dim")
    return line


def _on_one_line(text: str) -> str:
    return shown(" ".join(text.split()))


def _counts(findings: tuple[Finding, ...]) -> str:
    if not findings:
        return "[green]nothing wrong[/green]"
    errors = sum(each.severity == "error" for each in findings)
    counts = ((errors, "error"), (len(findings) - errors, "warning"))
    return ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts)
