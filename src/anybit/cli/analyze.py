# SPDX-License-Identifier: Apache-2.0
"""`anybit analyze`: what layers cost, what they can hold, and whether float32 is exact."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.table import Table
from rich.text import Text

from anybit.cli._columns import headed, spared
from anybit.cli._console import stdout, working
from anybit.cli._files import check_folder, write_text
from anybit.cli._inputs import Ranges, gather_inputs
from anybit.cli._report import Json, plain
from anybit.errors import ModelError
from anybit.inputs import Tensor, declared_inputs
from anybit.layers import Analyzed, page, wording
from anybit.layers import analyze as analyze_model
from anybit.onnx.analysis.ranges import named
from anybit.onnx.files.reader import read
from anybit.text import counted, shown

# What is left out first where a terminal has no room for all of it.
_SPARED = (
    *("weight codes", "weight", "operator", "codes in", "any weights", "codes out", "result"),
    *("zeros", "BOPs", "accumulator"),
)
_SEEN_SPARED = ("most frequent codes", "codes in", "in seen", "sums", "codes out")
_NAMES = ("layer",)

Data: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Run the model on FILE.npy, FILE.npz or NAME=FILE.npy, and show what is seen beside "
        "what is proven; may be repeated.",
    ),
]
Reports: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write all figures to FILE.json, or a page to FILE.html; may be repeated.",
    ),
]


def analyze(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    ranges: Ranges = None,
    data: Data = None,
    as_json: Json = False,
    reports: Reports = None,
) -> None:
    """Show what each layer costs, which codes and sums it can hold, and where float32 rounds.

    Multiplications, operations on bits, zeros, ranges and bits of accumulators are proven from the
    weights and quantizers; the model is not run without --input.
    """
    for report in reports or ():
        check_folder(report, "--report")
        if report.suffix not in _WRITERS:
            raise ModelError(f"{report}: --report must end in {' or '.join(_WRITERS)}")
    given = named(ranges or ())
    feeds = gather_inputs(_Inputs(model), data) if data else None
    with working("Analyzing", model):
        found = analyze_model(model, input_ranges=given, data=feeds)
    for report in reports or ():
        write_text(report, _WRITERS[report.suffix](found))
    if as_json:
        print(_json(found), end="")
    else:
        _show(found)


class _Inputs:
    """What a model takes, for reading the files of inputs."""

    def __init__(self, path: Path) -> None:
        self.inputs: tuple[Tensor, ...] = declared_inputs(read(path).graph, str(path))


def _json(found: Analyzed) -> str:
    return json.dumps(plain(found.to_json()), indent=2, allow_nan=False) + "\n"


_WRITERS = {".json": _json, ".html": page}


def _show(found: Analyzed) -> None:
    console = stdout()
    rows = wording.rows(found)
    if rows:
        fitting = spared(rows, _SPARED, _NAMES, _table, console)
        console.print(_table(fitting))
        _tell_missing(rows, fitting, console)
    seen = wording.seen_rows(found)
    if seen:
        console.print(Text(f"Seen in {counted(found.rows, 'row')}, beside what is proven:"))
        fitting = spared(seen, _SEEN_SPARED, _NAMES, _table, console)
        console.print(_table(fitting))
        _tell_missing(seen, fitting, console)
    for reason in wording.reasons(found):
        console.print(Text(reason))
    if wording.unknown_sizes(found):
        console.print(Text(f"Note: {wording.unknown_sizes(found)}."))
    every = bool(found.layers) and len(found.of("exact")) == len(found.layers)
    console.print(Text(wording.summary(found), style="green" if every else "bold"))


def _tell_missing(rows: list[dict[str, str]], fitting: list[dict[str, str]], console: Any) -> None:
    missing = [name for name in rows[0] if name not in fitting[0]]
    if missing:
        console.print(Text(f"no room here for {', '.join(missing)}: --json has all", style="dim"))


_STYLES = {"exact": "green", "rounds": "yellow", "float": "dim"}


def _table(rows: list[dict[str, str]]) -> Table:
    table = headed(rows, _NAMES, wording.NUMBERS)
    for index, row in enumerate(rows):
        last = index == len(rows) - 1 and row["layer"].split()[-1].startswith("layer")
        if last:
            table.add_section()
        table.add_row(*_cells(row.values()), style="bold" if last else None)
    return table


def _cells(texts: Iterable[str]) -> list[Text]:
    return [Text(shown(text), style=_STYLES.get(text, "")) for text in texts]
