# SPDX-License-Identifier: Apache-2.0
"""The options `--json` and `--report`."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from anybit.cli._files import check_folder, write_text
from anybit.errors import OptionError

if TYPE_CHECKING:
    from anybit.inspection import ModelReport

JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")
]
JsonReportOption: TypeAlias = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.json", help="Write the result as JSON.")
]
ReportOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the per-layer report to FILE.html or FILE.json. Repeatable.",
    ),
]


def report_paths(paths: Iterable[Path] | None) -> list[tuple[str, Path | None]]:
    """Return the name of the option and each of its files."""
    return [("--report", path) for path in paths or ()]


def check_report(path: Path | None) -> None:
    """Raise OptionError if a JSON report cannot be written. Call it before any work."""
    if path is not None:
        check_folder(path, "--report")
        if path.suffix.lower() not in ("", ".json"):
            raise OptionError(f"{path}: --report writes JSON only; use FILE.json")


def check_reports(paths: Iterable[Path]) -> None:
    """Refuse reports that cannot be written, or whose suffix is neither HTML nor JSON.

    Raises:
        OptionError: Their folder does not exist, or their suffix is another.
    """
    for path in paths:
        check_folder(path, "--report")
        if path.suffix.lower() not in ("", ".json", ".html"):
            raise OptionError(
                f"{path}: --report writes HTML to FILE.html and JSON to FILE.json or a file "
                f"without a suffix, not {path.suffix}"
            )


def write_reports(
    paths: Iterable[Path], record: Callable[[], str], page: Callable[[], str]
) -> None:
    """Write the JSON text or the HTML page to each file, by its suffix."""
    for path in paths:
        write_text(path, page() if path.suffix.lower() == ".html" else record())


def write_model_report(
    report: ModelReport,
    paths: Iterable[Path],
    *,
    printed: bool,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write a report to each file as HTML or JSON, with more members, and print it if asked."""

    def record() -> str:
        members = report.to_json() | dict(more or {})
        return json.dumps(members, indent=2, allow_nan=False) + "\n"

    def page() -> str:
        from anybit.inspection.pages import render_report

        return render_report(report)

    write_reports(paths, record, page)
    if printed:
        print(record(), end="")


def write_json_result(record: Any, as_json: bool, report: Path | None) -> None:
    """Print a result as JSON with --json, and write it to the file of --report."""
    if not as_json and report is None:
        return
    text = json.dumps(replace_nonfinite(record), indent=2, allow_nan=False)
    if report is not None:
        write_text(report, text + "\n")
    if as_json:
        print(text)


def replace_nonfinite(value: Any) -> Any:
    """Return the value with None for NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_command(context: typer.Context, *without: str) -> str:
    """Return the command line of a call for a shell, without some parameters."""
    words = ["anybit", str(context.command.name)]
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in without or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[str(parameter.name)]
        option = [max(parameter.opts, key=len)] if parameter.opts[0].startswith("-") else []
        if isinstance(value, bool):  # a flag, which was set
            words += option
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [*option, str(item)]
    return shlex.join(words)
