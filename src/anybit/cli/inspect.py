# SPDX-License-Identifier: Apache-2.0
"""`anybit inspect`: the contents of a model, its layers, and values on data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anybit.cli._columns import show
from anybit.cli._console import get_stdout, show_percentage
from anybit.cli._files import check_overwrites, format_file_size
from anybit.cli._inputs import RangesOption
from anybit.cli._report import JsonOption, check_reports, report_paths, write_model_report
from anybit.text import escape_name, format_count

if TYPE_CHECKING:
    from anybit.inspection import ModelReport

_QUANTIZERS_OMITTED_FIRST = ("rounding", "zero-points", "codes", "per")


def inspect(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    layers: Annotated[bool, typer.Option("--layers", help="Show each layer.")] = False,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DATA",
            help="Show observed ranges and clipping on FILE.npz, FILE.npy or a folder. Repeatable.",
        ),
    ] = None,
    ranges: RangesOption = None,
    reports: Annotated[
        list[Path] | None,
        typer.Option(
            "--report",
            "-o",
            metavar="FILE",
            help="Write the full report to FILE.html or FILE.json. Repeatable.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model's operators, quantizers, sizes, layers and value ranges.

    Bounds of codes, sums and accumulators are proven from weights and quantizers; the model runs
    only with --data.
    """
    from anybit.inspection import inspect as inspect_model
    from anybit.onnx.analysis.ranges import parse_ranges

    sources = [("--data", path) for path in data or ()]
    check_reports(reports or ())
    check_overwrites(report_paths(reports), [("MODEL", model), *sources])
    with show_percentage(f"Inspecting {escape(model.name)}") as advance:
        report = inspect_model(
            model,
            _list_samples(data or ()),
            layers=layers or bool(reports),
            input_ranges=parse_ranges(ranges or ()),
            progress=advance,
        )
    write_model_report(report, reports or (), printed=as_json)
    if as_json:
        return
    console = get_stdout()
    _show_contents(report, model, console)
    if layers or data:
        _show_layers(report, console)
    for path in reports or ():
        console.print(f"{path} written", markup=False, soft_wrap=True)


def _list_samples(paths: Sequence[Path]) -> Any:
    """Return one path as it is, and the files of several."""
    if len(paths) < 2:
        return paths[0] if paths else None
    from anybit.data.readers import list_data_files

    return [file for path in paths for file in list_data_files(path)]


def _show_contents(report: ModelReport, model: Path, console: Console) -> None:
    from anybit.inspection import text

    if report.summary is None:
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    facts = text.describe_contents(report.summary)
    for name, fact in {"file": f"{model} ({format_file_size(model)})", **facts}.items():
        table.add_row(name, Text(escape_name(fact)))
    table.add_row("work", Text(text.describe_work(report)))
    console.print(table)
    rows = text.make_quantizer_rows(report.summary.quantizers)
    if rows:
        numbers = ("bits", "scales")
        show(rows, _QUANTIZERS_OMITTED_FIRST, ("quantizers",), numbers, console)
    for note in text.make_quantizer_notes(report.summary):
        console.print(Text(escape_name(note)))


def _show_layers(report: ModelReport, console: Console) -> None:
    from anybit.inspection import text

    if report.layers:
        show(text.make_layer_rows(report), text.OMITTED_FIRST, ("layer",), text.NUMBERS, console)
    observed = text.make_observed_rows(report)
    if observed and report.data is not None:
        console.print(Text(f"Observed on {format_count(report.data.observed, 'sample')}:"))
        show(observed, text.OBSERVED_OMITTED_FIRST, ("layer",), text.NUMBERS, console)
    for reason in text.group_reasons(report.layers):
        console.print(Text(reason))
    for advice in report.advice:
        console.print(Text(str(advice)))
    if text.describe_unknown_sizes(report):
        console.print(Text(f"note: {text.describe_unknown_sizes(report)}"))
    every = bool(report.totals.layers) and report.totals.exact == report.totals.layers
    console.print(Text(text.describe_conclusion(report), style="green" if every else "bold"))
