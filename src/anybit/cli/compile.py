# SPDX-License-Identifier: Apache-2.0
"""`anybit compile`: let the quantized layers of a model run on integers."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anybit.cli._columns import headed, spared
from anybit.cli._console import percentage, stdout
from anybit.cli._files import check_folder, file_size
from anybit.cli._inputs import Ranges
from anybit.cli._report import Json, check_reports, plain, write_reports
from anybit.cli._timing import speed
from anybit.cli._verify import verify
from anybit.compilation import Compiled
from anybit.compilation import compile as compile_model
from anybit.lowbit import wording
from anybit.lowbit.layers import Guarantee
from anybit.lowbit.page import page
from anybit.lowbit.timing import timed
from anybit.onnx.analysis.ranges import named
from anybit.text import counted

_SPARED = ("kernel", "accumulator", "MACs", "results", "because")
_NAMES = ("layer", "because")
_STYLES: dict[str, str] = {"exact": "green", "certified": "green", "bounded": "yellow"}


def compile(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FAST.onnx", help="The result.")
    ],
    guarantee: Annotated[
        Guarantee,
        typer.Option(help="The weakest class of layers that are compiled; others stay float."),
    ] = Guarantee.BOUNDED,
    ranges: Ranges = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--verify",
            metavar="FILE",
            help="Compare every tensor of codes and every output with those of the float graph, on "
            "inputs as `anybit run --input` takes them; may be repeated.",
        ),
    ] = None,
    time: Annotated[
        bool,
        typer.Option(
            "--time", help="Measure each layer, and the whole beside the float graph, on one row."
        ),
    ] = False,
    as_json: Json = False,
    reports: Annotated[
        list[Path] | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Write what became of each layer as a page to FILE.html, or as JSON to FILE.json "
            "or a file without a suffix; may be repeated.",
        ),
    ] = None,
) -> None:
    """Let the quantized layers of a model run on integers, exactly and several times as fast.

    FAST.onnx is an ordinary ONNX file, in which a region of such layers is one node. Each layer is
    **exact**: its results are those of the float graph; **certified**: its quantized results are
    those of every float32 evaluation; or **bounded**: its sums are exact, and float32 may differ
    from itself at the values that the report lists. What stays float says why.
    """
    check_folder(output, "--output")
    check_reports(reports or ())
    with percentage(f"Compiling {escape(model.name)}") as advance:
        compiled = compile_model(
            model, guarantee=guarantee, input_ranges=named(ranges or ()), progress=advance
        )
    compiled.save(output)
    if time:
        compiled.report = timed(compiled.report)
    record = json.dumps(plain(compiled.report.to_json()), indent=2, allow_nan=False) + "\n"
    write_reports(reports or (), record, lambda: page(compiled.report, model.name))
    if as_json:
        print(record, end="")
    else:
        _show(compiled, model, output)
        if time:
            print(speed(model, compiled))
    if inputs and not verify(model, inputs, quiet=as_json):
        raise typer.Exit(1)


def _show(compiled: Compiled, model: Path, output: Path) -> None:
    console = stdout()
    report = compiled.report
    if report.layers:
        rows = wording.rows(report)
        console.print(_table(spared(rows, _SPARED, _NAMES, _table, console)))
    console.print(Text(wording.summary(report), style="bold"))
    sizes = f"{file_size(output)} (was {file_size(model)})"
    regions = f"{counted(len(report.programs), 'integer region')}, {sizes}"
    console.print(f"{output} written, {regions}", markup=False, soft_wrap=True)


def _table(rows: list[dict[str, str]]) -> Table:
    table = headed(rows, _NAMES, wording.NUMBERS)
    for row in rows:
        cells = {heading: Text(text) for heading, text in row.items()}
        cells["class"].stylize(_STYLES.get(row["class"], "dim"))
        table.add_row(*cells.values())
    return table
