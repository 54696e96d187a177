# SPDX-License-Identifier: Apache-2.0
"""`anybit diff`: where two models, two runtimes, or a model and recorded tensors disagree."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from anybit.cli._arrays import read_arrays
from anybit.cli._console import stdout, working
from anybit.cli._files import check_folder, write_text
from anybit.cli._inputs import gather_inputs
from anybit.cli.run import Inputs
from anybit.comparison import RUNNERS, Difference, page
from anybit.comparison.compare import compare
from anybit.comparison.report import wording
from anybit.comparison.sides.network import Network, Side, recorded
from anybit.errors import ModelError
from anybit.text import shown

# Below, there is no room for the names of nodes beside those of tensors.
_WIDE = 120

Other: TypeAlias = Annotated[
    Path | None,
    typer.Argument(
        metavar="B",
        help="Another .onnx file, or an .npz of tensors by name that were recorded elsewhere; "
        "without it, A is run twice.",
    ),
]
Runners: TypeAlias = Annotated[
    str,
    typer.Option(
        "--with",
        metavar="RUNNER[,RUNNER]",
        help=f"What runs A, and what runs B if that is another: {', '.join(RUNNERS)}.",
    ),
]
Json: TypeAlias = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write all figures as JSON; - prints them."),
]
Html: TypeAlias = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.")
]
Steps: TypeAlias = Annotated[
    float, typer.Option(min=0, help="So many quantisation steps count as equal.")
]
Tolerance: TypeAlias = Annotated[
    float, typer.Option(min=0, help="Differences up to this count as equal.")
]


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The .onnx file.")],
    b: Other = None,
    inputs: Inputs = None,
    runners: Runners = "anybit",
    steps: Steps = 0.0,
    atol: Tolerance = 0.0,
    show_all: Annotated[bool, typer.Option("--all", help="List equal tensors too.")] = False,
    as_json: Json = None,
    html: Html = None,
) -> None:
    """Find the first tensor in which two models or two runtimes differ, and by how much.

    All tensors are compared, by name or by position. The exit code is 0 if they are equal, 1 if
    not.
    """
    to_stdout = as_json == Path("-")
    if as_json is not None and not to_stdout:
        check_folder(as_json, "--json")
    if html is not None:
        check_folder(html, "--html")
    with working("Comparing", a):
        found = _compared(a, b, inputs, runners, steps, atol)
    text = json.dumps(found.to_json(), indent=2, allow_nan=False)
    if html is not None:
        write_text(html, page(found))
    if to_stdout:
        print(text)
    else:
        if as_json is not None:
            write_text(as_json, text + "\n")
        _show(found, show_all)
    raise typer.Exit(0 if found.equal else 1)


def _compared(
    a: Path, b: Path | None, options: list[str] | None, runners: str, steps: float, atol: float
) -> Difference:
    record = b is not None and b.suffix == ".npz"
    names = [name.strip() for name in runners.split(",")]
    wanted = "one runner" if record else "one runner or two" if b is not None else "two runners"
    if len(names) > 2 - record or (b is None and len(names) < 2):
        example = "anybit" if record else "anybit,onnxruntime"
        raise ModelError(f"--with must name {wanted} here, such as {example}; got {runners!r}")
    first = Network(a)
    second: Network | Side = first
    if b is not None:
        second = recorded(read_arrays(b), str(b)) if record else Network(b)
    feeds = gather_inputs(first, options) if options else None
    return compare(first, second, feeds, (names[0], names[-1]), steps, atol)


def _show(found: Difference, show_all: bool) -> None:
    console = stdout()
    for side, name in (("A", found.a), ("B", found.b)):
        console.print(Text(f"{side}  {shown(name)}"))
    tensors = found.tensors if show_all else found.different
    if tensors:
        left_out = () if console.width >= _WIDE else ("node",)
        console.print(_table(wording.rows(tensors, shapes=False), left_out))
    if found.first is not None:
        console.print(Text(wording.first_difference(found)))
        for each in found.first.samples:
            console.print(Text(f"  {wording.sample(each)}"))
        for hint in found.hints:
            console.print(Text(f"  Hint: {hint}."))
    for remark in wording.remarks(found):
        console.print(Text(f"Note: {remark}."))
    console.print(Text(wording.summary(found), style="green" if found.equal else "bold"))


def _table(rows: list[dict[str, str]], left_out: Collection[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    headings = [heading for heading in rows[0] if heading not in left_out]
    for heading in headings:
        # Where the terminal is narrow, names go over several lines, numbers do not.
        if heading in wording.NUMBERS:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[heading]) for heading in headings))
    return table
