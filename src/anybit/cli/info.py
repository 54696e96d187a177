# SPDX-License-Identifier: Apache-2.0
"""`anybit info`: what a model holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import anybit
from anybit.cli._columns import NARROWEST_NAME, fits, joined, spared
from anybit.cli._console import stdout
from anybit.cli._files import file_size
from anybit.cli._report import Json, Report, check_report, deliver
from anybit.text import counted, shown, sized

if TYPE_CHECKING:
    from anybit.onnx.summary import ParameterSummary, QuantizerSummary, Summary

_MOST_WEIGHTS = 12
_NAMES = ("node", "tensor")
# What is left out first where a terminal has no room for all of it.
_SPARED = ("codes", "per", "operator", "shape")


def info(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Show a model's quantizers, operators, weights, opsets and sizes.

    The model is not run.
    """
    check_report(report)
    summary = anybit.info(model)
    if as_json or report is not None:
        deliver({"file": str(model), **dataclasses.asdict(summary)}, as_json, report)
    if as_json:
        return
    console = stdout()
    console.print(_header(model, summary))
    if not summary.quantizers:
        console.print(_without_quantizers(summary), markup=False, soft_wrap=True)
        return
    console.print(_quantizers(summary.quantizers, console))
    console.print(_what_runs(summary.quantizers))


def _header(model: Path, summary: Summary) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    opsets = ", ".join(f"{name or 'ai.onnx'} {version}" for name, version in summary.opsets.items())
    domains = ", ".join(f"{count} {name or 'ai.onnx'}" for name, count in summary.domains.items())
    weights = f"{summary.parameters:,} in {counted(len(summary.weights), 'tensor')}"
    operators = (f"{count} {_short(name)}" for name, count in summary.operators.items())
    rows = {
        "file": f"{model} ({file_size(model)}, constants {sized(summary.constant_bytes)})",
        "made by": summary.producer or "unknown",
        "format": f"IR {summary.ir_version}; opsets {opsets or 'not declared'}",
        "nodes": f"{summary.nodes}: {domains}",
        "operators": ", ".join(operators),
        "parameters": weights,
        "inputs": ", ".join(f"{name}: {kind}" for name, kind in summary.inputs.items()),
        "outputs": ", ".join(f"{name}: {kind}" for name, kind in summary.outputs.items()),
    }
    if summary.unknown_operators:
        rows["unknown"] = f"{', '.join(summary.unknown_operators)}: this model cannot be run"
    for name, content in rows.items():
        table.add_row(name, escape(shown(content)))
    return table


def _short(operator: str) -> str:
    """Without the domain of ours."""
    from anybit.onnx.operators.registry import versions_of

    domain, _, name = operator.rpartition("::")
    return name if versions_of(domain, name) else operator


def _without_quantizers(summary: Summary) -> str:
    from anybit.onnx.operators.multi_threshold import SPELLINGS
    from anybit.onnx.qdq.qlinear import is_integer_name

    weights = [f"{name}: {kind}" for name, kind in summary.weights.items()]
    lines = [f"  {shown(each)}" for each in weights[:_MOST_WEIGHTS]]
    if len(weights) > _MOST_WEIGHTS:
        lines.append(f"  and {len(weights) - _MOST_WEIGHTS} more (--json lists all)")
    on_codes = [
        f"{count} {name}"
        for name, count in summary.operators.items()
        if is_integer_name(*name.rpartition("::")[::2])
    ]
    first = "No quantizers."
    thresholds = sum(
        count
        for name, count in summary.operators.items()
        if tuple(name.rpartition("::")[::2]) in SPELLINGS
    )
    if thresholds:
        first = (
            f"No quantizers, but {counted(thresholds, 'MultiThreshold')}, which quantize as well."
        )
    if on_codes:
        first = (
            f"No quantizers, but operators on codes ({shown(', '.join(on_codes))}); "
            "anybit convert --to qonnx replaces those that it can."
        )
    return "\n".join([first + " The weights:" * bool(weights), *lines])


def _what_runs(quantizers: tuple[QuantizerSummary, ...]) -> str:
    folded = sum(each.constant for each in quantizers)
    needed = sum(not each.constant and bool(each.version) for each in quantizers)
    return (
        f"Nodes that need the operator library when the model runs: {needed}; "
        f"folded when it is loaded (*): {folded}."
    )


def _quantizers(quantizers: tuple[QuantizerSummary, ...], console: Console) -> Table:
    """One row per quantizer, with whole names where there is room for them."""
    rows = [_row(each) for each in quantizers]
    if fits(rows, _NAMES, _table, console):
        return _table(rows, whole=True)
    notes = []
    for heading in _NAMES:
        beginning = _beginning(row[heading] for row in rows)
        if beginning:
            notes.append(f"each {heading} begins with {beginning}")
            rows = [row | {heading: row[heading].removeprefix(beginning)} for row in rows]
    rows = spared(rows, _SPARED, _NAMES, _table, console)
    missing = [name for name in _SPARED if name not in rows[0]]
    if missing:
        notes.append(f"no room here for {', '.join(missing)}; --json shows all")
    return _table(rows, notes, whole=fits(rows, _NAMES, _table, console))


def _table(rows: list[dict[str, str]], notes: Iterable[str] = (), *, whole: bool = False) -> Table:
    """What all rows have in common stands below the table. `whole`: there is room for all of it."""
    values = {
        heading: {row[heading] for row in rows} - {""}
        for heading in ("codes", "zero-point", "rounding")
        if heading in rows[0]
    }
    common = {heading: "".join(texts) for heading, texts in values.items() if len(texts) < 2}
    alike = [f"{name} {content}" for name, content in common.items() if content]
    captions = [*([f"in common: {', '.join(alike)}"] if alike else []), *notes]
    caption = "\n".join(escape(shown(each)) for each in captions) or None
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    headings = [heading for heading in rows[0] if heading not in common]
    for heading in headings:
        # Where the terminal is narrow, names go over several lines, numbers and words do not.
        if heading in _NAMES:
            table.add_column(heading, overflow="fold", min_width=NARROWEST_NAME)
        else:
            table.add_column(heading, no_wrap=True)
    cells = ([Text(shown(row[heading])) for heading in headings] for row in rows)
    for each in [joined(cells)] if whole else cells:
        table.add_row(*each)
    return table


def _row(quantizer: QuantizerSummary) -> dict[str, str]:
    scale = quantizer.scale
    return {
        "node": quantizer.node,
        "operator": f"{quantizer.operator} {quantizer.type}".strip(),
        "quantizes": quantizer.role + "*" * quantizer.constant,
        "tensor": quantizer.tensor,
        "shape": quantizer.shape,
        "bits": quantizer.bits,
        "scale": _values(scale),
        "per": scale.granularity.removeprefix("per-") if scale is not None else "",
        "codes": quantizer.codes,
        "zero-point": _values(quantizer.zero_point),
        "rounding": str(quantizer.attributes.get("rounding_mode", "")),
    }


def _beginning(names: Iterable[str]) -> str:
    """With what all of several names begin, up to a separator and never all of a name."""
    names = sorted(names)
    pairs = zip(names[0], names[-1], strict=False) if len(names) > 1 else ()
    common = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    while common and (common[-1].isalnum() or common in names):
        common = common[:-1]
    return common


def _values(parameter: ParameterSummary | None) -> str:
    if parameter is None or parameter.smallest is None or parameter.largest is None:
        return ""
    if parameter.smallest == parameter.largest:
        return f"{parameter.smallest:.4g}"
    return f"{parameter.smallest:.2g}..{parameter.largest:.2g}"
