# SPDX-License-Identifier: Apache-2.0
"""`anybit report`: what is to be said of a quantized model, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

import anybit
from anybit.cli._columns import show
from anybit.cli._console import percentage, stdout
from anybit.cli._files import check_folder, check_overwrites, write_text
from anybit.cli._report import Json, deliver
from anybit.errors import OptionError

if TYPE_CHECKING:
    from anybit.reporting import Report

_SPARED = ("result", "zeros", "sums", "acc. bits", "bytes", "MACs", "operator")
_MOST_ROWS = 10


def report(
    model: Annotated[Path, typer.Argument(help="The .onnx file, quantized.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="The page.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="Inputs to look at activations with: FILE.npz (arrays by input name), FILE.npy, "
            "or a folder of them. No labels.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Report on every layer of a quantized model.

    Weights, grids and ranges are those of the file, accumulators are proven; the model is run with
    --data only.
    """
    from anybit.reporting import page

    if output is not None:
        check_folder(output, "--output")
        if output.suffix.lower() == ".json":
            raise OptionError(f"{output}: --output is a page, FILE.html; --json prints JSON")
    check_overwrites([("--output", output)], [("MODEL", model), ("--data", data)])
    with percentage(f"Looking at {escape(model.name)}") as advance:
        found = anybit.report(model, data, progress=advance)
    if output is not None:
        write_text(output, page(found))
    deliver(found.to_json(), as_json, None)
    if not as_json:
        console = stdout()
        show_first_screen(found, console)
        if output is not None:
            console.print(f"{output} written", markup=False)


def show_first_screen(found: Report, console: Console) -> None:
    """Print the quality metrics, the worst layers and the findings."""
    from anybit.reporting import wording

    for tile in wording.tiles(found):
        before = f"{tile.before} -> " if tile.before else ""
        console.print(f"{tile.label}: {before}{tile.after}", markup=False)
    rows = [wording.row(each) for each in found.ranked[:_MOST_ROWS]]
    columns = [name for name in wording.COLUMNS if any(row[name] for row in rows)]
    if rows:
        fitting = [{name: row[name] for name in columns} for row in rows]
        show(fitting, _SPARED, ("layer",), wording.NUMBERS, console)
    more = len(found.layers) - len(rows)
    if more > 0:
        console.print(f"{more} more in the page (-o) and in --json.")
    for each in found.findings:
        console.print(Text(each.words))
    failed = found.verdict is not None and not found.verdict.passed
    console.print(Text(wording.sentence(found), style="bold red" if failed else "bold"))
