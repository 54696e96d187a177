# SPDX-License-Identifier: Apache-2.0
"""`anybit convert`: convert a model between QONNX and standard ONNX."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import anybit
from anybit.cli._console import get_stdout, show_status
from anybit.cli._files import check_folder, check_overwrites, format_file_size
from anybit.cli._report import JsonOption, JsonReportOption, check_report, write_json_result
from anybit.errors import OptionError
from anybit.onnx.forms import NEWEST_OPSET, Form
from anybit.text import escape_name

if TYPE_CHECKING:
    from anybit.onnx.conversion import Conversion
    from anybit.onnx.report import ConversionStep


def convert(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.onnx", help="The result.")],
    to: Annotated[
        Form | None,
        typer.Option("--to", metavar="FORM", help="Form of the result (see above)."),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="RUNTIME",
            help="Target that sets form (unless --to does), opset and fences: onnxruntime, "
            "onnxruntime=1.20, web, openvino or any (default with --to: onnxruntime).",
        ),
    ] = None,
    allow_approximate: Annotated[
        bool,
        typer.Option(
            "--allow-approximate",
            help="Also convert quantizers without an exact counterpart, and list the changes.",
        ),
    ] = False,
    opset_limit: Annotated[
        int,
        typer.Option(min=13, metavar="N", help="Newest opset to use; 21 excludes 2-bit types."),
    ] = NEWEST_OPSET,
    as_json: JsonOption = False,
    report: JsonReportOption = None,
) -> None:
    """Convert a model to another form in which its operators compute the same values.

    * **qonnx**: QONNX's operators under their canonical names
    * **compact**: the same, with weights stored as codes; the smallest file
    * **standard**: standard operators only, weights as floats
    * **portable**: QONNX's operators, with local functions for runtimes that lack them
    * **qdq**: QuantizeLinear and DequantizeLinear on the narrowest native types
    * **qcdq**: the same on 8-bit types, with Clip
    * **matmulnbits**: as qdq, with ONNX Runtime's MatMulNBits for weights of up to 4 bits

    Fences (Min nodes without effect) keep ONNX Runtime from fusing to integer operators with other
    values; --for any and openvino omit them, and qonnx and compact have none: their sessions need
    session.disable_quant_qdq = 1. Float sums may change order.
    """
    console = get_stdout()
    if to is None and runtime is None:
        raise OptionError(
            f"choose the form of the result with --to {'|'.join(Form)}, or name what it is for "
            "with --for RUNTIME"
        )
    check_folder(output, "--output")
    check_report(report)
    check_overwrites([("--output", output), ("--report", report)], [("MODEL", model)])
    was = format_file_size(model) if model.exists() else ""
    with show_status("Converting", model):
        conversion = anybit.convert(
            model,
            to=to,
            runtime=runtime,
            allow_approximate=allow_approximate,
            opset_limit=opset_limit,
        )
        conversion.save(output)
    write_json_result(conversion.to_json(), as_json, report)
    if as_json:
        return
    if conversion.steps or not conversion.remarks:
        console.print(_make_table(conversion.steps))
    for step in conversion.steps:
        if not step.exact:
            reason = escape(escape_name(f"{step.node}: {step.reason}"))
            console.print(f"[yellow]approximate[/]: {reason}", soft_wrap=True)
    show_remarks(conversion, console)
    console.print(
        f"{output} written, {format_file_size(output)} (was {was})",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def show_remarks(conversion: Conversion, console: Console) -> None:
    """Print the remarks on the whole model."""
    for remark in conversion.remarks:
        console.print(f"[yellow]note[/]: {escape(escape_name(remark))}", soft_wrap=True)


def _make_table(steps: tuple[ConversionStep, ...]) -> Table | str:
    """Return a table of the results of nodes; equal results share a row."""
    if not steps:
        return "no quantizer in it had to be changed"
    counts = Counter((step.operator, step.action, step.reason) for step in steps)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("nodes", justify="right")
    explained = any(step.reason for step in steps)
    for heading in ("operator", "became", *["because"] * explained):
        table.add_column(heading, overflow="fold")
    for (operator, action, reason), count in counts.most_common():
        texts = (operator, action, *[reason] * explained)
        table.add_row(str(count), *(escape(escape_name(text)) for text in texts))
    return table
