# SPDX-License-Identifier: Apache-2.0
"""A float model quantized by a plan, and by another one: what they have in common is found once."""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import onnx_ir as ir

from anybit.parallel import Executor
from anybit.quantization.calibration import Evidence, divided_samples, gather, surveyed
from anybit.quantization.choices import Choice
from anybit.quantization.common import Common, Shared, linked
from anybit.quantization.copies import on_copies
from anybit.quantization.effort import Effort
from anybit.quantization.insertion import written
from anybit.quantization.judging import Few, Outputs, few_of, judged
from anybit.quantization.parts import Part
from anybit.quantization.placement import Layer, Source, sources_of
from anybit.quantization.plan import Plan
from anybit.quantization.products import product_of
from anybit.quantization.recording import Recording, recording
from anybit.quantization.samples import Samples
from anybit.quantization.schemes import Scheme
from anybit.quantization.search import Trial
from anybit.quantization.simpler import best, outdone
from anybit.quantization.together import Parts, Together
from anybit.quantization.verdict import Verdict
from anybit.quantization.weights import Rounded, nearest

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
        remarks: What became of choices that did harm.
        few: What it does to the outputs for few samples that were not held back; None where these
            were not asked, since there was nothing that they might decide.
    """

    plan: Plan
    choices: Mapping[Source, Choice]
    model: ir.Model
    verdict: Verdict | None
    remarks: tuple[str, ...] = ()
    few: Verdict | None = None


@dataclass(frozen=True)
class _Written:
    """A quantized model, and what is to be sent for its outputs."""

    model: ir.Model
    outputs: Recording


class Attempts:
    """Quantizes a model by plans, one after the other.

    Args:
        model: The float model, which is not changed.
        where: Its name, for messages.
        samples: The data; None for weights alone.
        floats: The outputs of the model; None without data.
        executor: What runs tasks on shards, tensors and layers.
        cache: A folder for what is found in them; None for none.
        effort: How much is tried.
    """

    def __init__(
        self,
        model: ir.Model,
        where: str,
        samples: Samples | None,
        floats: Outputs | None,
        executor: Executor,
        cache: str | os.PathLike[str] | None,
        effort: Effort,
    ) -> None:
        self.model, self.where, self.executor = model, where, executor
        self._samples, self._floats, self._cache, self._effort = samples, floats, cache, effort
        self._found: dict[Hashable, Choice] = {}

    def attempt(self, plan: Plan, progress: Progress) -> Attempt:
        """The model quantized by a plan, and judged."""
        chosen: Mapping[Source, Choice] = self.choices(plan, progress)
        if self._samples is None:
            return self.judged(plan, chosen)
        tried: list[tuple[Mapping[Source, Choice], _Written, Verdict]] = []

        def by_few(some: Mapping[Source, Choice]) -> Verdict:
            these = self._written(plan, some)
            tried.append((some, these, self._few.verdict(these.outputs)))
            return tried[-1][2]

        choices, said = best(chosen, by_few)
        kept = next((each for each in tried if each[0] is choices), None)
        of_simpler = [verdict for _, _, verdict in tried[1:]]
        tried.clear()
        if kept is None:
            return self.judged(plan, choices)
        _, these, few = kept
        found = replace(self._judged(plan, choices, these), few=few)
        instead, better = self._outdone(plan, chosen, found, of_simpler)
        said = better or said
        return replace(instead or found, remarks=(said,) if said else ())

    def _outdone(
        self, plan: Plan, choices: Mapping[Source, Choice], kept: Attempt, few: Sequence[Verdict]
    ) -> tuple[Attempt | None, str | None]:
        """What does far better on the samples that were held back, of simpler choices of which a
        few samples said that."""
        tried: list[Attempt] = []

        def by_held(some: Mapping[Source, Choice]) -> Verdict:
            tried.append(replace(self.judged(plan, some), few=few[len(tried)]))
            assert tried[-1].verdict is not None, "there are samples"
            return tried[-1].verdict

        assert kept.few is not None, "asked before"
        assert kept.verdict is not None, "there are samples"
        found, said = outdone(choices, kept.few, kept.verdict, by_held)
        return next((each for each in tried if each.choices is found), None), said

    @property
    def parts(self) -> Mapping[str, Sequence[Part]]:
        """Return the parts of the outputs, each of which is judged by itself."""
        return self._floats.parts if self._floats else {}

    def written(self, plan: Plan, choices: Mapping[Source, Choice]) -> ir.Model:
        """The model with what was chosen."""
        return written(self.model, _weights(plan.weights, choices), choices)

    def judged(self, plan: Plan, choices: Mapping[Source, Choice]) -> Attempt:
        """It, and what became of its outputs."""
        if self._samples is None:
            return Attempt(plan, choices, self.written(plan, choices), None)
        return self._judged(plan, choices, self._written(plan, choices))

    def _judged(self, plan: Plan, choices: Mapping[Source, Choice], found: "_Written") -> Attempt:
        assert self._samples is not None, "asked before"
        assert self._floats is not None, "there are samples"
        verdict = judged(self._floats, found.outputs, self._samples, self.executor)
        return Attempt(plan, choices, found.model, verdict)

    def _written(self, plan: Plan, choices: Mapping[Source, Choice]) -> "_Written":
        model = self.written(plan, choices)
        return _Written(model, recording(model, model.graph.outputs, self.where))

    @cached_property
    def _few(self) -> Few:
        """The samples that show whether fewer choices do better, first those set apart."""
        samples = self._samples
        assert samples is not None, "asked before"
        assert self._floats is not None, "there are samples"
        known, unknown = divided_samples(samples)
        return few_of(self._floats, samples, unknown, known[::-1], self.executor)

    def choices(self, plan: Plan, progress: Progress) -> dict[Source, Choice]:
        """What becomes of the tensors that layers multiply."""
        keys = _keys(plan)
        wanted = [source for source, key in keys.items() if key not in self._found]
        if wanted and self._samples is not None:
            for source, choice in self._find(plan, wanted, progress).items():
                self._found[keys[source]] = choice
        return {source: self._found[key] for source, key in keys.items() if key in self._found}

    def _find(
        self, plan: Plan, wanted: Sequence[Source], progress: Progress
    ) -> dict[Source, Choice]:
        assert self._samples is not None, "asked before"
        seen = surveyed(
            self.model,
            wanted,
            self._samples,
            self.where,
            self.executor,
            self._cache,
            lambda share: progress(_GATHERED * share),
        )
        given = self.model, wanted, self._samples, self.where, seen
        together = Together(self.model, plan.weights)
        tried = wanted if self._effort.kept else ()
        again = [source for source in tried if together.concerns(source)]

        def advance(done: int) -> None:
            progress(_GATHERED + (1 - _GATHERED) * done / (len(wanted) + len(again)))

        choices, revised = {}, {}
        pieces = (
            (each, plan.activations.get(each.source))
            for each in gather(*given, set(wanted), self._effort)
        )
        found = on_copies(self.executor, self.model, chooser, plan.weights, pieces)
        for source, (choice, moments) in zip(wanted, found, strict=True):
            choices[source] = choice
            together.add(source, choice, moments)
            advance(len(choices))
        shared = plan.weights, together.rounded()
        those = ((each, choices[each.source]) for each in gather(*given, again, self._effort))
        found_again = on_copies(self.executor, self.model, reviser, shared, those)
        for source, choice in zip(again, found_again, strict=True):
            revised[source] = choice
            advance(len(choices) + len(revised))
        return together.better(choices, revised)


def chooser(
    model: ir.Model, weights: Mapping[Layer, Scheme]
) -> Callable[[tuple[Evidence, Scheme | None]], tuple[Choice, Parts]]:
    """Who chooses what becomes of a tensor, by what is known of it."""
    common = Common(weights)

    def chosen(piece: tuple[Evidence, Scheme | None]) -> tuple[Choice, Parts]:
        each, scheme = piece
        trial = Trial(model, each.source, weights, common)
        samples = each.to_choose, each.to_decide, each.to_round
        choice = trial.choice(scheme, each.statistics, *samples)
        moments = trial.moments(choice, each.to_round)
        return _bare(replace(choice, tried=trial.candidates)), moments

    return chosen


def _bare(choice: Choice) -> Choice:
    """Without what the quantizers of weights give, which is as large as they are."""
    weights = {layer: [*map(replace, rounded)] for layer, rounded in choice.weights.items()}
    return replace(choice, weights=weights, simpler=tuple(map(_bare, choice.simpler)))


def reviser(
    model: ir.Model, shared: tuple[Mapping[Layer, Scheme], Mapping[Layer, Rounded]]
) -> Callable[[tuple[Evidence, Choice]], Choice]:
    """Who tries weights that several layers have in common."""
    weights, rounded = shared
    common = Common(weights)

    def revised(piece: tuple[Evidence, Choice]) -> Choice:
        each, choice = piece
        trial = Trial(model, each.source, weights, common)
        given = {
            layer: (rounded[layer], *choice.weights[layer][1:])
            for layer, _ in each.source.readers
            if layer in rounded
        }
        return trial.revised(choice, given, each.to_choose, each.to_decide)

    return revised


def _keys(plan: Plan) -> dict[Source, Hashable]:
    """All that the choice for each tensor depends on; for those whose readers round a constant
    together that is what it is for all of them."""
    rounded = Common(plan.weights).rounded

    def shared(source: Source) -> Iterator[Shared]:
        return (rounded[layer] for layer, _ in source.readers if layer in rounded)

    found: dict[Source, Hashable] = {}
    for group in linked(_looked_at(plan), shared):
        of_all = tuple(
            (
                plan.activations.get(source),
                *(plan.weights.get(layer) for layer, _ in source.readers),
            )
            for source in group
        )
        found |= {source: (source.value, tuple(source.readers), of_all) for source in group}
    return found


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
