# SPDX-License-Identifier: Apache-2.0
"""`anybit info`: what a model holds."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from anybit.cli._console import stdout
from anybit.cli._files import readable
from anybit.cli._report import Json, Report, check_report, deliver
from anybit.onnx.summary import Parameter, Quantizer, Summary, summarize
from anybit.text import shown

_LONGEST_NAME = 16


def info(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Show a model's quantizers, opsets, domains and sizes. The model is not run."""
    check_report(report)
    summary = summarize(model)
    deliver({"file": str(model), **dataclasses.asdict(summary)}, as_json, report)
    if as_json:
        return
    console = stdout()
    console.print(_header(model, summary))
    if not summary.quantizers:
        console.print("No quantizers.")
        return
    console.print(_quantizers(summary.quantizers))
    folded = sum(each.constant for each in summary.quantizers)
    console.print(
        f"Nodes that need the operator library when the model runs: "
        f"{len(summary.quantizers) - folded}; folded when it is loaded (*): {folded}."
    )


def _header(model: Path, summary: Summary) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    size = f"{readable(model.stat().st_size)}, constants {readable(summary.constant_bytes)}"
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
        table.add_row(name, escape(shown(text)))
    return table


def _quantizers(quantizers: tuple[Quantizer, ...]) -> Table:
    """One row per quantizer. What all of them have in common stands below the table."""
    rows = [_row(each) for each in quantizers]
    values = {
        heading: {row[heading] for row in rows} - {""}
        for heading in ("range", "zero-point", "rounding")
    }
    common = {heading: "".join(texts) for heading, texts in values.items() if len(texts) < 2}
    alike = [f"{name} {text}" for name, text in common.items() if text]
    caption = f"in common: {', '.join(alike)}" if alike else None
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    headings = [heading for heading in rows[0] if heading not in common]
    for heading in headings:
        # Where the terminal is narrow, names and words go over several lines, numbers do not.
        if heading in ("node", "tensor", "range"):
            table.add_column(heading, overflow="fold", min_width=8)
        else:
            table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*(escape(shown(row[heading])) for heading in headings))
    return table


def _row(quantizer: Quantizer) -> dict[str, str]:
    attributes, parameters = quantizer.attributes, quantizer.parameters
    words = []
    if "signed" in attributes:
        words.append("signed" if attributes["signed"] else "unsigned")
    if attributes.get("narrow"):
        words.append("narrow")
    scale = parameters.get("scale") or parameters.get("scales")
    zero = parameters.get("zeropt") or parameters.get("zps")
    return {
        "node": _short(quantizer.node),
        "operator": quantizer.operator,
        "quantizes": quantizer.role + "*" * quantizer.constant,
        "tensor": _short(quantizer.tensor),
        "bits": quantizer.bits,
        "scale": _values(scale),
        "per": scale.granularity.removeprefix("per-") if scale is not None else "",
        "range": " ".join(words),
        "zero-point": _values(zero),
        "rounding": str(attributes.get("rounding_mode", "")),
    }


def _short(name: str) -> str:
    """A long name without its middle: both ends tell names apart."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:6]}..{name[8 - _LONGEST_NAME :]}"


def _values(parameter: Parameter | None) -> str:
    if parameter is None or parameter.smallest is None or parameter.largest is None:
        return ""
    if parameter.smallest == parameter.largest:
        return f"{parameter.smallest:.4g}"
    return f"{parameter.smallest:.2g}..{parameter.largest:.2g}"
