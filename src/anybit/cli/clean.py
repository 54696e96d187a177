# SPDX-License-Identifier: Apache-2.0
"""`anybit clean`: normalize a model."""

from pathlib import Path
from typing import Annotated

import typer

import anybit
from anybit.cli._console import get_stdout, show_status
from anybit.cli._files import check_folder, format_file_size
from anybit.errors import OptionError
from anybit.text import escape_name, format_count


def clean(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.onnx", help="The result.")],
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N|dynamic",
            help="Batch size of inputs and outputs: a number, or dynamic for any.",
        ),
    ] = None,
    keep_quantizers: Annotated[
        bool, typer.Option("--keep-quantizers", help="Do not fold quantized weights.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="finn|hls4ml",
            help="Write a model for this FPGA compiler: operator names, layout, fixed batch.",
        ),
    ] = None,
) -> None:
    """Normalize a model, fold constants, remove dead nodes, infer shapes.

    The results are bit for bit the same, and cleaning twice gives the same file.
    """
    from anybit.inputs import list_inputs
    from anybit.onnx import read

    check_folder(output, "--output")
    rows = None if batch is None else _parse_batch(batch)
    with show_status("Cleaning", model):
        nodes_before = sum(1 for _ in read(model).graph.all_nodes())
        size = format_file_size(model)
        cleaned = anybit.clean(
            model,
            batch=rows,
            keep_quantizers=keep_quantizers,
            target=target,
        )
        cleaned.save(output)
    nodes_after = sum(1 for _ in cleaned.model.graph.all_nodes())
    nodes = f"{format_count(nodes_after, 'node')} (was {nodes_before})"
    _print(f"{output} written: {nodes}, {format_file_size(output)} (was {size})")
    for remark in cleaned.remarks:
        _print(f"note: {remark}")
    if target is not None:
        takes = ", ".join(map(str, list_inputs(cleaned.model.graph, str(output))))
        count = len(anybit.check(cleaned, target))
        findings = format_count(count, "finding") if count else "no problems found"
        _print(f"It takes {takes}. anybit check {output} --target {target}: {findings}.")


def _print(line: str) -> None:
    get_stdout().print(escape_name(line), markup=False, highlight=False, soft_wrap=True)


def _parse_batch(text: str) -> int | str:
    if text == "dynamic":
        return text
    # Longer numbers are not sizes, and Python refuses to parse the longest.
    if not text.isdecimal() or len(text) > 18:
        raise OptionError(f'--batch must be an integer >= 1 or "dynamic", got {text!r}')
    return int(text)
