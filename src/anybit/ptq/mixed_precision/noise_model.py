# SPDX-License-Identifier: Apache-2.0
"""Noise model: noise of the outputs as a function of the width of each weight and activation.

The noise of weights is their squared rounding error times a factor of the layer. The factor is the
geometric mean over the measured widths, which averages out the luck of single widths. Rounding
errors of odd widths are interpolated between those of their neighbours.

The noise of activations is measured at 8 bits, and each bit changes it by a factor of 4. If it is
measured at 4 bits, too, where ranges are clipped, the widths between are interpolated in dB. A
weight or activation without any noise at 8 bits gets no fewer bits: its consumers may be saturated
on these samples only.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from anybit.parallel import Executor
from anybit.ptq.algorithms.shared_weights import get_weight_values, group_linked
from anybit.ptq.config import BudgetConfig, QuantizeConfig
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.mixed_precision.sensitivity import (
    ProbeSpec,
    SensitivityProbe,
    measure_sensitivity,
)
from anybit.ptq.mixed_precision.widths import select_variable_specs, set_width
from anybit.ptq.plan import QuantPlan
from anybit.quant_types.spec import QuantSpec

_NOISE_PER_BIT = 4.0
"""The factor on the noise power for each bit less, because steps are twice as large."""


@dataclass(frozen=True)
class NoiseTable:
    """Noise-to-signal power ratio of the worst output for each weight and activation alone.

    Attributes:
        weights: The noise of the weights of each layer, by width in bits. The noise of a shared
            weight is divided equally among its layers.
        activations: The noise of each activation, by width in bits.
    """

    weights: Mapping[TargetNode, Mapping[int, float]]
    activations: Mapping[ActivationTensor, Mapping[int, float]]

    def predict(self, plan: QuantPlan) -> float:
        """Return the sum of the noise powers of a plan."""
        return sum(self.weights[layer][spec.bits] for layer, spec in plan.weights.items()) + sum(
            self.activations[tensor][spec.bits] for tensor, spec in plan.activations.items()
        )

    def predict_layer(self, layer: TargetNode, plan: QuantPlan) -> float:
        """Return the sum of the noise powers of a layer's weights and activations."""
        inputs = [tensor for tensor in plan.activations if layer in dict(tensor.readers)]
        noise = sum(self.activations[tensor][plan.activations[tensor].bits] for tensor in inputs)
        if layer in plan.weights:
            noise += self.weights[layer][plan.weights[layer].bits]
        return noise


def measure_noise(
    executor: Executor,
    model: ir.Model,
    probe_spec: ProbeSpec,
    plan: QuantPlan,
    max_noise: float | None,
    progress: Callable[[float], None],
    least_bits: int | None = None,
) -> NoiseTable:
    """Measure the noise of each weight and activation at the widths that a budget may choose.

    Args:
        executor: Runs the measurements.
        model: The float model.
        probe_spec: The layers, activations and samples.
        plan: The plan at the base widths.
        max_noise: Widths at which weights of a layer are expected to reach this noise are not
            measured. If None, only the widths of the plan are.
        progress: Called with the share that is done.
        least_bits: The fewest bits of activations; by default the base width.
    """
    config = probe_spec.config
    weight_specs, activation_specs = ({}, {}) if max_noise is None else select_variable_specs(plan)
    groups = group_linked(plan.weights, get_weight_values)
    queries = [
        partial(
            _estimate_weight_noise,
            layers=layers,
            spec=plan.weights[layers[0]],
            max_noise=max_noise if layers[0] in weight_specs else None,
            config=config,
        )
        for layers in groups
    ]
    measured, by_group = measure_sensitivity(executor, model, probe_spec, queries, progress)
    activations: dict[ActivationTensor, dict[int, float]] = {}
    for tensor, (noise, *narrow) in measured.items():
        bits = plan.activations[tensor].bits
        if tensor not in activation_specs:
            activations[tensor] = {bits: noise}
            continue
        widths = sorted({*config.budget.activation_widths, bits})
        wide = {width: noise * _NOISE_PER_BIT ** (bits - width) for width in widths}
        least = config.budget.base_bits if least_bits is None else least_bits
        activations[tensor] = interpolate_noise(noise, narrow, least, config.budget) | wide
    weights: dict[TargetNode, dict[int, float]] = {}
    for layers, noises in zip(groups, by_group, strict=True):
        part = {bits: noise / len(layers) for bits, noise in noises.items()}
        weights.update(dict.fromkeys(layers, part))
    return NoiseTable(weights, activations)


def interpolate_noise(
    noise: float, narrow: Sequence[float], least_bits: int, config: BudgetConfig
) -> dict[int, float]:
    """Return the noise of an activation at widths below the base width.

    Args:
        noise: The noise at the base width.
        narrow: The noise at `least_bits`, if it was measured.
        least_bits: The fewest bits.
        config: Has the base width.
    """
    base = config.base_bits
    largest = max(noise, *narrow) if narrow else noise * _NOISE_PER_BIT ** (base - least_bits)
    noise = noise or largest * _NOISE_PER_BIT ** (least_bits - base)
    if not noise:
        return dict.fromkeys(range(least_bits, base), math.inf)
    return {
        bits: noise * (largest / noise) ** ((base - bits) / (base - least_bits))
        for bits in range(least_bits, base)
    }


def _estimate_weight_noise(
    probe: SensitivityProbe,
    layers: Sequence[TargetNode],
    spec: QuantSpec,
    max_noise: float | None,
    config: QuantizeConfig,
) -> dict[int, float]:
    """Return the noise of weights by width; only at their own width if `max_noise` is None."""
    if max_noise is None:
        return {spec.bits: probe.measure_weights(layers, spec)[0]}
    base, limits = config.budget.base_bits, config.sensitivity
    errors: dict[int, float] = {}
    log_factors: list[float] = []
    for bits in limits.measured_widths:
        noise, errors[bits] = probe.measure_weights(layers, set_width(spec, bits))
        if not noise and bits == base:
            return {
                width: 0.0 if width >= base else math.inf for width in config.budget.weight_widths
            }
        if noise and errors[bits] and (noise < limits.max_additive_noise or not log_factors):
            log_factors.append(math.log(noise / errors[bits]))
        if noise * limits.growth_per_width >= max_noise:
            break
    for bits in limits.error_widths:
        if bits not in errors:
            errors[bits] = probe.compute_weight_error(layers, set_width(spec, bits))
    for bits in config.budget.weight_widths:
        if bits > base:
            errors[bits] = errors[base] * _NOISE_PER_BIT ** (base - bits)
        elif bits not in errors:
            errors[bits] = math.sqrt(errors[bits - 1] * errors[bits + 1])
    factor = math.exp(sum(log_factors) / len(log_factors)) if log_factors else 0.0
    return {bits: error * factor for bits, error in errors.items()}
