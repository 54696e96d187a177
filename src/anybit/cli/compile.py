# SPDX-License-Identifier: Apache-2.0
"""`anybit compile`: compile the quantized layers of a model to integer code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.text import Text

import anybit
from anybit.cli._columns import show
from anybit.cli._console import get_stdout, show_percentage
from anybit.cli._files import check_folder, check_overwrites, format_file_size
from anybit.cli._inputs import RangesOption, get_input_paths, parse_shapes
from anybit.cli._report import (
    JsonOption,
    ReportOption,
    check_reports,
    report_paths,
    write_model_report,
)
from anybit.errors import AnybitError
from anybit.text import format_count

if TYPE_CHECKING:
    from anybit.compiler.compiled import CompiledModel
    from anybit.compiler.report import Speed
    from anybit.inspection import ModelReport
    from anybit.onnx import Source

# Seconds for the timing without --time.
_SHORT_TIMING = 0.15
# The columns that a narrow terminal omits, in this order.
_OMITTED_FIRST = ("operator", "kernel", "results", "MACs", "float time", "acc. bits")
_C_SOURCE = "C source (--to c)"


def compile(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FAST.onnx",
            help="The result: a file, or a folder with --to c.",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(metavar="c", help="Write C source for microcontrollers to a folder instead."),
    ] = None,
    guarantee: Annotated[
        str,
        typer.Option(
            metavar="exact|certified|bounded",
            help="Weakest guarantee to accept; layers below it stay float.",
        ),
    ] = "bounded",
    ranges: RangesOption = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=N,N,...",
            help="Shape of an input with dynamic sizes, e.g. x=1,3,320,320. Repeatable.",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--verify",
            metavar="FILE",
            help="Compare all codes and outputs with the float graph on these inputs. Repeatable.",
        ),
    ] = None,
    time: Annotated[
        bool,
        typer.Option(
            "--time",
            help="Time regions, layers and the model on one row, and leave slow regions float.",
        ),
    ] = False,
    float_model: Annotated[
        Path | None,
        typer.Option(
            "--float",
            metavar="FLOAT.onnx",
            help="Float model for --time (default: the source recorded in MODEL, else its graph "
            "without quantizers).",
        ),
    ] = None,
    as_json: JsonOption = False,
    reports: ReportOption = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Prefix of files and functions (default: net).",
            rich_help_panel=_C_SOURCE,
        ),
    ] = None,
    io: Annotated[
        str | None,
        typer.Option(
            "--io",
            metavar="floats|codes",
            help="Inputs and outputs as floats (default) or as integer codes.",
            rich_help_panel=_C_SOURCE,
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="size|speed",
            help="Smallest code and weights (default), or faster code.",
            rich_help_panel=_C_SOURCE,
        ),
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="flash=64KB,ram=16KB",
            help="Fail if constants or the arena need more; 1 KB is 1024 bytes.",
            rich_help_panel=_C_SOURCE,
        ),
    ] = None,
) -> None:
    """Compile the quantized layers of a model to integer code.

    FAST.onnx is an ONNX file with one node per region of integer layers. Layers that stay float are
    listed with the reason. Every compiled layer has a guarantee:

    * **exact**: equal to the float graph; its sums are exact in float32, in any order
    * **certified**: codes equal to those of every float32 evaluation, although its sums round
    * **bounded**: sums are exact; a float32 evaluation, which rounds them, may give other codes at
      the accumulators that the report lists

    With --to c, a model that is integers from its inputs to its outputs becomes a folder of C99.

    Exit status: 0, also if layers stay float; 1 if --verify finds a difference; 2 for bad input.
    """
    from anybit.cli._c_source import check_c_options, write_c_source
    from anybit.cli._verify import read_verification_inputs, verify
    from anybit.compiler.prepare.input_shapes import fix_shapes
    from anybit.inspection import report_compilation
    from anybit.onnx.analysis.ranges import parse_ranges

    c_options = check_c_options(
        output,
        to,
        name,
        io,
        layout,
        limit,
        {"--verify": inputs, "--time": time, "--float": float_model},
    )
    if c_options is None:
        check_folder(output, "--output")
    check_reports(reports or ())
    read = [("MODEL", model), *get_input_paths("--verify", inputs)]
    outputs = [output] if c_options is None else c_options.paths
    check_overwrites([*(("--output", path) for path in outputs), *report_paths(reports)], read)
    feeds = read_verification_inputs(model, inputs) if inputs else None
    sizes, input_ranges = parse_shapes(shapes), parse_ranges(ranges or ())
    with show_percentage(f"Compiling {escape(model.name)}") as advance:
        compiled = anybit.compile(
            model,
            guarantee=guarantee,
            input_ranges=input_ranges,
            shapes=sizes,
            time=time,
            float_model=float_model,
            progress=advance,
        )
    if c_options is not None:
        report = report_compilation(compiled.report, model.name)
        write_c_source(compiled, c_options, report, reports or (), as_json=as_json)
        return
    compiled.save(output)
    if not time:
        speed = _measure_if_slower(fix_shapes(model, sizes), compiled, float_model)
        compiled.report = replace(compiled.report, speed=speed)
    report = report_compilation(compiled.report, model.name)
    write_model_report(report, reports or (), printed=as_json)
    if not as_json:
        _show(report, compiled, model, output)
        _show_speed(compiled)
    if feeds and not verify(model, compiled, output, feeds, input_ranges, quiet=as_json):
        raise typer.Exit(1)


def _measure_if_slower(
    source: Source, compiled: CompiledModel, float_model: Path | None
) -> Speed | None:
    """Return the times if the compiled model is clearly slower than the float model, else None.

    Models that are integer throughout, or do not run on random inputs, are not measured.
    """
    from anybit.compiler.timing import measure_speed
    from anybit.onnx.runtime import FAILURES

    failures: tuple[type[Exception], ...] = (AnybitError, *FAILURES)
    model = compiled.session_model
    if model is None or not compiled.report.programs:
        return None
    try:
        speed = measure_speed(
            source, compiled, model, float_model=float_model, seconds=_SHORT_TIMING, int8=False
        )
    except failures:
        return None
    return speed if speed.is_slower else None


def _show_speed(compiled: CompiledModel) -> None:
    from anybit.inspection.text import NUMBERS

    speed = compiled.report.speed
    if speed is None:
        return
    console = get_stdout()
    show(speed.rows(), ("default threads",), ("one row",), NUMBERS, console)
    console.print(Text(compiled.report.whole))
    if speed.note:
        console.print(Text(f"note: {speed.note}"))


def _show(report: ModelReport, compiled: CompiledModel, model: Path, output: Path) -> None:
    from anybit.inspection import text

    console = get_stdout()
    if report.layers:
        show(text.make_layer_rows(report), _OMITTED_FIRST, ("layer",), text.NUMBERS, console)
    for reason in text.group_reasons(report.layers):
        console.print(Text(reason))
    console.print(Text(text.describe_conclusion(report), style="bold"))
    sizes = f"{format_file_size(output)} (was {format_file_size(model)})"
    regions = f"{format_count(len(compiled.report.programs), 'integer region')}, {sizes}"
    console.print(f"{output} written, {regions}", markup=False, soft_wrap=True)
    if not compiled.report.programs:
        note = f"No layer was compiled: {output} computes as {model} does."
        console.print(Text(note, style="bold red"), soft_wrap=True)
