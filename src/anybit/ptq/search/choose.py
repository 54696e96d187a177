# SPDX-License-Identifier: Apache-2.0
"""Choice of the quantization parameters of all activations, in parallel.

Activations are calibrated first. Then the parameters of each activation, and of the layers that
read it, are searched by themselves. Weights that several layers share are rounded last, on the
inputs of all of these layers.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight
from anybit.ptq.algorithms.shared_weights import SharedWeight, SharedWeights, group_linked
from anybit.ptq.calibration.collect import LayerSamples, collect_stats, iterate_samples
from anybit.ptq.config import GptqConfig, QuantizeConfig
from anybit.ptq.context import Context, Progress, scale_progress
from anybit.ptq.graph.matmul_form import find_matmul_form
from anybit.ptq.graph.targets import ActivationTensor, TargetNode, collect_activations
from anybit.ptq.plan import QuantPlan
from anybit.ptq.search.layer_search import LayerSearch
from anybit.ptq.search.model_copies import map_on_copies
from anybit.ptq.search.shared_rounding import LayerMoments, SharedWeightRounding
from anybit.quant_types.spec import QuantSpec

# The share of the time for calibration; the rest is for the search.
_CALIBRATED = 0.3


def choose_params(
    ctx: Context, plan: QuantPlan, activations: Sequence[ActivationTensor], progress: Progress
) -> dict[ActivationTensor, LayerParams]:
    """Calibrate activations, and choose the parameters of each.

    Args:
        ctx: The model and the data.
        plan: The specs of weights and activations.
        activations: The activations. Those without a spec stay float, and only the weights of their
            layers are rounded.
        progress: Called with the completed share.

    Raises:
        ModelError: The model cannot be run, or an activation holds NaN or infinity.
    """
    stats = collect_stats(ctx, activations, scale_progress(progress, 0, _CALIBRATED))

    def collect_samples(selected: Sequence[ActivationTensor]) -> Iterator[LayerSamples]:
        return iterate_samples(ctx, activations, stats, set(selected))

    rounding = SharedWeightRounding(ctx.model, plan.weights, ctx.config)
    shared = [activation for activation in activations if rounding.has_shared_weights(activation)]
    revisable = shared if ctx.config.searches else []
    count = len(activations) + len(revisable)
    search = scale_progress(progress, _CALIBRATED, 1)
    params: dict[ActivationTensor, LayerParams] = {}
    searched = _search_layers(ctx, plan, collect_samples(activations))
    for activation, (chosen, moments) in zip(activations, searched, strict=True):
        params[activation] = chosen
        rounding.add(activation, chosen, moments)
        search(len(params) / count)
    revised: dict[ActivationTensor, LayerParams] = {}
    tried = _revise_layers(ctx, plan, rounding.round_weights(), params, collect_samples(revisable))
    for activation, chosen in zip(revisable, tried, strict=True):
        revised[activation] = chosen
        search((len(params) + len(revised)) / count)
    return rounding.select_better(params, revised)


def _search_layers(
    ctx: Context, plan: QuantPlan, layer_samples: Iterator[LayerSamples]
) -> Iterator[tuple[LayerParams, LayerMoments]]:
    tasks = ((samples, plan.activations.get(samples.activation)) for samples in layer_samples)
    return map_on_copies(ctx.executor, ctx.model, make_chooser, (plan.weights, ctx.config), tasks)


def _revise_layers(
    ctx: Context,
    plan: QuantPlan,
    rounded: Mapping[TargetNode, QuantizedWeight],
    params: Mapping[ActivationTensor, LayerParams],
    layer_samples: Iterator[LayerSamples],
) -> Iterator[LayerParams]:
    common = plan.weights, rounded, ctx.config
    tasks = ((samples, params[samples.activation]) for samples in layer_samples)
    return map_on_copies(ctx.executor, ctx.model, make_reviser, common, tasks)


def make_chooser(
    model: ir.Model, common: tuple[Mapping[TargetNode, QuantSpec], QuantizeConfig]
) -> Callable[[tuple[LayerSamples, QuantSpec | None]], tuple[LayerParams, LayerMoments]]:
    """Return a function that searches the parameters of an activation on its samples."""
    weights, config = common
    shared_weights = SharedWeights(weights, config.gptq)

    def choose(task: tuple[LayerSamples, QuantSpec | None]) -> tuple[LayerParams, LayerMoments]:
        samples, spec = task
        search = LayerSearch(model, samples.activation, weights, shared_weights, config)
        params = search.choose(spec, samples)
        moments = search.compute_moments(params, samples.rounding)
        return _drop_arrays(replace(params, tried=search.candidates)), moments

    return choose


def _drop_arrays(params: LayerParams) -> LayerParams:
    """Drop the cached values of quantized weights, which are as large as the weights."""
    weights = {layer: [*map(replace, rounded)] for layer, rounded in params.weights.items()}
    fallbacks = tuple(map(_drop_arrays, params.fallbacks))
    return replace(params, weights=weights, fallbacks=fallbacks)


def make_reviser(
    model: ir.Model,
    common: tuple[
        Mapping[TargetNode, QuantSpec], Mapping[TargetNode, QuantizedWeight], QuantizeConfig
    ],
) -> Callable[[tuple[LayerSamples, LayerParams]], LayerParams]:
    """Return a function that tries the common rounding of weights that several layers share."""
    weights, rounded, config = common
    shared_weights = SharedWeights(weights, config.gptq)

    def revise(task: tuple[LayerSamples, LayerParams]) -> LayerParams:
        samples, params = task
        search = LayerSearch(model, samples.activation, weights, shared_weights, config)
        replaced = {
            layer: (rounded[layer], *params.weights[layer][1:])
            for layer, _ in samples.activation.readers
            if layer in rounded
        }
        return search.revise(params, replaced, samples)

    return revise


def make_params_keys(plan: QuantPlan, config: GptqConfig) -> dict[ActivationTensor, Hashable]:
    """Return a key of everything that the parameters of each activation depend on.

    Activations whose layers share the rounding of a weight have the specs of all of them in it.
    """
    rounded = SharedWeights(plan.weights, config).rounded

    def find_shared_weights(activation: ActivationTensor) -> Iterator[SharedWeight]:
        return (rounded[layer] for layer, _ in activation.readers if layer in rounded)

    keys: dict[ActivationTensor, Hashable] = {}
    for group in group_linked(_list_searched_activations(plan), find_shared_weights):
        specs = tuple(
            (
                plan.activations.get(activation),
                *(plan.weights.get(layer) for layer, _ in activation.readers),
            )
            for activation in group
        )
        keys |= {
            activation: (activation.value, tuple(activation.readers), specs) for activation in group
        }
    return keys


def _list_searched_activations(plan: QuantPlan) -> tuple[ActivationTensor, ...]:
    """Return the activations to quantize, and float ones whose layers have weights to round."""
    layers = {layer for activation in plan.activations for layer, _ in activation.readers}
    others = [layer for layer in plan.weights if layer not in layers and find_matmul_form(layer)]
    return *plan.activations, *collect_activations(others)
