# SPDX-License-Identifier: Apache-2.0
"""A float model quantized by a plan, and by another one: what they have in common is found once."""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from anybit.quantization.calibration import Evidence, gather
from anybit.quantization.effort import Effort
from anybit.quantization.insertion import written
from anybit.quantization.placement import Layer, Source, sources_of
from anybit.quantization.plan import Plan
from anybit.quantization.products import product_of
from anybit.quantization.recording import Recorder
from anybit.quantization.samples import Samples
from anybit.quantization.schemes import Scheme
from anybit.quantization.search import Choice, Trial
from anybit.quantization.verdict import Judge, Verdict
from anybit.quantization.weights import Rounded, nearest
from anybit.workers import Here, Workers

Progress = Callable[[float], None]

# The share of the time for statistics; the rest is for choices.
_GATHERED = 0.3


@dataclass(frozen=True)
class Attempt:
    """A quantized model.

    Attributes:
        plan: What was asked for.
        choices: What became of the tensors that layers multiply.
        model: The model.
        verdict: What that did to the outputs; None without data.
    """

    plan: Plan
    choices: Mapping[Source, Choice]
    model: ir.Model
    verdict: Verdict | None


class Attempts:
    """Quantizes a model by plans, one after the other.

    Args:
        model: The float model, which is not changed.
        where: Its name, for messages.
        samples: The data; None for weights alone.
        floats: The model, ready to be run.
        workers: Who reads the data.
        cache: A folder for what is found in them; None for none.
        effort: How much is tried.
    """

    def __init__(
        self,
        model: ir.Model,
        where: str,
        samples: Samples | None,
        floats: Recorder | None,
        workers: Workers,
        cache: str | os.PathLike[str] | None,
        effort: Effort,
    ) -> None:
        self.model, self.where = model, where
        self._samples, self._floats = samples, floats
        self._workers, self._cache, self._effort = workers, cache, effort
        self._found: dict[Hashable, Choice] = {}

    def attempt(self, plan: Plan, progress: Progress) -> Attempt:
        """The model quantized by a plan, and judged."""
        choices = self.choices(plan, progress)
        model = written(self.model, _weights(plan.weights, choices), choices)
        verdict = None
        if self._samples is not None and self._floats is not None:
            quantized = Recorder(model, model.graph.outputs, self.where)
            judge = Judge()
            for number, sample in self._samples.held_back():
                judge.add(self._floats.run(sample), quantized.run(sample), number)
            verdict = judge.verdict(seen=len(self._samples) == 1)
        return Attempt(plan, choices, model, verdict)

    def choices(self, plan: Plan, progress: Progress) -> dict[Source, Choice]:
        """What becomes of the tensors that layers multiply."""
        keys = {source: _key(source, plan) for source in _looked_at(plan)}
        wanted = [source for source, key in keys.items() if key not in self._found]
        if wanted and self._samples is not None:
            self._find(plan, wanted, progress)
        return {source: self._found[key] for source, key in keys.items() if key in self._found}

    def _find(self, plan: Plan, wanted: Sequence[Source], progress: Progress) -> None:
        assert self._samples is not None, "asked before"
        evidence = gather(
            self.model,
            wanted,
            self._samples,
            self.where,
            self._workers,
            self._cache,
            self._effort.kept,
            lambda share: progress(_GATHERED * share),
        )
        found = Here().map(self._chooser, plan, evidence)
        for done, (source, choice) in enumerate(found, 1):
            self._found[_key(source, plan)] = choice
            progress(_GATHERED + (1 - _GATHERED) * done / len(wanted))

    def _chooser(self, plan: Plan) -> Callable[[Evidence], tuple[Source, Choice]]:
        def chosen(each: Evidence) -> tuple[Source, Choice]:
            trial = Trial(self.model, each.source, plan.weights)
            scheme = plan.activations.get(each.source)
            samples = each.to_choose, each.to_decide, each.to_round
            choice = trial.choice(scheme, each.statistics, *samples)
            return each.source, replace(choice, tried=trial.candidates)

        return chosen


def _key(source: Source, plan: Plan) -> Hashable:
    """All that the choice for a tensor depends on."""
    weights = tuple(plan.weights.get(layer) for layer, _ in source.readers)
    return source.value, tuple(source.readers), plan.activations.get(source), weights


def _looked_at(plan: Plan) -> tuple[Source, ...]:
    """The tensors to quantize, and those that stay whose readers have weights to round."""
    read = {layer for source in plan.activations for layer, _ in source.readers}
    others = [each for each in plan.weights if each not in read and product_of(each)]
    return *plan.activations, *sources_of(others)


def _weights(
    schemes: Mapping[Layer, Scheme], choices: Mapping[Source, Choice]
) -> dict[Layer, Sequence[Rounded]]:
    """The weights of all layers as they are stored, those that nothing was chosen for included."""
    chosen = {layer: each for choice in choices.values() for layer, each in choice.weights.items()}
    return {
        layer: chosen.get(layer) or [nearest(each, weight, of) for weight, each in layer.constants]
        for layer, of in schemes.items()
    }
