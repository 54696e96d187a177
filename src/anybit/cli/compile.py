# SPDX-License-Identifier: Apache-2.0
"""`anybit compile`: let the quantized layers of a model run on integers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anybit.cli._columns import NARROWEST_NAME, spared
from anybit.cli._console import percentage, stdout
from anybit.cli._files import check_folder, file_size
from anybit.cli._inputs import Ranges
from anybit.cli._report import Json, Report, check_report, deliver
from anybit.cli._verify import verify
from anybit.compilation import Compiled
from anybit.compilation import compile as compile_model
from anybit.lowbit.layers import Guarantee, Layer
from anybit.onnx.analysis.ranges import named
from anybit.text import counted, shown

_SPARED = ("kernel", "accumulator", "MACs", "results", "because")
_NAMES = ("layer", "because")
_NUMBERS = ("MACs", "accumulator", "at risk")
_STYLES = {Guarantee.EXACT: "green", Guarantee.CERTIFIED: "green", Guarantee.BOUNDED: "yellow"}


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
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Let the quantized layers of a model run on integers, exactly and several times as fast.

    FAST.onnx is an ordinary ONNX file, in which a region of such layers is one node. Each layer is
    **exact**: its results are those of the float graph; **certified**: its quantized results are
    those of every float32 evaluation; or **bounded**: its sums are exact, and float32 may differ
    from itself at the values that the report lists. What stays float says why.
    """
    check_folder(output, "--output")
    check_report(report)
    with percentage(f"Compiling {escape(model.name)}") as advance:
        compiled = compile_model(
            model, guarantee=guarantee, input_ranges=named(ranges or ()), progress=advance
        )
    compiled.save(output)
    deliver(compiled.report.to_json(), as_json, report)
    if not as_json:
        _show(compiled, model, output)
    if inputs and not verify(model, inputs, quiet=as_json):
        raise typer.Exit(1)


def _show(compiled: Compiled, model: Path, output: Path) -> None:
    console = stdout()
    report = compiled.report
    if report.layers:
        rows = [_row(layer) for layer in report.layers]
        console.print(_table(spared(rows, _SPARED, _NAMES, _table, console)))
    classes = ", ".join(f"{count} {each.value}" for each, count in report.guarantees.items())
    line = f"{report.coverage} on integers" + (f": {classes}" if classes else "")
    console.print(Text(line, style="bold"))
    sizes = f"{file_size(output)} (was {file_size(model)})"
    regions = f"{counted(len(report.programs), 'integer region')}, {sizes}"
    console.print(f"{output} written, {regions}", markup=False, soft_wrap=True)


def _row(layer: Layer) -> dict[str, str]:
    """A layer in words; a column that says nothing of it is empty."""
    compiled = layer.guarantee is not None
    results = f"{layer.levels} codes" if layer.levels else "floats"
    bits = f"{layer.accumulator_bits} bit" if compiled else ""
    risky = len({accumulator for _, accumulator in layer.risks})
    return {
        "layer": shown(layer.node),
        "operator": layer.operator,
        "class": layer.guarantee.value if layer.guarantee is not None else "float",
        "bits": f"{layer.weight_bits} x {layer.input_bits}",
        "MACs": _short(layer.macs),
        "accumulator": bits,
        "results": f"{results} by {layer.tail.lower()}" if compiled else "",
        "at risk": str(risky) if risky else "",
        "kernel": layer.kernel,
        "because": shown(layer.reason),
    }


def _short(count: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count) if count else ""


def _table(rows: list[dict[str, str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    said = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    for heading in said:
        if heading in _NAMES:
            longest = max(len(row[heading]) for row in rows)
            table.add_column(heading, overflow="fold", min_width=min(longest, NARROWEST_NAME))
        else:
            right = heading in _NUMBERS
            table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        cells = [Text(row[heading]) for heading in said]
        at = said.index("class") if "class" in said else None
        if at is not None:
            known = row["class"] in list(Guarantee)
            cells[at].stylize(_STYLES[Guarantee(row["class"])] if known else "dim")
        table.add_row(*cells)
    return table
