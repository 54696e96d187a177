# SPDX-License-Identifier: Apache-2.0
"""Run models on the same data, and say what comes of it."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from anybit.compilation import compile as compile_model
from anybit.errors import ModelError
from anybit.evaluation.labels import Apart, LabelSource, named_in_data
from anybit.evaluation.metrics import Function, Metric, metric_of
from anybit.evaluation.result import Evaluated, Evaluation
from anybit.inputs import Array, Tensor
from anybit.model import Model, load
from anybit.onnx import Source
from anybit.quantization.independence import independent
from anybit.quantization.items import Sample
from anybit.quantization.samples import Data, Samples
from anybit.quantization.verdict import Judge, compared
from anybit.text import listed

ENGINES: dict[str, Callable[[Source], Model]] = {
    "onnxruntime": load,
    "compiled": compile_model,
}
"""What computes: ONNX Runtime with our operators, or what `compile` makes of the model."""


def evaluate(
    *models: Source,
    data: Data,
    labels: LabelSource | None = None,
    metric: str | Function | None = None,
    engine: str = "onnxruntime",
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Measure models on data: how good they are, how near to the first one, how fast.

    The data are read again and again, a few rows at a time, as `quantize` reads them. Each sample
    goes through all models before the next one is read.

    Args:
        models: As for `anybit.load`. Outputs of all others are compared with those of the first, by
            name, or by place where the names are not the same.
        data: As for `quantize`.
        labels: The name of an array in the data that is no input; or the path of an .npy, or an
            array, with a label for each row.
        metric: "top1" or "top5": the share of rows whose label is among so many largest elements
            of the first output of shape [rows, classes]. "mse": the mean squared difference of the
            first output from labels. "module:function", or a function: called with the outputs for
            a sample, by name, and its labels or None, it gives a number or one for each row, and
            the mean of all of them counts. Without labels "mse", "sqnr" and "agreement" compare
            models. By default it is "top1", if there are labels.
        engine: "onnxruntime", or "compiled" for what `anybit.compile` makes of the models.
        progress: Called with the share that is done, from 0 to 1.

    Raises:
        ModelError: A model that cannot be run; models that take different inputs; data and labels
            that do not fit; a metric that is not known or fails.
    """
    wanted = metric_of(metric, labels is not None)
    _check(models, wanted)
    runners = [_Runner(_name(each, at), _loaded(each, engine)) for at, each in enumerate(models, 1)]
    inputs, name = _inputs(runners), named_in_data(labels)
    if any(each.name == name for each in inputs):
        raise ModelError(f"labels are called {name!r}, and so is an input: name another array")
    samples = Samples(data, inputs, name)
    samples.take_whole_unless(independent(runners[0].model.run))
    rows = 0
    for done, (sample, right) in enumerate(_labelled(samples, labels), 1):
        count = samples.rows_in(sample)
        rows += count
        reference = None
        for runner in runners:
            outputs = runner.run(sample, count)
            if reference is None:
                reference = outputs
            else:
                named = _named_like(reference, outputs, runner.name)
                runner.judge.add(compared(reference, named))
            if isinstance(wanted, Metric):
                runner.add(wanted(outputs, right))
        if progress is not None:
            progress(done / len(samples))
    found = [each.evaluated(wanted, source) for each, source in zip(runners, models, strict=True)]
    said = wanted.name if isinstance(wanted, Metric) else wanted
    return Evaluation(tuple(found), said, len(samples), rows)


@dataclass
class _Runner:
    """A model, and what is added up of it."""

    name: str
    model: Model
    judge: Judge = field(default_factory=Judge)
    _times: list[float] = field(default_factory=list)
    _worth: float = 0.0
    _values: int = 0

    def run(self, sample: Sample, rows: int) -> dict[str, Array]:
        start = time.perf_counter()
        try:
            outputs = self.model.run(sample)
        except ModelError as error:
            raise ModelError(f"{self.name}: {error}") from error
        self._times.append((time.perf_counter() - start) / rows)
        return outputs

    def add(self, values: Array) -> None:
        self._worth += float(values.sum())
        self._values += values.size

    def evaluated(self, wanted: Metric | str | None, source: Source) -> Evaluated:
        verdict = self.judge.verdict(seen=False)
        mean = self._worth / self._values if self._values else None
        found = Evaluated(
            name=self.name,
            metric=mean,
            sqnr=verdict.sqnr,
            agreement=verdict.agreement,
            mse=self.judge.mse,
            seconds=median(self._times),
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


def _loaded(source: Source, engine: str) -> Model:
    if engine not in ENGINES:
        raise ModelError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    return ENGINES[engine](source)


def _size(source: Source) -> int | None:
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(source)
    beside = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)


def _labelled(
    samples: Samples, labels: LabelSource | None
) -> Iterator[tuple[Sample, Array | None]]:
    if labels is None or named_in_data(labels) is not None:
        yield from samples.labelled()
        return
    apart = Apart(labels, len(samples))
    for sample in samples:
        yield sample, apart.next(samples.rows_in(sample))
    apart.check_used()


def _inputs(runners: Sequence[_Runner]) -> tuple[Tensor, ...]:
    """What all of them take: with the sizes that any of them fixes.

    Raises:
        ModelError: Other names, or sizes that are not the same.
    """
    first, *others = runners
    found = {each.name: each for each in first.model.inputs}
    for other in others:
        given = {each.name: each for each in other.model.inputs}
        both = [_both(found[name], given[name]) for name in found if name in given]
        if given.keys() != found.keys() or None in both:
            raise ModelError(
                f"{first.name} takes {listed(map(str, first.model.inputs))}, and {other.name} "
                f"{listed(map(str, other.model.inputs))}: models are compared on the same inputs"
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


def _named_like(
    reference: dict[str, Array], outputs: dict[str, Array], name: str
) -> dict[str, Array]:
    if outputs.keys() >= reference.keys():
        return outputs
    if len(outputs) == len(reference):
        return dict(zip(reference, outputs.values(), strict=True))
    raise ModelError(
        f"{name} gives {listed(outputs)}, the first model {listed(reference)}: outputs are "
        "compared by name"
    )
