# SPDX-License-Identifier: Apache-2.0
"""`anybit analyze`: what layers cost, what they can hold, and whether float32 is exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.text import Text

import anybit
from anybit.cli._columns import show
from anybit.cli._console import stdout, working
from anybit.cli._files import check_overwrites
from anybit.cli._inputs import Ranges, gather_inputs, input_paths
from anybit.cli._report import Json, Reports, check_reports, plain, report_paths, write_reports
from anybit.text import counted

if TYPE_CHECKING:
    from anybit.inputs import Tensor
    from anybit.layers import Analyzed

# What is left out first where a terminal has no room for all of it.
_SPARED = (
    *("weight codes", "weight", "operator", "codes in", "any weights", "codes out", "result"),
    *("zeros", "BOPs", "accumulator"),
)
_SEEN_SPARED = ("most frequent codes", "codes in", "in seen", "sums", "codes out")

Data: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Run the model on FILE.npy, FILE.npz or NAME=FILE.npy, and show what is seen beside "
        "what is proven; may be repeated.",
    ),
]


def analyze(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    ranges: Ranges = None,
    data: Data = None,
    as_json: Json = False,
    reports: Reports = None,
) -> None:
    """Show the cost and value ranges of every layer, and where float32 rounds.

    Multiplications, operations on bits, zeros, ranges and bits of accumulators are proven from the
    weights and quantizers; the model is not run without --input.
    """
    from anybit.layers import page
    from anybit.onnx.analysis.ranges import named

    check_reports(reports or ())
    check_overwrites(report_paths(reports), [("MODEL", model), *input_paths("--input", data)])
    given = named(ranges or ())
    feeds = gather_inputs(_Inputs(model), data) if data else None
    with working("Analyzing", model):
        found = anybit.analyze(model, input_ranges=given, data=feeds)
    record = json.dumps(plain(found.to_json()), indent=2, allow_nan=False) + "\n"
    write_reports(reports or (), lambda: record, lambda: page(found))
    if as_json:
        print(record, end="")
    else:
        _show(found)


class _Inputs:
    """What a model takes, for reading the files of inputs."""

    def __init__(self, path: Path) -> None:
        from anybit.inputs import declared_inputs
        from anybit.onnx import read

        self.inputs: tuple[Tensor, ...] = declared_inputs(read(path).graph, str(path))


def _show(found: Analyzed) -> None:
    from anybit.layers import Guarantee, wording

    console = stdout()
    if found.layers:
        show(wording.rows(found), _SPARED, ("layer",), wording.NUMBERS, console)
    seen = wording.seen_rows(found)
    if seen:
        console.print(Text(f"Seen in {counted(found.rows, 'row')}, beside what is proven:"))
        show(seen, _SEEN_SPARED, ("layer",), wording.NUMBERS, console)
    for reason in wording.reasons(found.layers):
        console.print(Text(reason))
    if wording.unknown_sizes(found):
        console.print(Text(f"Note: {wording.unknown_sizes(found)}."))
    every = bool(found.layers) and len(found.of(Guarantee.EXACT)) == len(found.layers)
    console.print(Text(wording.summary(found), style="green" if every else "bold"))
