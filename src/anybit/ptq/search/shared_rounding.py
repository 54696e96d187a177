# SPDX-License-Identifier: Apache-2.0
"""One rounding of a constant for all layers that multiply it, by what all of them read.

Second moments add, and so do errors: GPTQ works with the sum of the moments, and what it finds is
kept if the sum of the errors of all readers is lower than with rounding to nearest.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from anybit.ptq.algorithms.gptq import refined_by
from anybit.ptq.algorithms.hessian import Factors, Moments, factors_of
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.layer_runner import LayerRunner
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight
from anybit.ptq.algorithms.shared_weights import SharedWeight, SharedWeights
from anybit.ptq.config import GptqConfig, QuantizeConfig
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.quant_types.spec import QuantSpec

Parts = Mapping[TargetNode, list[Moments]]


class SharedWeightRounding:
    """Rounds what the readers of several tensors have in common.

    Args:
        model: The float model.
        weights: The schemes of the weights of all layers.
        config: The thresholds of the search.
    """

    def __init__(
        self, model: ir.Model, weights: Mapping[TargetNode, QuantSpec], config: QuantizeConfig
    ) -> None:
        self.common = SharedWeights(weights)
        self._model, self._weights, self._config = model, weights, config
        self._sums: dict[SharedWeight, list[Moments]] = {}
        self._read: dict[SharedWeight, tuple[TargetNode, int, LayerParams]] = {}

    def concerns(self, source: ActivationTensor) -> bool:
        """Whether layers that read a tensor have a constant in common."""
        return any(layer in self.common.rounded for layer, _ in source.readers)

    def add(self, source: ActivationTensor, choice: LayerParams, moments: Parts) -> None:
        """What became of a tensor, and the moments of what such layers read then."""
        for layer, index in source.readers:
            if layer not in moments:
                continue
            shared = self.common.rounded[layer]
            self._read[shared] = layer, index, choice
            if shared not in self._sums:
                self._sums[shared] = moments[layer]
                continue
            for total, part in zip(self._sums[shared], moments[layer], strict=True):
                total.merge(part)

    def rounded(self) -> dict[TargetNode, QuantizedWeight]:
        """The first weight of each layer that has it in common. The moments are used up."""
        found = {}
        while self._sums:
            shared, sums = self._sums.popitem()
            layer, index, choice = self._read[shared]
            piece = LayerRunner(self._model, layer, index, self._weights[layer], self._config)
            by_start = {part.start: each for part, each in zip(shared.parts, sums, strict=True)}
            of_all, *_ = refined_by(
                piece, choice.smoothing, partial(_factors, by_start, self._config.gptq)
            )
            found.update(dict.fromkeys(shared.layers, of_all))
        return found

    def better(
        self,
        choices: Mapping[ActivationTensor, LayerParams],
        revised: Mapping[ActivationTensor, LayerParams],
    ) -> dict[ActivationTensor, LayerParams]:
        """The choices, with what is revised of them for a constant where that has less error."""
        if not revised:
            return dict(choices)
        before, after = _errors(choices), _errors(revised)
        kept = {
            layer
            for layer, shared in self.common.rounded.items()
            if layer in after
            # Nothing is known of those that read nothing for these data.
            and sum(after.get(each, 0.0) for each in shared.layers)
            < sum(before.get(each, 0.0) for each in shared.layers)
        }
        return {
            source: _mixed(choice, revised[source], kept) if source in revised else choice
            for source, choice in choices.items()
        }


def _factors(by_start: Mapping[int, Moments], config: GptqConfig, part: slice) -> Factors:
    return factors_of(by_start[part.start], config)


def _errors(choices: Mapping[ActivationTensor, LayerParams]) -> dict[TargetNode, float]:
    return {layer: each for choice in choices.values() for layer, each in choice.errors.items()}


def _mixed(choice: LayerParams, revised: LayerParams, kept: set[TargetNode]) -> LayerParams:
    """What is revised for some layers, and the rest."""
    corrections = {
        layer: each for layer, each in choice.corrections.items() if layer not in kept
    } | {layer: each for layer, each in revised.corrections.items() if layer in kept}
    return replace(
        choice,
        errors={
            layer: (revised if layer in kept else choice).errors[layer] for layer in choice.errors
        },
        weights={
            layer: (revised if layer in kept else choice).weights[layer] for layer in choice.weights
        },
        corrections=corrections,
    )
