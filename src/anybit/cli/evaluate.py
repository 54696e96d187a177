# SPDX-License-Identifier: Apache-2.0
"""`anybit evaluate`: the quality of models on data, and their similarity to a reference."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import anybit
from anybit.cli._cluster import ClusterOption
from anybit.cli._columns import show
from anybit.cli._console import get_stdout, show_percentage
from anybit.cli._engines import EngineOption, RunBy
from anybit.cli._report import JsonOption, write_json_result
from anybit.text import escape_name, format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from anybit.evaluation import Evaluation, EvaluationRow
    from anybit.metrics.output_quality import OutputQuality

_SHARES = ("top1", "top5")
_OMITTED_FIRST = ("agreement", "correlation", "size", "per row")
_DEFAULT_COLUMNS = ("sqnr", "agreement")


def evaluate(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL", help="The .onnx files. The first one is the reference."),
    ],
    data: Annotated[
        Path,
        typer.Option(
            metavar="DATA",
            help="Inputs: FILE.npz (arrays by input name), FILE.npy or a folder.",
        ),
    ],
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.npy",
            help="Labels: an array in the data, or FILE.npy with a label per row.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="top1, top5, mse, sqnr, agreement or module:function (default: top1 with labels).",
        ),
    ] = None,
    engine: EngineOption = RunBy.ONNXRUNTIME,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure models on data: metric, similarity to the first, time, size.

    Samples are not batched. A metric module:function gets the outputs of a sample by name, and its
    labels or None.
    """
    if metric is not None and ":" in metric and "" not in sys.path:
        sys.path.append("")  # modules in the current folder, after all others
    with show_percentage("Evaluating") as advance:
        evaluation = anybit.evaluate(
            *models,
            data=data,
            labels=labels,
            metric=metric,
            engine=engine,
            cluster=cluster,
            progress=advance,
        )
    write_json_result(evaluation.to_json(), as_json, None)
    if not as_json:
        _show(evaluation)


def _show(evaluation: Evaluation) -> None:
    console = get_stdout()
    rows = [_make_row(model, evaluation.metric) for model in evaluation.models]
    has_agreement = any(model.agreement is not None for model in evaluation.models)
    for row in rows:
        del row["correlation" if has_agreement else "agreement"]
    if len(rows) == 1:
        rows = [{name: text for name, text in row.items() if text} for row in rows]
    show(rows, _OMITTED_FIRST, ("model",), tuple(rows[0])[1:], console)
    for model in evaluation.models:
        if len(model.outputs) > 1:
            worst = min(
                model.outputs, key=lambda part: math.inf if part.sqnr is None else part.sqnr
            )
            console.print(
                Text(
                    f"{model.name}: the worst of {len(model.outputs)} outputs and parts "
                    f"is {escape_name(worst.name)}{_format_sqnr_suffix(worst)}"
                )
            )
    counts = f"{format_count(evaluation.samples, 'sample')}, {format_count(evaluation.rows, 'row')}"
    console.print(f"{counts}; the others are compared with the first" if len(rows) > 1 else counts)


def _format_sqnr_suffix(part: OutputQuality) -> str:
    return "" if part.sqnr is None else f", {_format_decibels(part.sqnr)}"


def _make_row(model: EvaluationRow, metric: str | None) -> dict[str, str]:
    row = {"model": model.name}
    if metric is not None and metric not in _DEFAULT_COLUMNS:
        row[metric] = _number(model.metric, metric)
    return row | {
        "SQNR": "" if model.sqnr is None else _format_decibels(model.sqnr),
        "agreement": _format_percent(model.agreement),
        "correlation": "" if model.correlation is None else f"{model.correlation:.4f}",
        "per row": format_duration(model.seconds),
        "size": "" if model.bytes is None else format_bytes(model.bytes),
    }


def _number(value: float | None, metric: str) -> str:
    if value is None:
        return ""
    return _format_percent(value) if metric in _SHARES else f"{value:.6g}"


def _format_percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"


def _format_decibels(sqnr: float) -> str:
    return "the same" if sqnr == math.inf else f"{sqnr:.1f} dB"
