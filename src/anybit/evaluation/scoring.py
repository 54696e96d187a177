# SPDX-License-Identifier: Apache-2.0
"""Scores of several models on the samples of one shard, on threads or on another machine."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from anybit.compiler.pipeline import compile as compile_model
from anybit.compiler.prepare.eligibility import explain_missing_quantizers
from anybit.data.readers import Sample
from anybit.data.shards import Shard
from anybit.errors import AnybitError, ModelError, OptionError
from anybit.evaluation.metrics import Metric, MetricFunction, parse_metric
from anybit.metrics.output_parts import OutputPart, find_output_parts
from anybit.metrics.quality import SampleComparison, compare_outputs
from anybit.model import Model, RuntimeEngine, load
from anybit.onnx import Source, read
from anybit.onnx.files.message import deserialize, serialize
from anybit.onnx.files.reader import read_copy
from anybit.onnx.graph.constants import Array
from anybit.onnx.passes import InferShapes
from anybit.onnx.preparation import apply_passes, inline_functions
from anybit.text import join_names

ENGINES: dict[str, Callable[[Source], Model]] = {
    "onnxruntime": load,
    "compiled": compile_model,
}
"""Engines by name: ONNX Runtime with the operators of this package, or the compiler."""

RowLabels = tuple[int, Array | None]
"""The number of rows of a sample, and its labels, if there are any."""


@dataclass(frozen=True)
class SampleScore:
    """The result of one model on one sample.

    Attributes:
        comparison: With the outputs of the first model; None for the first model.
        total, count: The sum and the number of the values of the metric.
    """

    comparison: SampleComparison | None
    total: float = 0.0
    count: int = 0


class Scorer:
    """Several models, ready to run one sample after another, and a metric.

    Sessions use one thread: sums then have the same last bits on any number of cores. `score` may
    be called from several threads. A pickle holds copies of the models, not their paths.

    Args:
        sources, names: The models, and their names in messages.
        engine: A name in `ENGINES`. Float models always run in ONNX Runtime.
        metric: As for `evaluate`.
        has_labels: Whether samples have labels.

    Raises:
        ModelError: A model that cannot be run, or an unknown metric.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        names: Sequence[str],
        engine: str,
        metric: str | MetricFunction | None,
        has_labels: bool,
    ) -> None:
        if engine not in ENGINES:
            raise OptionError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
        self.names = names
        self._sources, self._spec = sources, (names, engine, metric, has_labels)
        self._metric = parse_metric(metric, has_labels)
        self._metric_lock = Lock()  # functions of users need not be safe to call from two threads
        self.models = [_load(source, engine) for source in sources]
        self._parts = _find_output_parts(sources)

    def __reduce__(self) -> tuple[Any, ...]:
        models = [serialize(read_copy(source)) for source in self._sources]
        return _restore_scorer, (models, *self._spec)

    def score(self, sample: Sample, labels: Array | None) -> list[SampleScore]:
        """Return the score of each model on a sample.

        Raises:
            ModelError: A model cannot be run, or the metric fails.
        """
        scores = []
        reference: dict[str, Array] | None = None
        for name, model in zip(self.names, self.models, strict=True):
            try:
                outputs = model.run(sample)
            except AnybitError as error:
                raise type(error)(f"{name}: {error}") from error
            comparison = None
            if reference is None:
                reference = outputs
            else:
                matched = _match_outputs(reference, outputs, name)
                comparison = compare_outputs(reference, matched, self._parts)
            scores.append(SampleScore(comparison, *self._measure(outputs, labels)))
        return scores

    def _measure(self, outputs: dict[str, Array], labels: Array | None) -> tuple[float, int]:
        if not isinstance(self._metric, Metric):
            return 0.0, 0
        with self._metric_lock:
            values = self._metric(outputs, labels)
        return float(values.sum()), values.size


def make_shard_scorer(
    scorer: Scorer,
) -> Callable[[tuple[Shard, Sequence[RowLabels]]], list[tuple[int, list[SampleScore]]]]:
    """Return a function that scores a shard: the rows of each sample, and the score of each model.

    It takes the shard, and the rows and labels of its samples.
    """

    def score_shard(
        task: tuple[Shard, Sequence[RowLabels]],
    ) -> list[tuple[int, list[SampleScore]]]:
        shard, labels_by_sample = task
        samples = (sample for _, sample in shard.read(lambda _: True))
        return [
            (rows, scorer.score(sample, labels))
            for sample, (rows, labels) in zip(samples, labels_by_sample, strict=True)
        ]

    return score_shard


def _restore_scorer(models: Sequence[tuple[bytes, dict[str, Array]]], *spec: Any) -> Scorer:
    return Scorer([deserialize(*model) for model in models], *spec)


def _load(source: Source, engine: str) -> Model:
    """Load a model whose sessions use one thread."""
    where = str(source) if isinstance(source, str | os.PathLike) else "the model"
    if engine != "compiled" or not _has_quantizers(source):
        return Model(RuntimeEngine(read(source), where, threads=1))
    compiled = compile_model(source)
    if isinstance(compiled.engine, RuntimeEngine):
        compiled.engine = RuntimeEngine(compiled.model, where, threads=1)
    return compiled


def _has_quantizers(source: Source) -> bool:
    """Return whether there is something to compile: a float model is a common reference."""
    model = read_copy(source)
    inline_functions(model, source)
    return not explain_missing_quantizers(model, "")


def _find_output_parts(sources: Sequence[Source]) -> dict[str, tuple[OutputPart, ...]]:
    """Return the parts of the outputs of the first model, if others are compared with it."""
    if len(sources) < 2:
        return {}
    model = read_copy(sources[0])
    inline_functions(model, sources[0])
    apply_passes(model, sources[0], InferShapes())
    return find_output_parts(model)


def _match_outputs(
    reference: dict[str, Array], outputs: dict[str, Array], name: str
) -> dict[str, Array]:
    """Return outputs under the names of the reference: by name, else by position."""
    if outputs.keys() >= reference.keys():
        return outputs
    if len(outputs) == len(reference):
        return dict(zip(reference, outputs.values(), strict=True))
    raise ModelError(
        f"{name} has the outputs {join_names(outputs)}, "
        f"the first model {join_names(reference)}: outputs "
        "are compared by name, or by position where there are equally many"
    )
