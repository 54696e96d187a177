# SPDX-License-Identifier: Apache-2.0
"""Rounding of weights that several layers share, on the inputs of all of these layers.

Second moments of inputs add up, and so do errors. GPTQ rounds a weight by the sum of the moments.
The result is kept if the sum of the errors of all layers is lower than with rounding to nearest.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import onnx_ir as ir

from anybit.ptq.algorithms.gptq import GptqLayer, round_weights
from anybit.ptq.algorithms.hessian import HessianFactors, Moments, factorize
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.layer_runner import LayerRunner
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight
from anybit.ptq.algorithms.shared_weights import SharedWeight, SharedWeights
from anybit.ptq.config import GptqConfig, QuantizeConfig
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.quant_types.spec import QuantSpec

LayerMoments: TypeAlias = Mapping[TargetNode, list[Moments]]
"""X^T X of the inputs of layers, one per slice of the terms of their sums."""


class SharedWeightRounding:
    """Rounding of the weights that layers of several activations share.

    Args:
        model: The float model.
        weights: The specs of the weights of all layers.
        config: The thresholds of the search.
    """

    def __init__(
        self, model: ir.Model, weights: Mapping[TargetNode, QuantSpec], config: QuantizeConfig
    ) -> None:
        self._shared = SharedWeights(weights, config.gptq).rounded
        self._model, self._weights, self._config = model, weights, config
        self._sums: dict[SharedWeight, list[Moments]] = {}
        self._readers: dict[SharedWeight, tuple[TargetNode, int, LayerParams]] = {}

    def has_shared_weights(self, activation: ActivationTensor) -> bool:
        """Return whether layers that read an activation share a weight with others."""
        return any(layer in self._shared for layer, _ in activation.readers)

    def add(self, activation: ActivationTensor, params: LayerParams, moments: LayerMoments) -> None:
        """Add the moments of the inputs of layers, with these parameters of their activation."""
        for layer, index in activation.readers:
            if layer not in moments:
                continue
            shared = self._shared[layer]
            self._readers[shared] = layer, index, params
            if shared not in self._sums:
                self._sums[shared] = moments[layer]
                continue
            for total, part in zip(self._sums[shared], moments[layer], strict=True):
                total.merge(part)

    def round_weights(self) -> dict[TargetNode, QuantizedWeight]:
        """Return the rounded first weight of each layer that shares it, and drop the moments."""
        weights = {}
        while self._sums:
            shared, sums = self._sums.popitem()
            layer, index, params = self._readers[shared]
            spec = self._weights[layer]
            runner = LayerRunner(self._model, layer, index, spec, self._config)
            by_start = {
                part.start: moments for part, moments in zip(shared.parts, sums, strict=True)
            }
            rounded, *_ = round_weights(
                GptqLayer(runner, shared.products[layer], spec),
                params.smoothing,
                partial(_compute_factors, by_start, self._config.gptq),
            )
            weights.update(dict.fromkeys(shared.layers, rounded))
        return weights

    def select_better(
        self,
        params: Mapping[ActivationTensor, LayerParams],
        revised: Mapping[ActivationTensor, LayerParams],
    ) -> dict[ActivationTensor, LayerParams]:
        """Return the parameters, revised where the layers of a weight have less error together."""
        if not revised:
            return dict(params)
        before, after = _collect_errors(params), _collect_errors(revised)
        # Layers in branches that no sample runs have no errors.
        improved = {
            layer
            for layer, shared in self._shared.items()
            if layer in after
            and sum(after.get(reader, 0.0) for reader in shared.layers)
            < sum(before.get(reader, 0.0) for reader in shared.layers)
        }
        return {
            activation: _merge(chosen, revised[activation], improved)
            if activation in revised
            else chosen
            for activation, chosen in params.items()
        }


def _compute_factors(
    by_start: Mapping[int, Moments], config: GptqConfig, part: slice
) -> HessianFactors:
    return factorize(by_start[part.start], config)


def _collect_errors(params: Mapping[ActivationTensor, LayerParams]) -> dict[TargetNode, float]:
    return {layer: error for chosen in params.values() for layer, error in chosen.errors.items()}


def _merge(params: LayerParams, revised: LayerParams, layers: set[TargetNode]) -> LayerParams:
    """Return the parameters, revised for some layers."""
    sources = {layer: revised if layer in layers else params for layer in params.errors}
    corrections = {
        layer: correction for layer, correction in params.corrections.items() if layer not in layers
    } | {layer: correction for layer, correction in revised.corrections.items() if layer in layers}
    return replace(
        params,
        errors={layer: sources[layer].errors[layer] for layer in params.errors},
        weights={
            layer: (revised if layer in layers else params).weights[layer]
            for layer in params.weights
        },
        corrections=corrections,
    )
