# SPDX-License-Identifier: Apache-2.0
"""`anybit quantize`: from a float model to one of few bits."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from anybit.cli._cluster import Cluster
from anybit.cli._columns import show
from anybit.cli._console import percentage, stdout
from anybit.cli._files import check_folder, check_other, check_overwrites, file_size
from anybit.cli._quality import show_quality
from anybit.cli._report import (
    Json,
    Reports,
    check_reports,
    deliver,
    report_paths,
    typed,
    write_model_report,
)
from anybit.cli.convert import show_remarks
from anybit.errors import ModelError
from anybit.inspection import report_quantization
from anybit.inspection.model_report import Advice
from anybit.onnx.conversion import Conversion
from anybit.onnx.conversion import convert as convert_model
from anybit.onnx.forms import Form
from anybit.quantization import Quantized, QuantizedLayer
from anybit.quantization import quantize as quantize_model
from anybit.text import amount, counted, percent

_FLOAT = "float"
_SPARED = ("operator", "parameters", "smoothed")
_NUMBERS = ("parameters", "SQNR", "outputs")


def quantize(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="The .onnx file, in floats.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="Q.onnx", help="The result.")],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="Inputs to calibrate with: FILE.npz (arrays by input name), FILE.npy, or a folder "
            "of them. No labels.",
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="As int8, int4, ternary, fp8_e4m3, 'int4 per-tensor power-of-two', mxfp4, nvfp4, "
            "'int4 per-block 32'.",
        ),
    ] = "int8",
    activations: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="The same, or float for none. Without it: uint8 with --data, else float.",
        ),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=WORDS",
            help="Other words for a layer or a pattern: `head.*=int8` for weights, "
            "`head.*=int4/uint8` for both, `head.*=float` for none; may be repeated.",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A layer, or a pattern, that stays; may be repeated."),
    ] = None,
    scales: Annotated[
        str | None,
        typer.Option(metavar="power-of-two", help="What all scales are; without it, any floats."),
    ] = None,
    integer_only: Annotated[
        bool,
        typer.Option(
            "--integer-only",
            help="Quantize also what lies between layers, so that anybit compile computes all of "
            "it with integers.",
        ),
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="finn|hls4ml",
            help="Use quantizers that this compiler for FPGAs takes.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="4MB|30dB|50%bops",
            help="Search mixed precision within a budget: constant size (4MB), output SQNR (30dB) "
            "or relative bit operations (50%bops).",
        ),
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Measure what each layer alone does to the outputs; a budget does it anyway.",
        ),
    ] = False,
    effort: Annotated[
        str,
        typer.Option(
            metavar="fast|default",
            help="fast: one pass over the data, whole ranges, weights rounded to nearest.",
        ),
    ] = "default",
    cluster: Cluster = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Cache calibration statistics in DIR; an interrupted run resumes from it.",
        ),
    ] = None,
    fail_below: Annotated[
        str | None,
        typer.Option(
            metavar="10dB|95%|none",
            help="Quality thresholds: SQNR, agreement, or both as 10dB,95% (default: 10dB, and 90% "
            "for integers and distributions over classes).",
        ),
    ] = None,
    to: Annotated[
        Form | None,
        typer.Option(
            "--to",
            metavar="FORM",
            help=f"The form of the file, as for anybit convert ({'|'.join(Form)}): qdq for other "
            "runtimes, qonnx for tools that read QONNX (default: compact; with --target qonnx).",
        ),
    ] = None,
    as_json: Json = False,
    reports: Reports = None,
) -> None:
    """Quantize a float model, and say what that did to its outputs.

    Quantizers go before what multiplies and adds up, and nowhere else; ranges are chosen by the
    error of the layers that read them. The outputs are judged on one of every four samples,
    which no choice has seen but that of a mix for --budget.

    Exit status: 0 if the quality check passes or there are no data, 1 if it fails (the file is
    written all the same), 2 for bad input.
    """
    check_folder(output, "--output")
    check_other(output, model, "whose floats cannot be had back")
    check_reports(reports or ())
    check_overwrites(
        [("--output", output), *report_paths(reports)], [("MODEL", model), ("--data", data)]
    )
    wanted = activations or (_FLOAT if data is None else "uint8")
    with percentage(f"Quantizing {escape(model.name)}") as advance:
        found = quantize_model(
            model,
            data,
            weights=weights,
            activations=wanted,
            layers=_by_name(layer or ()),
            keep=keep or (),
            scales=scales,
            integer_only=integer_only,
            target=target,
            budget=budget,
            sensitivity=sensitivity,
            effort=effort,
            cluster=cluster,
            cache=cache,
            fail_below=fail_below,
            progress=advance,
        )
    own = to in (None, Form.COMPACT, Form.QONNX)
    converted = None if own else convert_model(found, to=to)
    if converted is None:
        found.save(output, to=to)
    else:
        converted.save(output)
    advice: Sequence[Advice] = ()
    if reports:
        advice = _report(found, model, data, reports, typed(context, "reports", "as_json"))
    conversion = None if converted is None else converted.to_json()
    deliver(found.to_json() | {"conversion": conversion}, as_json, None)
    if not as_json:
        _show(found, model, output, converted, advice)
    if found.verdict is not None and not found.verdict.passed:
        raise typer.Exit(1)


def _by_name(options: Iterable[str]) -> dict[str, str]:
    """The words of --layer by pattern, in the order in which they were said."""
    found: dict[str, str] = {}
    for each in options:
        pattern, separator, words = each.partition("=")
        if not (separator and pattern and words):
            raise ModelError(f"--layer {each!r}: say NAME=WORDS, as 'head.*=int8'")
        if pattern in found:
            raise ModelError(f"--layer: {pattern!r} is said twice")
        found[pattern] = words
    return found


def _show(
    found: Quantized,
    model: Path,
    output: Path,
    converted: Conversion | None,
    advice: Iterable[Advice],
) -> None:
    console = stdout()
    rows = [
        {
            "layer": layer.name,
            "operator": layer.operator,
            "parameters": f"{layer.parameters}",
            "weights": layer.weights or "-",
            "activations": layer.activations or _FLOAT,
            "smoothed": "yes" if layer.smoothed else "",
            "SQNR": "" if layer.sqnr is None else f"{layer.sqnr:.1f} dB",
            **_of_outputs(layer),
        }
        for layer in found.layers
    ]
    known = [name for name in rows[0] if any(row[name] for row in rows)]
    show(
        [{name: row[name] for name in known} for row in rows],
        _SPARED,
        ("layer",),
        _NUMBERS,
        console,
    )
    if found.front:
        console.print(Text(_mix(found)))
    for name, reason in found.left.items():
        console.print(Text(f"{name} stays float: {reason}"))
    for remark in found.remarks:
        console.print(Text(remark))
    sizes = f"{file_size(output)} (was {file_size(model)})"
    console.print(f"{output} written, {counted(len(rows), 'layer')}, {sizes}", markup=False)
    if converted is not None:
        show_remarks(converted, console)
        if words := _spelled_out(converted):
            console.print(Text(words), soft_wrap=True)
    for item in advice:
        console.print(Text(str(item)))
    if found.verdict is None:
        console.print(
            "Not judged: there were no data. Quantize with --data DATA, or compare both models "
            "with `anybit evaluate`.",
            markup=False,
            soft_wrap=True,
        )
    else:
        show_quality(found.verdict, console)


def _spelled_out(converted: Conversion) -> str:
    """How many quantizers became more than a QuantizeLinear, and what to do; "" for none."""
    steps = [each for each in converted.steps if each.action == "standard operators"]
    if converted.form.value not in ("qdq", "qcdq") or not steps:
        return ""
    by_zero = any(each.reason.startswith("zero-point") for each in steps)
    remedy = "; --activations int8 has no zero-points" if by_zero else ""
    return (
        f"note: {len(steps)} of {counted(len(converted.steps), 'quantizer')} became standard "
        f"operators, which give the same values, not QuantizeLinear: {steps[0].reason}{remedy}"
    )


def _of_outputs(layer: QuantizedLayer) -> dict[str, str]:
    if layer.output_sqnr is None:
        return {}
    return {"outputs": f"{layer.output_sqnr:.1f} dB"}


def _mix(found: Quantized) -> str:
    """What was chosen, beside one width for all."""
    macs = sum(layer.macs or 0 for layer in found.layers)
    wide = [each for each in found.layers if max(each.weight_bits, each.activation_bits) > 8]
    share = percent(sum(each.macs or 0 for each in wide) / macs) if macs else "0 %"
    said = [f"{share} of MACs in more than 8 bits"]
    said += [f"{amount(each.bops)} operations on bits" for each in found.front if each.chosen]
    said += [
        f"{each.name} would take {amount(each.bops)} for some {each.sqnr:.0f} dB"
        for each in found.front
        if each.name.startswith("int8")
    ]
    return f"Mix: {', '.join(said)}"


def _report(
    found: Quantized, model: Path, data: Path | None, paths: Sequence[Path], command: str
) -> Sequence[Advice]:
    """Write the reports, and return their advice."""
    report = report_quantization(found, data, name=model.name, command=command)
    write_model_report(report, paths, printed=False)
    return report.advice
