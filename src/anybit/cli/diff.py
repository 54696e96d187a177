# SPDX-License-Identifier: Apache-2.0
"""`anybit diff`: where two models, two runtimes, or a model and recorded tensors disagree."""

import json
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.markup import escape
from rich.text import Text

from anybit.array_files import read_arrays
from anybit.cli._columns import show as show_rows
from anybit.cli._console import percentage, stdout
from anybit.cli._files import check_overwrites
from anybit.cli._inputs import Inputs, Shapes, gather_inputs, input_paths, sizes_given
from anybit.cli._report import Json, check_reports, report_paths, write_reports
from anybit.comparison import RUNNERS, Difference, page
from anybit.comparison.compare import compare
from anybit.comparison.measure import Tolerance as Tolerances
from anybit.comparison.report import wording
from anybit.comparison.sides.network import Network, Side, recorded
from anybit.errors import ModelError
from anybit.text import counted, shown

# What is left out first where a terminal has no room for all of it.
_SPARED = ("node", "elements", "step of", "ulps", "within", "made by", "relative", "steps")
_NAMES = ("tensor", "made by", "node", "in B", "step of")

Other: TypeAlias = Annotated[
    Path | None,
    typer.Argument(
        metavar="B",
        help="Another .onnx file, or an .npz of tensors by name that were recorded elsewhere; "
        "without it, A is compared under two runners.",
    ),
]
Runners: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="RUNNER[,RUNNER]",
        help=f"What runs A, and what runs B if that is another: {', '.join(RUNNERS)}; anybit by "
        "default. Without B, one name stands for anybit and that one, and the default is "
        "onnxruntime.",
    ),
]
Report: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write a page with pictures to FILE.html, or all figures as JSON to FILE.json or to a "
        "file without a suffix; may be repeated.",
    ),
]
Steps: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="N",
        help="Differences up to this many quantization steps count as equal.",
    ),
]
Tolerance: TypeAlias = Annotated[
    float, typer.Option(min=0, metavar="X", help="Differences up to this count as equal.")
]


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The .onnx file.")],
    b: Other = None,
    inputs: Inputs = None,
    shapes: Shapes = None,
    runners: Runners = None,
    steps: Steps = 0.0,
    atol: Tolerance = 0.0,
    show_all: Annotated[
        bool, typer.Option("--all", help="List all tensors, in the order in which A computes.")
    ] = False,
    as_json: Json = False,
    reports: Report = None,
) -> None:
    """Find the first tensor in which two models or two runtimes differ, and what harms most.

    All tensors are compared, by name or by position. The exit code is 0 if they are equal, 1 if
    not.
    """
    check_reports(reports or ())
    check_overwrites(report_paths(reports), [("A", a), ("B", b), *input_paths("--input", inputs)])
    first, second, names = _sides(a, b, runners)
    feeds = gather_inputs(first, inputs) if inputs else None
    with percentage(f"Comparing {escape(a.name)}") as advance:
        found = compare(
            first, second, feeds, names, Tolerances(steps, atol), advance, sizes_given(shapes)
        )
    write_reports(reports or (), lambda: _json(found), lambda: page(found))
    if as_json:
        print(_json(found), end="")
    else:
        show(found, show_all)
    raise typer.Exit(0 if found.equal else 1)


def _json(found: Difference) -> str:
    return json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n"


def _sides(
    a: Path, b: Path | None, runners: str | None
) -> tuple[Network, Network | Side, tuple[str, str]]:
    """What is compared, and what runs it."""
    record = b is not None and b.suffix == ".npz"
    given = [] if runners is None else [name.strip() for name in runners.split(",")]
    if len(given) > 2 - record:
        what = "one runner" if record else "one runner or two"
        raise ModelError(f"--with must name {what} here, of {', '.join(RUNNERS)}; got {runners!r}")
    names = given or ["anybit"]
    if b is None and len(names) < 2:
        names = ["anybit", *(given or ["onnxruntime"])]
    first = Network(a)
    second: Network | Side = first
    if b is not None:
        second = recorded(read_arrays(b), str(b)) if record else Network(b)
    return first, second, (names[0], names[-1])


def show(found: Difference, show_all: bool) -> None:
    console = stdout()
    for side, name in (("A", found.a), ("B", found.b)):
        console.print(Text(f"{side}  {shown(name)}"))
    tensors = found.tensors if show_all else found.ranked[: wording.MOST_ROWS]
    if tensors:
        rows = wording.rows(tensors, shapes=False)
        show_rows(rows, _SPARED, _NAMES, wording.NUMBERS, console)
    if not show_all and len(found.different) > len(tensors):
        more = len(found.different) - len(tensors)
        console.print(f"{counted(more, 'more tensor')} differ, which add less; --all lists them.")
    if found.first is not None:
        console.print(Text(wording.first_difference(found)))
        for each in found.first.samples:
            console.print(Text(f"  {wording.sample(each)}"))
        for hint in found.hints:
            console.print(Text(f"  Hint: {hint}."))
    for remark in wording.remarks(found):
        console.print(Text(f"Note: {remark}."))
    console.print(Text(wording.summary(found), style="green" if found.equal else "bold"))
