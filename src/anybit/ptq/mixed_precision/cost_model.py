# SPDX-License-Identifier: Apache-2.0
"""Cost model: the options of each group of layers, with their bytes or bit operations."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import onnx_ir as ir

from anybit.ptq.algorithms.shared_weights import count_bytes, get_weight_values, group_linked
from anybit.ptq.config import BudgetConfig, GptqConfig
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.mixed_precision.noise_model import NoiseTable
from anybit.ptq.mixed_precision.pareto import Assignment, Widths, compute_front
from anybit.ptq.mixed_precision.widths import (
    FLOAT_BITS,
    select_variable_specs,
    set_width,
    set_widths,
)
from anybit.ptq.plan import QuantPlan
from anybit.quant_types.spec import QuantSpec


@dataclass(frozen=True)
class CostModel:
    """Cost of widths in bytes of weights, or in bit operations.

    The bit operations of a layer are its multiplications times the widths of both factors.

    Attributes:
        macs: The multiplications of each layer.
        by_bytes: Whether the cost is in bytes of weights; otherwise it is in bit operations.
        avoids_wide: Whether widths above the base width, for which there are no integer kernels,
            cost more than any others.
        config: The thresholds.
        gptq: The thresholds of GPTQ, on which the copies of shared weights depend.
    """

    macs: Mapping[TargetNode, int]
    by_bytes: bool
    avoids_wide: bool
    config: BudgetConfig
    gptq: GptqConfig

    def count_bit_operations(self, plan: QuantPlan) -> float:
        """Return the bit operations of a plan."""
        return sum(
            self.macs[layer] * math.prod(self._list_widths(layer, plan.weights.get(layer), inputs))
            for layer, inputs in get_input_widths(plan).items()
        )

    def evaluate(self, base: QuantPlan, widths: Widths, noises: NoiseTable) -> Assignment:
        """Return the cost and the predicted noise of a plan with other widths."""
        plan = set_widths(base, widths)
        cost: float = count_bytes(plan.weights, self.gptq) if self.by_bytes else 0
        for layer, inputs in () if self.by_bytes else get_input_widths(plan).items():
            cost += self._compute_layer(layer, plan.weights.get(layer), inputs)
        return Assignment(cost, noises.predict(plan), widths)

    def compute(
        self,
        layers: Sequence[TargetNode],
        weights: QuantSpec | None,
        input_widths: Mapping[TargetNode, Sequence[int]],
    ) -> float:
        """Return the cost of layers that share weights.

        Args:
            layers: The layers.
            weights: The spec of their weights; None for float weights or none.
            input_widths: The widths of the quantized activations of each layer, in bits.
        """
        if self.by_bytes:
            return count_bytes(dict.fromkeys(layers, weights), self.gptq) if weights else 0
        return sum(self._compute_layer(layer, weights, input_widths[layer]) for layer in layers)

    def _compute_layer(
        self, layer: TargetNode, weights: QuantSpec | None, inputs: Sequence[int]
    ) -> float:
        widths = self._list_widths(layer, weights, inputs)
        is_wide = self.avoids_wide and max(widths) > self.config.base_bits
        return self.macs[layer] * (self.config.wide_cost if is_wide else math.prod(widths))

    def _list_widths(
        self, layer: TargetNode, weights: QuantSpec | None, inputs: Sequence[int]
    ) -> list[int]:
        """Return the widths of both factors of a layer."""
        own = [weights.bits if weights else FLOAT_BITS] if layer.weights else []
        return [*own, *inputs, FLOAT_BITS, FLOAT_BITS][:2]


def get_input_widths(plan: QuantPlan) -> dict[TargetNode, list[int]]:
    """Return the widths of the quantized activations that each layer reads, in bits."""
    widths: dict[TargetNode, list[int]] = {layer: [] for layer in plan.layers}
    for tensor, spec in plan.activations.items():
        for layer, _ in tensor.readers:
            widths[layer].append(spec.bits)
    return widths


def list_options(
    plan: QuantPlan, noises: NoiseTable, costs: CostModel, least_bits: int
) -> list[list[Assignment]]:
    """Return the options of each group of layers that share activations or weights.

    Args:
        plan: The plan at the base widths.
        noises: The noise of each width.
        costs: The cost of each width.
        least_bits: The fewest bits of activations.
    """
    weight_specs, activation_specs = select_variable_specs(plan)
    if costs.by_bytes:
        activation_specs = {}
    groups = []
    for layers, tensors in _group_layers(plan):
        options: list[Assignment] = []
        candidates = {
            tensor: [*_list_activation_widths(noises.activations[tensor], least_bits, costs.config)]
            for tensor in tensors
            if tensor in activation_specs
        }
        for widths in _combine_widths(tensors, plan, candidates, costs.config.max_independent):
            noise = sum(noises.activations[tensor][widths[tensor]] for tensor in tensors)
            changed = tuple(
                (tensor, widths[tensor]) for tensor in tensors if tensor in activation_specs
            )
            input_widths = {
                layer: [widths[tensor] for tensor in tensors if layer in dict(tensor.readers)]
                for layer in layers
            }
            weight_options = [
                list(
                    _list_weight_options(
                        sharing, plan, input_widths, noises, costs, sharing[0] in weight_specs
                    )
                )
                for sharing in group_linked(layers, partial(_list_quantized_constants, plan))
            ]
            options += [
                Assignment(0.0, noise, changed) + option for option in compute_front(weight_options)
            ]
        groups.append(options)
    return groups


def _list_weight_options(
    layers: Sequence[TargetNode],
    plan: QuantPlan,
    input_widths: Mapping[TargetNode, Sequence[int]],
    noises: NoiseTable,
    costs: CostModel,
    are_variable: bool,
) -> Iterator[Assignment]:
    """Yield the options of layers that share weights, for given widths of their activations."""
    spec = plan.weights.get(layers[0])
    if spec is None or not are_variable:
        fixed = [noises.weights[layer][spec.bits] for layer in layers] if spec else []
        yield Assignment(costs.compute(layers, spec, input_widths), sum(fixed))
        return
    for bits in noises.weights[layers[0]]:
        noise = sum(noises.weights[layer][bits] for layer in layers)
        if noise < math.inf:
            widths = tuple((layer, bits) for layer in layers)
            cost = costs.compute(layers, set_width(spec, bits), input_widths)
            yield Assignment(cost, noise, widths)


def _list_activation_widths(
    noises: Mapping[int, float], least_bits: int, config: BudgetConfig
) -> Iterator[int]:
    """Yield the widths that an activation may get."""
    for bits, noise in noises.items():
        if bits >= config.base_bits or (bits >= least_bits and noise < math.inf):
            yield bits


def _combine_widths(
    tensors: Sequence[ActivationTensor],
    plan: QuantPlan,
    candidates: Mapping[ActivationTensor, Sequence[int]],
    max_independent: int,
) -> Iterator[dict[ActivationTensor, int]]:
    """Yield the combinations of widths of the activations of a group.

    More than `max_independent` activations all get the same width.
    """
    fixed = {tensor: plan.activations[tensor].bits for tensor in tensors}
    if len(candidates) > max_independent:
        for bits in sorted(set.intersection(*map(set, candidates.values()))):
            yield fixed | dict.fromkeys(candidates, bits)
        return
    for widths in product(*candidates.values()):
        yield fixed | dict(zip(candidates, widths, strict=True))


def _group_layers(plan: QuantPlan) -> list[tuple[list[TargetNode], list[ActivationTensor]]]:
    """Return groups of layers that share activations or weights, with these activations."""
    inputs: dict[TargetNode, list[ActivationTensor]] = {layer: [] for layer in plan.layers}
    for tensor in plan.activations:
        for layer, _ in tensor.readers:
            inputs[layer].append(tensor)

    def list_shared(layer: TargetNode) -> list[object]:
        return [*inputs[layer], *_list_quantized_constants(plan, layer)]

    return [
        (layers, list(dict.fromkeys(tensor for layer in layers for tensor in inputs[layer])))
        for layers in group_linked(plan.layers, list_shared)
    ]


def _list_quantized_constants(plan: QuantPlan, layer: TargetNode) -> list[ir.Value]:
    """Return the quantized weights of a layer."""
    return get_weight_values(layer) if layer in plan.weights else []
