# SPDX-License-Identifier: Apache-2.0
"""Quantized models by plan: choice of parameters, ablation, insertion and quality."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from anybit.metrics.quality import QualityMetrics
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight, round_to_nearest
from anybit.ptq.calibration.taps import TapSpec, make_tap_spec
from anybit.ptq.config import QuantizeConfig, WeightConfig
from anybit.ptq.context import Context, Progress, ignore_progress
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.insertion.insert import insert_quantizers
from anybit.ptq.plan import QuantPlan
from anybit.ptq.search.ablation import Ablation, AblationSet, ablate, make_variants
from anybit.ptq.search.choose import choose_params, make_params_keys
from anybit.ptq.search.evaluate import ModelOutputs, measure_quality
from anybit.ptq.specs.dynamic_grid import make_dynamic_grid
from anybit.quant_types.spec import QuantSpec


@dataclass(frozen=True)
class QuantizedCandidate:
    """A quantized model.

    Attributes:
        plan: The specs of weights and activations.
        params: The parameters of activations, and of the layers that read them.
        model: The model.
    """

    plan: QuantPlan
    params: Mapping[ActivationTensor, LayerParams]
    model: ir.Model


@dataclass(frozen=True)
class MeasuredCandidate(QuantizedCandidate):
    """A quantized model whose quality is measured.

    Attributes:
        verdict: The quality on held-out samples.
        remarks: The remark on choices that the ablation dropped.
        ablation: The quality on the ablation samples; None if there was nothing to drop.
    """

    verdict: QualityMetrics
    remarks: tuple[str, ...] = ()
    ablation: QualityMetrics | None = None


def quantize_without_data(
    model: ir.Model, plan: QuantPlan, config: QuantizeConfig
) -> QuantizedCandidate:
    """Return the model with weights rounded to nearest. Scales of activations are dynamic."""
    params = {
        activation: LayerParams(make_dynamic_grid(activation, spec))
        for activation, spec in plan.activations.items()
    }
    weights = _collect_weights(plan.weights, params, config.weights)
    return QuantizedCandidate(plan, params, insert_quantizers(model, weights, params))


class CandidateBuilder:
    """Builder of quantized models by plan. What several plans have in common is searched once.

    Args:
        ctx: The float model and the data.
        floats: The outputs of the float model.
    """

    def __init__(self, ctx: Context, floats: ModelOutputs) -> None:
        self.ctx, self.floats = ctx, floats
        self._params: dict[Hashable, LayerParams] = {}

    def build(self, plan: QuantPlan, progress: Progress) -> MeasuredCandidate:
        """Choose and ablate parameters, insert quantizers and measure the quality."""
        variants = make_variants(self.choose(plan, progress))
        models = [self.insert(plan, variant.choices) for variant in variants]
        outputs = [self._record_outputs(model) for model in models]
        if len(variants) == 1:
            ablation = Ablation()
        else:
            ablation = ablate(self._ablation_set, variants, outputs)
        best = ablation.best
        return MeasuredCandidate(
            plan,
            variants[best].choices,
            models[best],
            measure_quality(self.ctx, self.floats, outputs[best]),
            ablation.remarks,
            ablation.verdict,
        )

    def measure(self, candidate: QuantizedCandidate) -> MeasuredCandidate:
        """Measure the quality of a model that is quantized already."""
        plan, params, model = candidate.plan, candidate.params, candidate.model
        verdict = measure_quality(self.ctx, self.floats, self._record_outputs(model))
        return MeasuredCandidate(plan, params, model, verdict)

    def choose(self, plan: QuantPlan, progress: Progress) -> dict[ActivationTensor, LayerParams]:
        """Return the parameters of each activation, searched once for the same specs."""
        keys = make_params_keys(plan, self.ctx.config.gptq)
        new = [activation for activation, key in keys.items() if key not in self._params]
        if new:
            for activation, params in choose_params(self.ctx, plan, new, progress).items():
                self._params[keys[activation]] = params
        return {activation: self._params[key] for activation, key in keys.items()}

    def measure_ablation(self, plan: QuantPlan) -> float | None:
        """Return the SQNR of the worst output on the ablation samples, with chosen parameters."""
        model = self.insert(plan, self.choose(plan, ignore_progress))
        return self._ablation_set.evaluate(self._record_outputs(model)).metrics.sqnr

    def insert(self, plan: QuantPlan, params: Mapping[ActivationTensor, LayerParams]) -> ir.Model:
        """Return the model with quantizers."""
        weights = _collect_weights(plan.weights, params, self.ctx.config.weights)
        return insert_quantizers(self.ctx.model, weights, params)

    def _record_outputs(self, model: ir.Model) -> TapSpec:
        return make_tap_spec(model, model.graph.outputs, self.ctx.name)

    @cached_property
    def _ablation_set(self) -> AblationSet:
        return AblationSet(self.ctx, self.floats)


def _collect_weights(
    specs: Mapping[TargetNode, QuantSpec],
    params: Mapping[ActivationTensor, LayerParams],
    config: WeightConfig,
) -> dict[TargetNode, Sequence[QuantizedWeight]]:
    """Return the weights of all layers as they are stored, those without parameters included."""
    chosen = {
        layer: weights for choice in params.values() for layer, weights in choice.weights.items()
    }
    return {
        layer: chosen.get(layer)
        or [round_to_nearest(array, weight, spec, config) for weight, array in layer.constants]
        for layer, spec in specs.items()
    }
