# SPDX-License-Identifier: Apache-2.0
"""Run models on the same data, and say what comes of it."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from anybit.errors import ModelError
from anybit.evaluation.contest import Contest, Scored, Share, scorer
from anybit.evaluation.labels import Apart, LabelSource, named_in_data
from anybit.evaluation.metrics import Function, Metric, metric_of
from anybit.evaluation.result import Evaluated, Evaluation
from anybit.evaluation.timing import seconds_per_row
from anybit.inputs import Tensor
from anybit.onnx import Source
from anybit.quantization.independence import independent
from anybit.quantization.samples import Data, Samples
from anybit.quantization.shards import Shard
from anybit.quantization.verdict import Judge
from anybit.text import listed
from anybit.workers import chosen


def evaluate(
    *models: Source,
    data: Data,
    labels: LabelSource | None = None,
    metric: str | Function | None = None,
    engine: str = "onnxruntime",
    workers: int | None = None,
    cluster: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Measure models on data: how good they are, how near to the first one, how fast.

    The data are read again and again, a few rows at a time, as `quantize` reads them. Each sample
    goes through all models before the next one is read.

    Args:
        models: As for `anybit.load`. Outputs of all others are compared with those of the first, by
            name, or by place where the names are not the same.
        data: As for `quantize`.
        labels: The name of an array in the data that is not an input; or the path of an .npy, or an
            array, with a label for each row.
        metric: "top1" or "top5": the share of rows whose label is among so many largest elements
            of the first output of shape [rows, classes]. "mse": the mean squared difference of the
            first output from labels. "module:function", or a function: called with the outputs for
            a sample, by name, and its labels or None, it gives a number or one for each row, and
            the mean of all of them counts. Without labels "mse", "sqnr" and "agreement" compare
            models. By default it is "top1", if there are labels.
        engine: "onnxruntime", or "compiled" for what `anybit.compile` makes of the models.
        workers: So many processes do it, each on one core; figures are the same for any number of
            them. Without it this one does, one sample after the other, on all cores.
        cluster: The address of a Ray cluster that does it instead, as for `quantize`.
        progress: Called with the share that is done, from 0 to 1.

    Raises:
        ChildProcessError: Workers ended again and again before they were done.
        ModelError: A model that cannot be run; models that take different inputs; data and labels
            that do not fit; a metric that is not known or fails.
    """
    wanted = metric_of(metric, labels is not None)
    _check(models, wanted)
    names = [_name(each, at) for at, each in enumerate(models, 1)]
    alone = workers is not None or cluster is not None
    contest = Contest(models, names, engine, metric, labels is not None, alone)
    inputs, name = _inputs(contest), named_in_data(labels)
    if any(each.name == name for each in inputs):
        raise ModelError(f"labels are called {name!r}, and so is an input: name another array")
    samples = Samples(data, inputs, name)
    samples.take_whole_unless(independent(contest.models[0].run))
    scores = [_Score() for _ in models]
    done = rows = 0
    with chosen(workers if alone else 1, cluster) as hands:
        for found in hands.map(scorer, contest, _pieces(samples, labels, hands.near)):
            for count, sample in found:
                rows += count
                for score, each in zip(scores, sample, strict=True):
                    score.add(each)
            done += len(found)
            if progress is not None:
                progress(done / len(samples))
    first, (count, _) = next(iter(samples)), next(iter(samples.shares()))
    result = [
        each.evaluated(title, wanted, source, seconds_per_row(source, model, first, count))
        for each, title, source, model in zip(scores, names, models, contest.models, strict=True)
    ]
    said = wanted.name if isinstance(wanted, Metric) else wanted
    return Evaluation(tuple(result), said, len(samples), rows)


@dataclass
class _Score:
    """What is added up of a model."""

    _judge: Judge = field(default_factory=Judge)
    _worth: float = 0.0
    _values: int = 0

    def add(self, sample: Scored) -> None:
        self._worth += sample.worth
        self._values += sample.values
        if sample.compared is not None:
            self._judge.add(sample.compared)

    def evaluated(
        self, name: str, wanted: Metric | str | None, source: Source, seconds: float
    ) -> Evaluated:
        verdict = self._judge.verdict(seen=False)
        found = Evaluated(
            name=name,
            metric=self._worth / self._values if self._values else None,
            sqnr=verdict.sqnr,
            agreement=(
                verdict.logits_agreement if verdict.agreement is None else verdict.agreement
            ),
            correlation=verdict.correlation,
            outputs=verdict.outputs,
            mse=self._judge.mse,
            seconds=seconds,
            bytes=_size(source),
        )
        return replace(found, metric=getattr(found, wanted)) if isinstance(wanted, str) else found


def _check(models: Sequence[Source], wanted: Metric | str | None) -> None:
    if not models:
        raise ModelError("there is no model to evaluate")
    if len(models) == 1 and not isinstance(wanted, Metric):
        what = f"metric {wanted} compares models" if wanted else "one model is like itself"
        raise ModelError(f"{what}: give another model, or labels")


def _name(source: Source, index: int) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else f"model {index}"


def _size(source: Source) -> int | None:
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    beside = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)


def _pieces(
    samples: Samples, labels: LabelSource | None, near: bool
) -> Iterator[tuple[Shard, list[Share]]]:
    """The shards, with the rows and labels of their samples."""
    shares = _shares(samples, labels)
    for shard in samples.shards(near):
        yield shard, list(islice(shares, len(shard)))
    next(shares, None)  # there may be labels left


def _shares(samples: Samples, labels: LabelSource | None) -> Iterator[Share]:
    """The rows and labels of each sample."""
    if labels is None or named_in_data(labels) is not None:
        yield from samples.shares()
        return
    apart = Apart(labels, len(samples))
    for rows, _ in samples.shares():
        yield rows, apart.next(rows)
    apart.check_used()


def _inputs(contest: Contest) -> tuple[Tensor, ...]:
    """What all of them take: with the sizes that any of them fixes.

    Raises:
        ModelError: Other names, or sizes that are not the same.
    """
    first, *others = contest.models
    name, *names = contest.names
    found = {each.name: each for each in first.inputs}
    for other, title in zip(others, names, strict=True):
        given = {each.name: each for each in other.inputs}
        both = [_both(found[each], given[each]) for each in found if each in given]
        if given.keys() != found.keys() or None in both:
            raise ModelError(
                f"{name} takes {listed(map(str, first.inputs))}, and {title} "
                f"{listed(map(str, other.inputs))}: models are compared on the same inputs"
            )
        found = {each.name: each for each in both if each is not None}
    return tuple(found.values())


def _both(a: Tensor, b: Tensor) -> Tensor | None:
    """The first with the sizes of both, if they agree. Runs may differ in rows."""
    if a.shape is None or b.shape is None:
        return replace(a, shape=b.shape if a.shape is None else a.shape)
    if len(a.shape) != len(b.shape):
        return None
    sizes: list[int | str | None] = []
    for axis, (one, other) in enumerate(zip(a.shape, b.shape, strict=True)):
        if not isinstance(one, int) or not isinstance(other, int):
            sizes.append(other if isinstance(other, int) else one)
        elif axis == 0 or one == other:
            sizes.append(math.lcm(one, other))
        else:
            return None
    return replace(a, shape=tuple(sizes))
