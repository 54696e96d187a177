# SPDX-License-Identifier: Apache-2.0
"""`anybit diff`: differences between two models, two runtimes, or a model and recorded tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.markup import escape
from rich.text import Text

from anybit.cli._columns import show as show_rows
from anybit.cli._console import get_stdout, show_percentage
from anybit.cli._files import check_overwrites
from anybit.cli._inputs import (
    InputsOption,
    ShapesOption,
    gather_inputs,
    get_input_paths,
    parse_shapes,
)
from anybit.cli._report import JsonOption, check_reports, report_paths, write_reports
from anybit.errors import OptionError
from anybit.text import escape_name, format_count

if TYPE_CHECKING:
    from anybit.comparison import Difference
    from anybit.comparison.sides.network import LoadedNetwork, Side

# The columns that a narrow terminal omits, in this order.
_OMITTED_FIRST = (
    "node",
    "elements",
    "quantizer",
    "ulps",
    "tolerated",
    "operator",
    "relative",
    "steps",
)
_NAMES = ("tensor", "operator", "node", "in B", "quantizer")

OtherArgument: TypeAlias = Annotated[
    Path | None,
    typer.Argument(
        metavar="B",
        help="Another .onnx file, or .npz of tensors by name (default: A under another runner).",
    ),
]
RunnersOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="RUNNER[,RUNNER]",
        help="Runners of A and B: anybit, compiled, onnxruntime, onnxruntime-optimized, reference "
        "or qonnx. One name is for both; without B, for the second run (default: onnxruntime).",
    ),
]
DiffReportOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the report to FILE.html or FILE.json. Repeatable.",
    ),
]
StepsOption: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="N",
        help="Tolerance in quantization steps.",
    ),
]
AtolOption: TypeAlias = Annotated[
    float, typer.Option(min=0, metavar="X", help="Absolute tolerance.")
]


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The .onnx file.")],
    b: OtherArgument = None,
    inputs: InputsOption = None,
    shapes: ShapesOption = None,
    runners: RunnersOption = None,
    steps: StepsOption = 0.0,
    atol: AtolOption = 0.0,
    show_all: Annotated[
        bool, typer.Option("--all", help="List all tensors, in the order of execution of A.")
    ] = False,
    as_json: JsonOption = False,
    reports: DiffReportOption = None,
) -> None:
    """Find the first tensor in which two models or two runtimes differ.

    Tensors are matched by name or position. Those that add the most noise are listed. Without B, A
    runs with anybit and ONNX Runtime.

    Exit status: 0 if all tensors are equal, 1 if not, 2 for bad input.
    """
    from anybit.comparison import render_page
    from anybit.comparison.compare import compare
    from anybit.comparison.measure import Tolerance

    check_reports(reports or ())
    check_overwrites(
        report_paths(reports), [("A", a), ("B", b), *get_input_paths("--input", inputs)]
    )
    first, second, names = _resolve_sides(a, b, runners)
    feeds = gather_inputs(first, inputs) if inputs else None
    with show_percentage(f"Comparing {escape(a.name)}") as advance:
        difference = compare(
            first, second, feeds, names, Tolerance(steps, atol), advance, parse_shapes(shapes)
        )
    write_reports(reports or (), lambda: _make_json(difference), lambda: render_page(difference))
    if as_json:
        print(_make_json(difference), end="")
    else:
        show(difference, show_all)
    raise typer.Exit(0 if difference.equal else 1)


def _make_json(difference: Difference) -> str:
    return json.dumps(difference.to_json(), indent=2, allow_nan=False) + "\n"


def _resolve_sides(
    a: Path, b: Path | None, runners: str | None
) -> tuple[LoadedNetwork, LoadedNetwork | Side, tuple[str, str]]:
    """Return what is compared, and the runners of both."""
    from anybit.comparison import RUNNERS
    from anybit.comparison.sides.network import LoadedNetwork, load_recorded
    from anybit.data.array_files import read_arrays

    record = b is not None and b.suffix == ".npz"
    names = [] if runners is None else [name.strip() for name in runners.split(",")]
    if len(names) > 2 - record:
        number = "one runner" if record else "one runner or two"
        raise OptionError(
            f"--with must name {number} here, of {', '.join(RUNNERS)}; got {runners!r}"
        )
    if b is None and len(names) < 2:
        names = ["anybit", *(names or ["onnxruntime"])]
    names = names or ["anybit"]
    first = LoadedNetwork(a)
    second: LoadedNetwork | Side = first
    if b is not None:
        second = load_recorded(read_arrays(b), str(b)) if record else LoadedNetwork(b)
    return first, second, (names[0], names[-1])


def show(difference: Difference, show_all: bool) -> None:
    """Print the differing tensors, the first one with samples and hints, and a summary."""
    from anybit.comparison.report import wording

    console = get_stdout()
    for side, name in (("A", difference.a), ("B", difference.b)):
        console.print(Text(f"{side}  {escape_name(name)}"))
    tensors = difference.tensors if show_all else difference.ranked[: wording.MAX_ROWS]
    if tensors:
        rows = wording.make_rows(tensors, shapes=False)
        show_rows(rows, _OMITTED_FIRST, _NAMES, wording.NUMBERS, console)
    if not show_all and len(difference.different) > len(tensors):
        more = len(difference.different) - len(tensors)
        console.print(
            f"{format_count(more, 'more tensor')} differ, with less added noise; --all lists them."
        )
    if difference.first is not None:
        console.print(Text(wording.describe_first_difference(difference)))
        for sample in difference.first.samples:
            console.print(Text(f"  {wording.format_element(sample)}"))
        for hint in difference.hints:
            console.print(Text(f"  Hint: {hint}."))
    for remark in wording.make_remarks(difference):
        console.print(Text(f"Note: {remark}."))
    style = "green" if difference.equal else "bold"
    console.print(Text(wording.summarize(difference), style=style))
