# SPDX-License-Identifier: Apache-2.0
"""`anybit quantize`: post-training quantization of a float model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.text import Text

import anybit
from anybit.cli._cluster import CLUSTER_HELP
from anybit.cli._columns import show
from anybit.cli._console import get_stdout, show_percentage
from anybit.cli._files import check_folder, check_overwrites, format_file_size
from anybit.cli._report import (
    JsonOption,
    ReportOption,
    check_reports,
    format_command,
    report_paths,
    write_json_result,
    write_model_report,
)
from anybit.cli.convert import show_remarks
from anybit.errors import OptionError
from anybit.onnx.forms import Form
from anybit.text import format_amount, format_count, format_percent

if TYPE_CHECKING:
    from anybit.inspection.model_report import Advice
    from anybit.onnx.conversion import Conversion
    from anybit.ptq import LayerResult, QuantizationResult

_FLOAT = "float"
# Groups of options in --help.
_PER_LAYER = "Single layers and mixed precision"
_RUNTIMES = "Runtimes and hardware"
_LARGE = "Large models and data"
_OMITTED_FIRST = ("operator", "parameters", "smoothed")
_NUMBERS = ("parameters", "SQNR", "outputs")


def quantize(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="The float .onnx file.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="Q.onnx", help="The result.")],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="Calibration inputs: FILE.npz (arrays by input name), FILE.npy or a folder; or "
            "random-tokens, for models of text.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Format of weights: int8 (default), int4, 'int4 per-block 32', ternary, fp8_e4m3, "
            "mxfp4.",
        ),
    ] = None,
    activations: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Format of activations, or float (default: uint8 with --data, else float). "
            "'int8 dynamic' computes scales at run time, without data; auto selects uint8 or "
            "'uint8 dynamic' by layer.",
        ),
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Format of the model's outputs, such as int8 (default: float).",
        ),
    ] = None,
    integer_only: Annotated[
        bool,
        typer.Option(
            "--integer-only",
            help="Also quantize elementwise and pooling operators, for integer-only execution.",
        ),
    ] = False,
    fail_below: Annotated[
        str | None,
        typer.Option(
            metavar="10dB|95%|none",
            help="Minimum SQNR, agreement, or both: 10dB,95% (default: 10dB,90%; other logits are "
            "checked only if you set a share).",
        ),
    ] = None,
    as_json: JsonOption = False,
    reports: ReportOption = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPEC",
            help="Formats of layers, as WEIGHTS[/ACTIVATIONS]: 'head.*=int4/uint8' (* and ? as in "
            "a shell). Repeatable.",
            rich_help_panel=_PER_LAYER,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Keep the layers that match a pattern in float. Repeatable.",
            rich_help_panel=_PER_LAYER,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="4MB|30dB|50%bops",
            help="Search mixed precision within a budget: size (1 KB is 1024 bytes), SQNR or bit "
            "operations.",
            rich_help_panel=_PER_LAYER,
        ),
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Measure the effect of quantizing each layer alone; implied by --budget.",
            rich_help_panel=_PER_LAYER,
        ),
    ] = False,
    to: Annotated[
        Form | None,
        typer.Option(
            "--to",
            metavar="FORM",
            help=f"Form of the file: {', '.join(Form)} (default: compact; with --target: qonnx).",
            rich_help_panel=_RUNTIMES,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="finn|hls4ml",
            help="Use quantizers that this FPGA compiler supports.",
            rich_help_panel=_RUNTIMES,
        ),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT=OUTPUT",
            help="Recurrent state: share one scale between INPUT and the OUTPUT fed back to it; "
            "needs --outputs. Repeatable.",
            rich_help_panel=_RUNTIMES,
        ),
    ] = None,
    scales: Annotated[
        str | None,
        typer.Option(
            metavar="power-of-two",
            help="Use only powers of two as scales (default: any float).",
            rich_help_panel=_RUNTIMES,
        ),
    ] = None,
    effort: Annotated[
        str,
        typer.Option(
            metavar="fast|default",
            help="fast: one pass over the data, full ranges, round-to-nearest weights.",
            rich_help_panel=_LARGE,
        ),
    ] = "default",
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Cache calibration statistics in DIR; an interrupted run resumes from it.",
            rich_help_panel=_LARGE,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help=CLUSTER_HELP, rich_help_panel=_LARGE),
    ] = None,
) -> None:
    """Quantize a float model and report the effect on its outputs.

    Weights and inputs of MatMul-like operators are quantized, with ranges that minimize the output
    error; --integer-only adds other operators. Quality is measured on one sample in four, held out
    from calibration. (A budget search uses these samples.)

    Exit status: 0 if the quality check passes or there are no data, 1 if it fails, 2 for bad input.
    A failed check does not prevent writing the file.
    """
    check_folder(output, "--output")
    check_reports(reports or ())
    check_overwrites(
        [("--output", output), *report_paths(reports)], [("MODEL", model), ("--data", data)]
    )
    with show_percentage(f"Quantizing {escape(model.name)}") as advance:
        result = anybit.quantize(
            model,
            data,
            weights=weights,
            activations=activations,
            layers=_parse_pairs(layer or (), "--layer", "NAME=SPEC, such as 'head.*=int8'"),
            keep=keep or (),
            outputs=outputs,
            states=_parse_pairs(state or (), "--state", "INPUT=OUTPUT, such as h=h_next"),
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
    converted = None if own else anybit.convert(result, to=to)
    if converted is None:
        result.save(output, to=to)
    else:
        converted.save(output)
    advice: Sequence[Advice] = ()
    if reports:
        advice = _report(
            result, model, data, reports, format_command(context, "reports", "as_json")
        )
    conversion = None if converted is None else converted.to_json()
    write_json_result(result.to_json() | {"conversion": conversion}, as_json, None)
    if not as_json:
        _show(result, model, output, converted, advice)
    if result.verdict is not None and not result.verdict.passed:
        raise typer.Exit(1)


def _parse_pairs(arguments: Iterable[str], option: str, usage: str) -> dict[str, str]:
    """Return the values of a repeated option by name, in order.

    Args:
        arguments: The arguments of the option, NAME=VALUE.
        option: The option, for messages.
        usage: The expected form of an argument, for messages.

    Raises:
        OptionError: An argument has another form, or a name is given twice.
    """
    pairs: dict[str, str] = {}
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if not (separator and name and value):
            raise OptionError(f"{option} {argument!r}: use {usage}")
        if name in pairs:
            raise OptionError(f"{option}: {name!r} is given twice")
        pairs[name] = value
    return pairs


def _show(
    result: QuantizationResult,
    model: Path,
    output: Path,
    converted: Conversion | None,
    advice: Iterable[Advice],
) -> None:
    console = get_stdout()
    rows = [
        {
            "layer": layer.name,
            "operator": layer.operator,
            "parameters": f"{layer.parameters}",
            "weights": layer.weights or "-",
            "activations": layer.activations or _FLOAT,
            "smoothed": "yes" if layer.smoothed else "",
            "SQNR": "" if layer.sqnr is None else f"{layer.sqnr:.1f} dB",
            **_describe_outputs(layer),
        }
        for layer in result.layers
    ]
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    show(
        [{name: row[name] for name in columns} for row in rows],
        _OMITTED_FIRST,
        ("layer",),
        _NUMBERS,
        console,
    )
    if result.front:
        console.print(Text(_describe_mix(result)))
    for name, reason in result.skipped.items():
        console.print(Text(f"{name} stays float: {reason}"))
    for remark in result.remarks:
        console.print(Text(remark))
    sizes = f"{format_file_size(output)} (was {format_file_size(model)})"
    console.print(f"{output} written, {format_count(len(rows), 'layer')}, {sizes}", markup=False)
    if converted is not None:
        show_remarks(converted, console)
        if words := _describe_expansion(converted):
            console.print(Text(words), soft_wrap=True)
    for item in advice:
        console.print(Text(str(item)))
    if result.verdict is None:
        console.print(
            "Quality not measured: there are no data. Quantize with --data DATA, or compare both "
            "models with `anybit evaluate`.",
            markup=False,
            soft_wrap=True,
        )
    else:
        from anybit.cli._quality import show_quality

        show_quality(result.verdict, console)


def _describe_expansion(converted: Conversion) -> str:
    """Return a note on quantizers that became standard operators, with the remedy; "" for none."""
    steps = [step for step in converted.steps if step.action == "standard operators"]
    if not converted.form.has_pairs or not steps:
        return ""
    by_zero = any(step.reason.startswith("zero-point") for step in steps)
    remedy = "; --activations int8 has no zero-points" if by_zero else ""
    return (
        f"note: {len(steps)} of {format_count(len(converted.steps), 'quantizer')} became standard "
        f"operators, which give the same values, not QuantizeLinear: {steps[0].reason}{remedy}"
    )


def _describe_outputs(layer: LayerResult) -> dict[str, str]:
    if layer.output_sqnr is None:
        return {}
    return {"outputs": f"{layer.output_sqnr:.1f} dB"}


def _describe_mix(result: QuantizationResult) -> str:
    """Return a summary of the mixed precision, compared with one width for all."""
    macs = sum(layer.macs or 0 for layer in result.layers)
    wide = [layer for layer in result.layers if max(layer.weight_bits, layer.activation_bits) > 8]
    share = format_percent(sum(layer.macs or 0 for layer in wide) / macs) if macs else "0 %"
    parts = [f"{share} of MACs in more than 8 bits"]
    parts += [f"{format_amount(mix.bops)} bit operations" for mix in result.front if mix.chosen]
    parts += [
        f"uniform {mix.name}: {format_amount(mix.bops)}, predicted SQNR {mix.sqnr:.0f} dB"
        for mix in result.front
        if mix.name.startswith("int8")
    ]
    return f"Mixed precision: {'; '.join(parts)}"


def _report(
    result: QuantizationResult, model: Path, data: Path | None, paths: Sequence[Path], command: str
) -> Sequence[Advice]:
    """Write the reports, and return their advice."""
    from anybit.inspection import report_quantization

    report = report_quantization(result, data, name=model.name, command=command)
    write_model_report(report, paths, printed=False)
    return report.advice
