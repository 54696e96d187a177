# SPDX-License-Identifier: Apache-2.0
"""`anybit clean`: write a model in one spelling, without leftovers, with all shapes."""

from pathlib import Path
from typing import Annotated

import typer

from anybit.cli._console import stdout, working
from anybit.cli._files import check_folder, file_size
from anybit.errors import ModelError
from anybit.inputs import declared_inputs
from anybit.onnx import read
from anybit.onnx.checks.checking import check as check_model
from anybit.onnx.checks.targets import TARGETS
from anybit.onnx.cleaning import clean as clean_model
from anybit.text import counted, shown

_TARGETS = "|".join(name for name, each in TARGETS.items() if each.names)


def clean(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.onnx", help="The result.")],
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N|dynamic",
            help="The rows of inputs and outputs: a number, or dynamic for any.",
        ),
    ] = None,
    keep_quantizers: Annotated[
        bool, typer.Option("--keep-quantizers", help="Do not compute quantized weights.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            metavar=_TARGETS,
            help="Write what this compiler reads: quantizers kept, under its names, a fixed batch, "
            "no Gemm; for hls4ml channels last, and names of C++.",
        ),
    ] = None,
) -> None:
    """Normalize a model, fold constants, drop what is not used, infer shapes.

    The results are bit for bit the same, and cleaning twice gives the same file.
    """
    check_folder(output, "--output")
    rows = None if batch is None else _rows(batch)
    with working("Cleaning", model):
        before = sum(1 for _ in read(model).graph.all_nodes())
        size = file_size(model)
        cleaned = clean_model(
            model,
            batch=rows,
            keep_quantizers=keep_quantizers,
            target=target,
        )
        cleaned.save(output)
    after = sum(1 for _ in cleaned.model.graph.all_nodes())
    nodes = f"{counted(after, 'node')} (was {before})"
    _say(f"{output} written: {nodes}, {file_size(output)} (was {size})")
    for remark in cleaned.remarks:
        _say(f"note: {remark}")
    if target is not None:
        takes = ", ".join(map(str, declared_inputs(cleaned.model.graph, str(output))))
        left = len(check_model(cleaned, target))
        found = counted(left, "finding") if left else "nothing wrong"
        _say(f"It takes {takes}. anybit check {output} --target {target}: {found}.")


def _say(line: str) -> None:
    stdout().print(shown(line), markup=False, highlight=False, soft_wrap=True)


def _rows(text: str) -> int | str:
    if text == "dynamic":
        return text
    # Longer ones are not sizes, and Python refuses to read the longest.
    if not text.isdecimal() or len(text) > 18:
        raise ModelError(f'--batch must be an integer >= 1 or "dynamic", got {text!r}')
    return int(text)
