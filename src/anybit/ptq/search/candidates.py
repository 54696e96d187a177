# SPDX-License-Identifier: Apache-2.0
"""A float model quantized by a plan, and by another one: what they have in common is found once."""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import onnx_ir as ir

from anybit.data.dataset import Dataset
from anybit.metrics.output_parts import OutputPart
from anybit.metrics.quality import QualityMetrics
from anybit.parallel import Executor
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight, nearest
from anybit.ptq.algorithms.shared_weights import SharedWeight, SharedWeights, linked
from anybit.ptq.calibration.collect import LayerSamples, collect_stats, divided_samples, gather
from anybit.ptq.calibration.taps import Recording, recording
from anybit.ptq.config import QuantizeConfig, WeightConfig
from anybit.ptq.graph.matmul_form import find_matmul_form
from anybit.ptq.graph.targets import ActivationTensor, TargetNode, collect_activations
from anybit.ptq.insertion.insert import written
from anybit.ptq.plan import Plan
from anybit.ptq.search.ablation import AblationSet, best_variant, remark, variants_of
from anybit.ptq.search.evaluate import Outputs, judged
from anybit.ptq.search.layer_search import LayerSearch
from anybit.ptq.search.model_copies import on_copies
from anybit.ptq.search.shared_rounding import Parts, SharedWeightRounding
from anybit.quant_types.spec import QuantSpec

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
    choices: Mapping[ActivationTensor, LayerParams]
    model: ir.Model
    verdict: QualityMetrics | None
    remarks: tuple[str, ...] = ()
    ablation: QualityMetrics | None = None


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
        executor: What runs tasks on shards, tensors and layers.
        cache: A folder for what is found in them; None for none.
        config: The thresholds of the search.
    """

    def __init__(
        self,
        model: ir.Model,
        where: str,
        samples: Dataset | None,
        floats: Outputs | None,
        executor: Executor,
        cache: str | os.PathLike[str] | None,
        config: QuantizeConfig,
    ) -> None:
        self.model, self.where, self.executor = model, where, executor
        self._samples, self._floats, self._cache = samples, floats, cache
        self.config = config
        self._params: dict[Hashable, LayerParams] = {}

    def attempt(self, plan: Plan, progress: Progress) -> QuantizedCandidate:
        """Quantize the model by a plan, drop choices that do harm, and judge the result."""
        variants = variants_of(self.choices(plan, progress))
        if self._samples is None or len(variants) == 1:
            return self.judged(plan, variants[0].choices)
        written = [self._written(plan, variant.choices) for variant in variants]
        verdicts = [self._ablation_set.verdict(model.outputs) for model in written]
        best = best_variant(verdicts)
        result = self._judged(plan, variants[best].choices, written[best])
        remarks = (remark(variants[best], verdicts[best], verdicts[0]),) if best else ()
        return replace(result, remarks=remarks, ablation=verdicts[best])

    @property
    def parts(self) -> Mapping[str, Sequence[OutputPart]]:
        """Return the parts of the outputs, which are judged one by one."""
        return self._floats.parts if self._floats else {}

    def written(self, plan: Plan, choices: Mapping[ActivationTensor, LayerParams]) -> ir.Model:
        """Return the model with quantizers."""
        weights = _weights(plan.weights, choices, self.config.weights)
        return written(self.model, weights, choices)

    def judged(
        self, plan: Plan, choices: Mapping[ActivationTensor, LayerParams]
    ) -> QuantizedCandidate:
        """Return the quantized model, and its quality on held-out samples."""
        if self._samples is None:
            return QuantizedCandidate(plan, choices, self.written(plan, choices), None)
        return self._judged(plan, choices, self._written(plan, choices))

    def _judged(
        self, plan: Plan, choices: Mapping[ActivationTensor, LayerParams], model: "_Written"
    ) -> QuantizedCandidate:
        assert self._samples is not None, "asked before"
        assert self._floats is not None, "there are samples"
        verdict = judged(self._floats, model.outputs, self._samples, self.executor)
        return QuantizedCandidate(plan, choices, model.model, verdict)

    def _written(self, plan: Plan, choices: Mapping[ActivationTensor, LayerParams]) -> "_Written":
        model = self.written(plan, choices)
        return _Written(model, recording(model, model.graph.outputs, self.where))

    @cached_property
    def _ablation_set(self) -> AblationSet:
        assert self._samples is not None, "asked before"
        assert self._floats is not None, "there are samples"
        searched, apart = divided_samples(self._samples, self.config.calibration)
        return AblationSet(
            self._floats, self._samples, apart, searched[::-1], self.executor, self.config.ablation
        )

    def choices(self, plan: Plan, progress: Progress) -> dict[ActivationTensor, LayerParams]:
        """Return the parameters of each activation, searched once for the same specs."""
        keys = _keys(plan)
        new = [source for source, key in keys.items() if key not in self._params]
        if new and self._samples is not None:
            for source, choice in self._search(plan, new, progress).items():
                self._params[keys[source]] = choice
        return {source: self._params[key] for source, key in keys.items() if key in self._params}

    def _search(
        self, plan: Plan, sources: Sequence[ActivationTensor], progress: Progress
    ) -> dict[ActivationTensor, LayerParams]:
        assert self._samples is not None, "asked before"
        stats = collect_stats(
            self.model,
            sources,
            self._samples,
            self.where,
            self.executor,
            self._cache,
            lambda share: progress(_GATHERED * share),
        )
        data = self.model, sources, self._samples, self.where, stats
        together = SharedWeightRounding(self.model, plan.weights, self.config)
        shared = [source for source in sources if together.concerns(source)]
        again = shared if self.config.searches else []

        def advance(done: int) -> None:
            progress(_GATHERED + (1 - _GATHERED) * done / (len(sources) + len(again)))

        choices, revised = {}, {}
        tasks = (
            (samples, plan.activations.get(samples.source))
            for samples in gather(*data, set(sources), self.config)
        )
        results = on_copies(self.executor, self.model, chooser, (plan.weights, self.config), tasks)
        for source, (choice, moments) in zip(sources, results, strict=True):
            choices[source] = choice
            together.add(source, choice, moments)
            advance(len(choices))
        common = plan.weights, together.rounded(), self.config
        revisions = (
            (samples, choices[samples.source]) for samples in gather(*data, again, self.config)
        )
        revised_choices = on_copies(self.executor, self.model, reviser, common, revisions)
        for source, choice in zip(again, revised_choices, strict=True):
            revised[source] = choice
            advance(len(choices) + len(revised))
        return together.better(choices, revised)


def chooser(
    model: ir.Model, shared: tuple[Mapping[TargetNode, QuantSpec], QuantizeConfig]
) -> Callable[[tuple[LayerSamples, QuantSpec | None]], tuple[LayerParams, Parts]]:
    """Return a function that searches the parameters of an activation on its samples."""
    weights, config = shared
    common = SharedWeights(weights)

    def chosen(task: tuple[LayerSamples, QuantSpec | None]) -> tuple[LayerParams, Parts]:
        samples, scheme = task
        search = LayerSearch(model, samples.source, weights, common, config)
        parts = samples.to_choose, samples.to_decide, samples.to_round
        choice = search.choice(scheme, samples.statistics, *parts)
        moments = search.moments(choice, samples.to_round)
        return _bare(replace(choice, tried=search.candidates)), moments

    return chosen


def _bare(choice: LayerParams) -> LayerParams:
    """Drop the cached values of quantized weights, which are as large as the weights."""
    weights = {layer: [*map(replace, rounded)] for layer, rounded in choice.weights.items()}
    return replace(choice, weights=weights, fallbacks=tuple(map(_bare, choice.fallbacks)))


def reviser(
    model: ir.Model,
    shared: tuple[
        Mapping[TargetNode, QuantSpec], Mapping[TargetNode, QuantizedWeight], QuantizeConfig
    ],
) -> Callable[[tuple[LayerSamples, LayerParams]], LayerParams]:
    """Return a function that tries weights that several layers share."""
    weights, rounded, config = shared
    common = SharedWeights(weights)

    def revised(task: tuple[LayerSamples, LayerParams]) -> LayerParams:
        samples, choice = task
        search = LayerSearch(model, samples.source, weights, common, config)
        shared_weights = {
            layer: (rounded[layer], *choice.weights[layer][1:])
            for layer, _ in samples.source.readers
            if layer in rounded
        }
        return search.revised(choice, shared_weights, samples.to_choose, samples.to_decide)

    return revised


def _keys(plan: Plan) -> dict[ActivationTensor, Hashable]:
    """Return a key of everything that the parameters of each activation depend on.

    Activations whose layers share the rounding of a weight have the specs of all of them in it.
    """
    rounded = SharedWeights(plan.weights).rounded

    def shared(source: ActivationTensor) -> Iterator[SharedWeight]:
        return (rounded[layer] for layer, _ in source.readers if layer in rounded)

    keys: dict[ActivationTensor, Hashable] = {}
    for group in linked(_searched(plan), shared):
        specs = tuple(
            (
                plan.activations.get(source),
                *(plan.weights.get(layer) for layer, _ in source.readers),
            )
            for source in group
        )
        keys |= {source: (source.value, tuple(source.readers), specs) for source in group}
    return keys


def _searched(plan: Plan) -> tuple[ActivationTensor, ...]:
    """Return the activations to quantize, and float ones whose layers have weights to round."""
    read = {layer for source in plan.activations for layer, _ in source.readers}
    others = [layer for layer in plan.weights if layer not in read and find_matmul_form(layer)]
    return *plan.activations, *collect_activations(others)


def _weights(
    schemes: Mapping[TargetNode, QuantSpec],
    choices: Mapping[ActivationTensor, LayerParams],
    config: WeightConfig,
) -> dict[TargetNode, Sequence[QuantizedWeight]]:
    """Return the weights of all layers as they are stored, those without a choice included."""
    chosen = {
        layer: weights for choice in choices.values() for layer, weights in choice.weights.items()
    }
    return {
        layer: chosen.get(layer)
        or [nearest(array, weight, scheme, config) for weight, array in layer.constants]
        for layer, scheme in schemes.items()
    }
