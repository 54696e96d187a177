# SPDX-License-Identifier: Apache-2.0
"""Models on the samples of one shard after the other, by whoever does it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from anybit.compilation import Compiled
from anybit.compilation import compile as compile_model
from anybit.errors import AnybitError, ModelError
from anybit.evaluation.metrics import Function, Metric, metric_of
from anybit.inputs import Array
from anybit.lowbit.quantizers import why_unquantized
from anybit.model import Model, RuntimeEngine, load
from anybit.onnx import Source, read
from anybit.onnx.files.message import restored, serialize
from anybit.onnx.files.reader import read_copy
from anybit.onnx.passes import InferShapes
from anybit.onnx.preparation import apply, inline
from anybit.quantization.items import Sample
from anybit.quantization.parts import Part, parts_of
from anybit.quantization.shards import Shard
from anybit.quantization.verdict import Comparison, compared
from anybit.text import listed

ENGINES: dict[str, Callable[[Source], Model]] = {
    "onnxruntime": load,
    "compiled": compile_model,
}
"""What computes: ONNX Runtime with our operators, or what `compile` makes of the model."""

Share = tuple[int, Array | None]


@dataclass(frozen=True)
class Scored:
    """What a model did with a sample.

    Attributes:
        compared: With the first model; None for that one.
        worth, values: The sum of what the metric gave, and how many numbers that were.
    """

    compared: Comparison | None
    worth: float = 0.0
    values: int = 0


@dataclass(frozen=True)
class Contest:
    """Models, and what is asked of them. Copies of the models are sent, not their paths.

    Attributes:
        sources, names: The models.
        engine: What computes.
        metric: As for `evaluate`.
        labelled: Whether there are labels.
        alone: Whether each run takes one thread.
        models: The models, ready to run.
        wanted: The metric, or the name of what compares models.
        parts: The parts of the outputs of the first model.

    Raises:
        ModelError: A model that cannot be run, or a metric that is not known.
    """

    sources: Sequence[Source]
    names: Sequence[str]
    engine: str
    metric: str | Function | None
    labelled: bool
    alone: bool
    models: list[Model] = field(init=False)
    wanted: Metric | str | None = field(init=False)
    parts: Mapping[str, Sequence[Part]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wanted", metric_of(self.metric, self.labelled))
        loaded = [_loaded(each, self.engine, self.alone) for each in self.sources]
        object.__setattr__(self, "models", loaded)
        object.__setattr__(self, "parts", _parts(self.sources))

    def __reduce__(self) -> tuple[Any, ...]:
        models = [serialize(read_copy(each)) for each in self.sources]
        rest = self.names, self.engine, self.metric, self.labelled, self.alone
        return _received, (models, *rest)

    def scored(self, sample: Sample, labels: Array | None) -> list[Scored]:
        """What each model does with a sample.

        Raises:
            ModelError: A model cannot be run, or the metric fails.
        """
        found = []
        reference: dict[str, Array] | None = None
        for name, model in zip(self.names, self.models, strict=True):
            try:
                outputs = model.run(sample)
            except AnybitError as error:
                raise type(error)(f"{name}: {error}") from error
            nearness = None
            if reference is None:
                reference = outputs
            else:
                others = _named_like(reference, outputs, name)
                nearness = compared(reference, others, self.parts)
            values = self.wanted(outputs, labels) if isinstance(self.wanted, Metric) else None
            worth = (0.0, 0) if values is None else (float(values.sum()), values.size)
            found.append(Scored(nearness, *worth))
        return found


def scorer(
    contest: Contest,
) -> Callable[[tuple[Shard, Sequence[Share]]], list[tuple[int, list[Scored]]]]:
    """Who runs all models for the samples of a shard, given the rows and labels of each, and gives
    the rows back."""

    def found(piece: tuple[Shard, Sequence[Share]]) -> list[tuple[int, list[Scored]]]:
        shard, shares = piece
        samples = (sample for _, sample in shard.read(lambda _: True))
        return [
            (share[0], contest.scored(each, share[1]))
            for each, share in zip(samples, shares, strict=True)
        ]

    return found


def _received(models: Sequence[tuple[bytes, dict[str, Array]]], *rest: Any) -> Contest:
    return Contest([restored(*each) for each in models], *rest)


def _loaded(source: Source, engine: str, alone: bool) -> Model:
    if engine not in ENGINES:
        raise ModelError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    model = ENGINES[engine](source) if _has_quantizers(source) else load(source)
    if alone and isinstance(model.engine, RuntimeEngine):
        where = str(source) if isinstance(source, str | os.PathLike) else "the model"
        graph: ir.Model = model.model if isinstance(model, Compiled) else read(source)
        model.engine = RuntimeEngine(graph, where, threads=1)
    return model


def _has_quantizers(source: Source) -> bool:
    """Return whether there is something to compile: a float model is a common reference."""
    model = read_copy(source)
    inline(model, source)
    return not why_unquantized(model, "")


def _parts(sources: Sequence[Source]) -> dict[str, tuple[Part, ...]]:
    """Return the parts of the outputs of the first model, where others are compared with it."""
    if len(sources) < 2:
        return {}
    model = read_copy(sources[0])
    inline(model, sources[0])
    apply(model, sources[0], InferShapes())
    return parts_of(model)


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
