# SPDX-License-Identifier: Apache-2.0
"""`anybit info`: what a model holds."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anybit.onnx.summary import Parameter, Quantizer, Summary, summarize

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def info(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Show a model's quantizers, opsets, domains and sizes. The model is not run."""
    summary = summarize(model)
    if as_json:
        # NaN and infinities have no JSON; a scale that is one reads as null.
        text = json.dumps({"file": str(model), **_plain(dataclasses.asdict(summary))}, indent=2)
        print(text)
        return
    console = Console()
    console.print(_header(model, summary))
    if not summary.quantizers:
        console.print("No quantizers.")
        return
    console.print(_quantizers(summary.quantizers))
    needing = [each.node for each in summary.quantizers if not each.constant]
    folded = len(summary.quantizers) - len(needing)
    console.print(
        f"{len(needing)} of these nodes need the operator library when the model runs; "
        f"{folded} are constant and folded when it is loaded (marked *)."
    )


def _header(model: Path, summary: Summary) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    size = f"{_bytes(model.stat().st_size)}, constants {_bytes(summary.constant_bytes)}"
    opsets = ", ".join(f"{name or 'ai.onnx'} {version}" for name, version in summary.opsets.items())
    domains = ", ".join(f"{count} {name or 'ai.onnx'}" for name, count in summary.domains.items())
    rows = {
        "file": f"{model} ({size})",
        "made by": summary.producer or "unknown",
        "format": f"IR {summary.ir_version}; opsets {opsets or 'not declared'}",
        "nodes": f"{summary.nodes}: {domains}",
        "inputs": ", ".join(f"{name} {kind}" for name, kind in summary.inputs.items()),
        "outputs": ", ".join(f"{name} {kind}" for name, kind in summary.outputs.items()),
    }
    if summary.unknown_operators:
        rows["unknown"] = f"{', '.join(summary.unknown_operators)}: this model cannot be run"
    for name, text in rows.items():
        table.add_row(name, escape(text))
    return table


def _quantizers(quantizers: tuple[Quantizer, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("node", overflow="ellipsis", no_wrap=True, ratio=3)
    table.add_column("operator", no_wrap=True)
    table.add_column("quantizes", overflow="ellipsis", no_wrap=True, ratio=3)
    for heading in ("bits", "range", "scale", "zero", "rounding"):
        table.add_column(heading, no_wrap=heading != "scale")
    for each in quantizers:
        table.add_row(
            escape(each.node),
            each.operator,
            escape(f"{each.role} {each.tensor}") + ("*" if each.constant else ""),
            each.bits,
            _range(each),
            _parameter(each.parameters, "scale", "scales"),
            _parameter(each.parameters, "zeropt", "zps"),
            str(each.attributes.get("rounding_mode", "")),
        )
    return table


def _range(quantizer: Quantizer) -> str:
    attributes = quantizer.attributes
    words = [
        word
        for name, yes, no in (("signed", "signed", "unsigned"), ("narrow", "narrow", ""))
        if name in attributes
        for word in [yes if attributes[name] else no]
        if word
    ]
    return " ".join(words)


def _parameter(parameters: dict[str, Parameter], *names: str) -> str:
    for name in names:
        if name in parameters:
            each = parameters[name]
            if each.smallest is None or each.largest is None:
                return each.granularity
            values = f"{each.smallest:.4g}"
            if each.largest != each.smallest:
                values += f"..{each.largest:.4g}"
            return values if each.granularity == "per-tensor" else f"{each.granularity} {values}"
    return ""


def _bytes(count: int) -> str:
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return (
        None
        if isinstance(value, float) and (value != value or abs(value) == float("inf"))
        else value
    )
