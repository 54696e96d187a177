# SPDX-License-Identifier: Apache-2.0
"""A float model quantized by a plan, and by another one: what they have in common is found once."""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import onnx_ir as ir

from anybit.quantization.ablation import AblationSet, best_variant, remark, variants_of
from anybit.quantization.calibration import LayerSamples, collect_stats, divided_samples, gather
from anybit.quantization.choices import LayerParams
from anybit.quantization.common import SharedWeight, SharedWeights, linked
from anybit.quantization.config import QuantizeConfig, WeightConfig
from anybit.quantization.copies import on_copies
from anybit.quantization.insertion import written
from anybit.quantization.judging import Outputs, judged
from anybit.quantization.parts import Part
from anybit.quantization.placement import Layer, Source, sources_of
from anybit.quantization.plan import Plan
from anybit.quantization.products import product_of
from anybit.quantization.recording import Recording, recording
from anybit.quantization.samples import Samples
from anybit.quantization.schemes import Scheme
from anybit.quantization.search import LayerSearch
from anybit.quantization.together import Parts, SharedWeightRounding
from anybit.quantization.verdict import Verdict
from anybit.quantization.weights import QuantizedWeight, nearest
from anybit.workers import Workers

Progress = Callable[[float], None]

# The share of the time for statistics; the rest is for choices.
_GATHERED = 0.3


@dataclass(frozen=True)
class QuantizedCandidate:
    """A quantized model.

    Attributes:
        plan: What was asked for.
        choices: What became of the tensors that layers multiply.
        model: The model.
        verdict: What that did to the outputs; None without data.
        remarks: The choices that were dropped because they did harm.
        ablation: The quality on the ablation samples; None if there was nothing to drop.
    """

    plan: Plan
    choices: Mapping[Source, LayerParams]
    model: ir.Model
    verdict: Verdict | None
    remarks: tuple[str, ...] = ()
    ablation: Verdict | None = None


@dataclass(frozen=True)
class _Written:
    """A quantized model, and what is to be sent for its outputs."""

    model: ir.Model
    outputs: Recording


class CandidateBuilder:
    """Quantizes a model by plans, one after the other.

    Args:
        model: The float model, which is not changed.
        where: Its name, for messages.
        samples: The data; None for weights alone.
        floats: The outputs of the model; None without data.
        workers: Who reads the data, chooses and judges.
        cache: A folder for what is found in them; None for none.
        config: The thresholds of the search.
    """

    def __init__(
        self,
        model: ir.Model,
        where: str,
        samples: Samples | None,
        floats: Outputs | None,
        workers: Workers,
        cache: str | os.PathLike[str] | None,
        config: QuantizeConfig,
    ) -> None:
        self.model, self.where, self.workers = model, where, workers
        self._samples, self._floats, self._cache = samples, floats, cache
        self.config = config
        self._found: dict[Hashable, LayerParams] = {}

    def attempt(self, plan: Plan, progress: Progress) -> QuantizedCandidate:
        """Quantize the model by a plan, drop choices that do harm, and judge the result."""
        variants = variants_of(self.choices(plan, progress))
        if self._samples is None or len(variants) == 1:
            return self.judged(plan, variants[0].choices)
        written = [self._written(plan, variant.choices) for variant in variants]
        verdicts = [self._ablation_set.verdict(model.outputs) for model in written]
        best = best_variant(verdicts)
        result = self._judged(plan, variants[best].choices, written[best])
        said = (remark(variants[best], verdicts[best], verdicts[0]),) if best else ()
        return replace(result, remarks=said, ablation=verdicts[best])

    @property
    def parts(self) -> Mapping[str, Sequence[Part]]:
        """Return the parts of the outputs, each of which is judged by itself."""
        return self._floats.parts if self._floats else {}

    def written(self, plan: Plan, choices: Mapping[Source, LayerParams]) -> ir.Model:
        """The model with what was chosen."""
        weights = _weights(plan.weights, choices, self.config.weights)
        return written(self.model, weights, choices)

    def judged(self, plan: Plan, choices: Mapping[Source, LayerParams]) -> QuantizedCandidate:
        """It, and what became of its outputs."""
        if self._samples is None:
            return QuantizedCandidate(plan, choices, self.written(plan, choices), None)
        return self._judged(plan, choices, self._written(plan, choices))

    def _judged(
        self, plan: Plan, choices: Mapping[Source, LayerParams], found: "_Written"
    ) -> QuantizedCandidate:
        assert self._samples is not None, "asked before"
        assert self._floats is not None, "there are samples"
        verdict = judged(self._floats, found.outputs, self._samples, self.workers)
        return QuantizedCandidate(plan, choices, found.model, verdict)

    def _written(self, plan: Plan, choices: Mapping[Source, LayerParams]) -> "_Written":
        model = self.written(plan, choices)
        return _Written(model, recording(model, model.graph.outputs, self.where))

    @cached_property
    def _ablation_set(self) -> AblationSet:
        assert self._samples is not None, "asked before"
        assert self._floats is not None, "there are samples"
        searched, apart = divided_samples(self._samples, self.config.calibration)
        return AblationSet(
            self._floats, self._samples, apart, searched[::-1], self.workers, self.config.ablation
        )

    def choices(self, plan: Plan, progress: Progress) -> dict[Source, LayerParams]:
        """What becomes of the tensors that layers multiply."""
        keys = _keys(plan)
        wanted = [source for source, key in keys.items() if key not in self._found]
        if wanted and self._samples is not None:
            for source, choice in self._find(plan, wanted, progress).items():
                self._found[keys[source]] = choice
        return {source: self._found[key] for source, key in keys.items() if key in self._found}

    def _find(
        self, plan: Plan, wanted: Sequence[Source], progress: Progress
    ) -> dict[Source, LayerParams]:
        assert self._samples is not None, "asked before"
        seen = collect_stats(
            self.model,
            wanted,
            self._samples,
            self.where,
            self.workers,
            self._cache,
            lambda share: progress(_GATHERED * share),
        )
        given = self.model, wanted, self._samples, self.where, seen
        together = SharedWeightRounding(self.model, plan.weights, self.config)
        tried = wanted if self.config.searches else ()
        again = [source for source in tried if together.concerns(source)]

        def advance(done: int) -> None:
            progress(_GATHERED + (1 - _GATHERED) * done / (len(wanted) + len(again)))

        choices, revised = {}, {}
        pieces = (
            (each, plan.activations.get(each.source))
            for each in gather(*given, set(wanted), self.config)
        )
        found = on_copies(self.workers, self.model, chooser, (plan.weights, self.config), pieces)
        for source, (choice, moments) in zip(wanted, found, strict=True):
            choices[source] = choice
            together.add(source, choice, moments)
            advance(len(choices))
        shared = plan.weights, together.rounded(), self.config
        those = ((each, choices[each.source]) for each in gather(*given, again, self.config))
        found_again = on_copies(self.workers, self.model, reviser, shared, those)
        for source, choice in zip(again, found_again, strict=True):
            revised[source] = choice
            advance(len(choices) + len(revised))
        return together.better(choices, revised)


