# SPDX-License-Identifier: Apache-2.0
"""What commands give to programs: `--json` prints it, `--report FILE` writes it."""

import json
import math
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from anybit.cli._files import check_folder, write_text
from anybit.errors import ModelError
from anybit.inspection import ModelReport

Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print all of it as JSON, and nothing else.")
]
Report: TypeAlias = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.json", help="Write all of it as JSON.")
]
Reports: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the per-layer report: HTML if FILE ends in .html, JSON otherwise. Repeatable.",
    ),
]


def report_paths(paths: Iterable[Path] | None) -> list[tuple[str, Path | None]]:
    """Return the option's name and each of its files."""
    return [("--report", path) for path in paths or ()]


def check_report(path: Path | None) -> None:
    """ModelError if the report cannot be written: known before the work, not after it."""
    if path is not None:
        check_folder(path, "--report")
        if path.suffix.lower() == ".html":
            raise ModelError(f"{path}: --report writes JSON here, and no page: say FILE.json")


def check_reports(paths: Iterable[Path], option: str = "--report") -> None:
    """Refuse reports that cannot be written, or whose suffix is neither HTML nor JSON.

    Raises:
        ModelError: Their folder does not exist, or their suffix is another.
    """
    for path in paths:
        check_folder(path, option)
        if path.suffix.lower() not in ("", ".json", ".html"):
            raise ModelError(
                f"{path}: {option} writes HTML to FILE.html and JSON to FILE.json or a file "
                f"without a suffix, not {path.suffix}"
            )


def write_reports(
    paths: Iterable[Path], record: Callable[[], str], page: Callable[[], str]
) -> None:
    """Write JSON or an HTML page to each file, as its suffix says; make only what is written."""
    for path in paths:
        write_text(path, page() if path.suffix.lower() == ".html" else record())


def write_model_report(report: ModelReport, paths: Iterable[Path], *, printed: bool) -> None:
    """Write a report to each file as HTML or JSON, and print it as JSON if asked."""

    def record() -> str:
        return json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n"

    def page() -> str:
        from anybit.inspection.pages import report_page

        return report_page(report)

    write_reports(paths, record, page)
    if printed:
        print(record(), end="")


def deliver(record: Any, as_json: bool, report: Path | None) -> None:
    """Print and write a record, as far as that is wanted."""
    if not as_json and report is None:
        return
    text = json.dumps(plain(record), indent=2, allow_nan=False)
    if report is not None:
        write_text(report, text + "\n")
    if as_json:
        print(text)


def plain(value: Any) -> Any:
    """The value with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def typed(context: typer.Context, *without: str) -> str:
    """The command that was given, in words to be typed again, less some parameters."""
    words = ["anybit", str(context.info_name)]
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in without or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[str(parameter.name)]
        option = [max(parameter.opts, key=len)] if parameter.opts[0].startswith("-") else []
        if isinstance(value, bool):  # a flag, which was set
            words += option
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [*option, str(each)]
    return shlex.join(words)
