# SPDX-License-Identifier: Apache-2.0
"""`evaluate`: run several models on the same data and summarize their scores."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from anybit.data.dataset import Dataset, DataSource
from anybit.data.labels import LabelSource, SeparateLabels, get_label_name
from anybit.data.row_independence import make_independence_test
from anybit.data.shards import Shard
from anybit.errors import ModelError, OptionError
from anybit.evaluation.metrics import Metric, MetricFunction, parse_metric
from anybit.evaluation.scoring import RowLabels, SampleScore, Scorer, make_shard_scorer
from anybit.evaluation.timing import measure_seconds_per_row
from anybit.inputs import TensorInfo
from anybit.metrics.output_quality import OutputQuality
from anybit.metrics.quality import QualityAccumulator
from anybit.onnx import Source
from anybit.parallel import open_executor
from anybit.text import join_names

# Shards have up to 16 samples. Few samples make smaller shards, so that all threads have work.
_SHARD_SIZE, _MIN_SHARDS = 16, 32


@dataclass(frozen=True)
class EvaluationRow:
    """The figures of one model. Comparisons with the first model are None for that model itself.

    Attributes:
        name: Its path, or "model 2".
        metric: The mean of the metric over the data; None without a metric.
        sqnr, correlation, agreement: As in the verdict of `quantize`, of the worst output or part.
            The agreement is that of class distributions and integers; without any, that of the
            logits of a classifier.
        outputs: The figures of each output or part.
        mse: The mean squared difference over the elements of all float outputs.
        seconds: The time per row: the minimum of several runs of the first sample on this machine,
            with `anybit.num_threads()` threads. Files without operators of this package run with
            the default options of ONNX Runtime, others as `anybit.load` runs them.
        bytes: The size of the file and of its `.data` file; None for models that are not a file.
    """

    name: str
    metric: float | None
    sqnr: float | None
    agreement: float | None
    mse: float | None
    seconds: float
    bytes: int | None
    correlation: float | None = None
    outputs: tuple[OutputQuality, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        models: The figures of each model, in order. The first model is the reference.
        metric: The name of the metric; None without one.
        samples, rows: The numbers of samples and of rows.
    """

    models: tuple[EvaluationRow, ...]
    metric: str | None
    samples: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        """Return all figures as a dict for `json.dump`."""
        return asdict(self)