def chooser(
    model: ir.Model, shared: tuple[Mapping[Layer, Scheme], QuantizeConfig]
) -> Callable[[tuple[LayerSamples, Scheme | None]], tuple[LayerParams, Parts]]:
    """Return a function that chooses what becomes of a tensor, by its samples and statistics."""
    weights, config = shared
    common = SharedWeights(weights)

    def chosen(piece: tuple[LayerSamples, Scheme | None]) -> tuple[LayerParams, Parts]:
        each, scheme = piece
        trial = LayerSearch(model, each.source, weights, common, config)
        samples = each.to_choose, each.to_decide, each.to_round
        choice = trial.choice(scheme, each.statistics, *samples)
        moments = trial.moments(choice, each.to_round)
        return _bare(replace(choice, tried=trial.candidates)), moments

    return chosen


def _bare(choice: LayerParams) -> LayerParams:
    """Without what the quantizers of weights give, which is as large as they are."""
    weights = {layer: [*map(replace, rounded)] for layer, rounded in choice.weights.items()}
    return replace(choice, weights=weights, fallbacks=tuple(map(_bare, choice.fallbacks)))


def reviser(
    model: ir.Model,
    shared: tuple[Mapping[Layer, Scheme], Mapping[Layer, QuantizedWeight], QuantizeConfig],
) -> Callable[[tuple[LayerSamples, LayerParams]], LayerParams]:
    """Return a function that tries weights that several layers have in common."""
    weights, rounded, config = shared
    common = SharedWeights(weights)

    def revised(piece: tuple[LayerSamples, LayerParams]) -> LayerParams:
        each, choice = piece
        trial = LayerSearch(model, each.source, weights, common, config)
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
    rounded = SharedWeights(plan.weights).rounded

    def shared(source: Source) -> Iterator[SharedWeight]:
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
    schemes: Mapping[Layer, Scheme], choices: Mapping[Source, LayerParams], config: WeightConfig
) -> dict[Layer, Sequence[QuantizedWeight]]:
    """Return the weights of all layers as they are stored, those without a choice included."""
    chosen = {layer: each for choice in choices.values() for layer, each in choice.weights.items()}
    return {
        layer: chosen.get(layer)
        or [nearest(array, weight, of, config) for weight, array in layer.constants]
        for layer, of in schemes.items()
    }
