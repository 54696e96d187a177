# SPDX-License-Identifier: Apache-2.0
"""`anybit compile`: let the quantized layers of a model run on integers."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from anybit.cli._columns import show
from anybit.cli._console import percentage, stdout
from anybit.cli._files import check_folder, check_other, check_overwrites, file_size
from anybit.cli._inputs import Ranges, input_paths, sizes_given
from anybit.cli._report import Json, Reports, check_reports, report_paths, write_model_report
from anybit.cli._timing import slower
from anybit.cli._verify import verification_inputs, verify
from anybit.compiler.compiled import Compiled
from anybit.compiler.pipeline import compile as compile_model
from anybit.compiler.prepare.input_shapes import fix_shapes
from anybit.compiler.timing import add_times
from anybit.inspection import ModelReport, report_compilation, text
from anybit.onnx.analysis.ranges import named
from anybit.quant_types.layer_info import Guarantee
from anybit.text import counted

# What is left out first where a terminal has no room for all of it.
_SPARED = ("operator", "kernel", "results", "MACs", "float time", "acc. bits")


def compile(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FAST.onnx", help="The result.")
    ],
    guarantee: Annotated[
        Guarantee,
        typer.Option(
            metavar="|".join(Guarantee),
            help="The weakest class of layers that are compiled; others stay float.",
        ),
    ] = Guarantee.BOUNDED,
    ranges: Ranges = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=N,N,...",
            help="The shape of an input whose sizes the file leaves free, as x=1,3,320,320; may be "
            "repeated.",
        ),
    ] = None,
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
            "--time",
            help="Measure one row: each layer, and whole runs beside the float model, its static "
            "int8 and the quantized graph in ONNX Runtime.",
        ),
    ] = False,
    float_model: Annotated[
        Path | None,
        typer.Option(
            "--float",
            metavar="FLOAT.onnx",
            help="The float model that --time compares with (default: the one MODEL records).",
        ),
    ] = None,
    as_json: Json = False,
    reports: Reports = None,
) -> None:
    """Run the quantized layers of a model on integers, with a stated guarantee.

    FAST.onnx is an ordinary ONNX file, in which a region of such layers is one node. Each layer is
    **exact**: its results are those of the float graph; **certified**: its quantized results are
    those of every float32 evaluation; or **bounded**: its sums are exact, and float32 may differ
    from itself at the values that the report lists. What stays float says why.
    """
    check_folder(output, "--output")
    check_other(output, model, "beside which the result is measured and verified")
    check_reports(reports or ())
    read = [("MODEL", model), *input_paths("--verify", inputs)]
    check_overwrites([("--output", output), *report_paths(reports)], read)
    feeds = verification_inputs(model, inputs) if inputs else None
    sizes, said = sizes_given(shapes), named(ranges or ())
    with percentage(f"Compiling {escape(model.name)}") as advance:
        compiled = compile_model(
            model,
            guarantee=guarantee,
            input_ranges=said,
            shapes=sizes,
            progress=advance,
        )
    compiled.save(output)
    floats = fix_shapes(model, sizes)
    if time:
        compiled.report = add_times(compiled, floats, float_model)
    else:
        speed = slower(floats, compiled, float_model)
        compiled.report = replace(compiled.report, speed=speed)
    report = report_compilation(compiled.report, model.name)
    write_model_report(report, reports or (), printed=as_json)
    if not as_json:
        _show(report, compiled, model, output)
        _show_speed(compiled)
    if feeds and not verify(model, compiled, output, feeds, said, quiet=as_json):
        raise typer.Exit(1)


def _show_speed(compiled: Compiled) -> None:
    speed = compiled.report.speed
    if speed is None:
        return
    console = stdout()
    show(speed.rows(), ("default threads",), ("one row",), text.NUMBERS, console)
    console.print(Text(compiled.report.whole))
    if speed.note:
        console.print(Text(f"note: {speed.note}"))


def _show(report: ModelReport, compiled: Compiled, model: Path, output: Path) -> None:
    console = stdout()
    if report.layers:
        show(text.layer_rows(report), _SPARED, ("layer",), text.NUMBERS, console)
    for reason in text.reasons(report.layers):
        console.print(Text(reason))
    console.print(Text(text.conclusion(report), style="bold"))
    sizes = f"{file_size(output)} (was {file_size(model)})"
    regions = f"{counted(len(compiled.report.programs), 'integer region')}, {sizes}"
    console.print(f"{output} written, {regions}", markup=False, soft_wrap=True)
    if not compiled.report.programs:
        note = f"Nothing runs on integers: {output} computes in floats, as {model} does."
        console.print(Text(note, style="bold red"), soft_wrap=True)