def evaluate(
    *models: Source,
    data: DataSource,
    labels: LabelSource | None = None,
    metric: str | MetricFunction | None = None,
    engine: str = "onnxruntime",
    cluster: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Measure models on data: quality, similarity to the first model, time and size.

    Data are read as `quantize` reads them, a few rows at a time. Samples run in parallel, with one
    thread for a sample: the figures are the same for any number of threads or machines.

    Args:
        models: As for `anybit.load`. Outputs of the others are compared with those of the first, by
            name, or by position if the names differ.
        data: As for `quantize`.
        labels: The name of an array in the data that is not an input; or the path of an .npy, or an
            array, with one label per row.
        metric: "top1" or "top5": the share of rows whose label is among the one or five largest
            elements of the first output of shape [rows, classes]. "mse": the mean squared
            difference between the first output and the labels. "module:function", or a function:
            called with the outputs of a sample by name and its labels or None, one call at a time
            and in any order. It returns a number, or one per row; the metric is the mean of all.
            Without labels "mse", "sqnr" and "agreement" compare models. The default is "top1" if
            there are labels.
        engine: "onnxruntime", or "compiled" for the result of `anybit.compile`.
        cluster: The address of a Ray cluster that runs the models, as for `quantize`. By default
            threads of this process run them.
        progress: Called with the share that is done, from 0 to 1.

    Raises:
        ChildProcessError: Processes of the cluster ended again and again.
        ModelError: A model that cannot be run, models with other inputs, or a metric that fails.
        DataError: Data or labels that do not fit the models.
        OptionError: An unknown metric or engine, or a metric that needs labels without them.
    """
    parsed_metric = parse_metric(metric, labels is not None)
    _check_comparable(models, parsed_metric)
    names = [_name(source, index) for index, source in enumerate(models, 1)]
    scorer = Scorer(models, names, engine, metric, labels is not None)
    inputs, array_name = _unify_inputs(scorer), get_label_name(labels)
    if any(tensor.name == array_name for tensor in inputs):
        raise OptionError(
            f"labels are called {array_name!r}, and so is an input: name another array"
        )
    samples = Dataset(data, inputs, array_name)
    samples.verify_row_independence(make_independence_test(scorer.models[0].run))
    totals = [_Totals() for _ in models]
    done = rows = 0
    with open_executor(cluster) as executor:
        tasks = _label_shards(samples, labels, executor.is_local)
        for shard_scores in executor.map(make_shard_scorer, scorer, tasks):
            for sample_rows, scores in shard_scores:
                rows += sample_rows
                for model_totals, score in zip(totals, scores, strict=True):
                    model_totals.add(score)
            done += len(shard_scores)
            if progress is not None:
                progress(done / len(samples))
    first, (first_rows, _) = next(iter(samples)), next(iter(samples.iterate_labels()))
    results = [
        model_totals.result(
            name, parsed_metric, source, measure_seconds_per_row(source, model, first, first_rows)
        )
        for model_totals, name, source, model in zip(
            totals, names, models, scorer.models, strict=True
        )
    ]
    metric_name = parsed_metric.name if isinstance(parsed_metric, Metric) else parsed_metric
    return Evaluation(tuple(results), metric_name, len(samples), rows)


class _Totals:
    """The running totals of one model, added in the order of the samples."""

    def __init__(self) -> None:
        self._accumulator = QualityAccumulator()
        self._total, self._count = 0.0, 0

    def add(self, score: SampleScore) -> None:
        self._total += score.total
        self._count += score.count
        if score.comparison is not None:
            self._accumulator.add(score.comparison)

    def result(
        self, name: str, metric: Metric | str | None, source: Source, seconds: float
    ) -> EvaluationRow:
        verdict = self._accumulator.compute(seen=False)
        agreement = verdict.agreement
        result = EvaluationRow(
            name=name,
            metric=self._total / self._count if self._count else None,
            sqnr=verdict.sqnr,
            agreement=verdict.logits_agreement if agreement is None else agreement,
            correlation=verdict.correlation,
            outputs=verdict.outputs,
            mse=self._accumulator.mse,
            seconds=seconds,
            bytes=_measure_file(source),
        )
        return (
            replace(result, metric=getattr(result, metric)) if isinstance(metric, str) else result
        )


def _check_comparable(models: Sequence[Source], metric: Metric | str | None) -> None:
    if not models:
        raise ModelError("there is no model to evaluate")
    if len(models) == 1 and not isinstance(metric, Metric):
        reason = f"metric={metric!r} compares models" if metric else "one model has no reference"
        raise ModelError(f"{reason}: add a second model, or labels='NAME'")


def _name(source: Source, index: int) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else f"model {index}"


def _measure_file(source: Source) -> int | None:
    """Return the bytes of a file and of its external data; None for other sources."""
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    external = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (external.stat().st_size if external.exists() else 0)


def _label_shards(
    samples: Dataset, labels: LabelSource | None, is_local: bool
) -> Iterator[tuple[Shard, list[RowLabels]]]:
    """Yield the shards, with the rows and labels of their samples."""
    row_labels = _split_labels(samples, labels)
    size = max(1, min(len(samples) // _MIN_SHARDS, _SHARD_SIZE))
    for shard in samples.iterate_shards(is_local, size):
        yield shard, list(islice(row_labels, len(shard)))
    next(row_labels, None)  # checks that no labels are left


def _split_labels(samples: Dataset, labels: LabelSource | None) -> Iterator[RowLabels]:
    """Yield the rows and labels of each sample."""
    if labels is None or get_label_name(labels) is not None:
        yield from samples.iterate_labels()
        return
    separate = SeparateLabels(labels, len(samples))
    for rows, _ in samples.iterate_labels():
        yield rows, separate.next(rows)
    separate.check_used()


def _unify_inputs(scorer: Scorer) -> tuple[TensorInfo, ...]:
    """Return the inputs of all models, with the sizes that any of them fixes.

    Raises:
        ModelError: The models have different input names or sizes.
    """
    first, *others = scorer.models
    first_name, *other_names = scorer.names
    common = {tensor.name: tensor for tensor in first.inputs}
    for model, name in zip(others, other_names, strict=True):
        inputs = {tensor.name: tensor for tensor in model.inputs}
        merged = [
            _merge_sizes(tensor, inputs[tensor.name])
            for tensor in common.values()
            if tensor.name in inputs
        ]
        if inputs.keys() != common.keys() or None in merged:
            raise ModelError(
                f"{first_name} takes {join_names(map(str, first.inputs))}, and {name} "
                f"{join_names(map(str, model.inputs))}: models are compared on the same inputs"
            )
        common = {tensor.name: tensor for tensor in merged if tensor is not None}
    return tuple(common.values())


def _merge_sizes(a: TensorInfo, b: TensorInfo) -> TensorInfo | None:
    """Return a with the sizes that a or b fixes, or None if they disagree.

    Models may fix different numbers of rows: the result has their least common multiple.
    """
    if a.shape is None or b.shape is None:
        return replace(a, shape=b.shape if a.shape is None else a.shape)
    if len(a.shape) != len(b.shape):
        return None
    sizes: list[int | str | None] = []
    for axis, (size_a, size_b) in enumerate(zip(a.shape, b.shape, strict=True)):
        if not isinstance(size_a, int) or not isinstance(size_b, int):
            sizes.append(size_b if isinstance(size_b, int) else size_a)
        elif axis == 0 or size_a == size_b:
            sizes.append(math.lcm(size_a, size_b))
        else:
            return None
    return replace(a, shape=tuple(sizes))
