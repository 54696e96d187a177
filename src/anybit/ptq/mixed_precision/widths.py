# SPDX-License-Identifier: Apache-2.0
"""Bit widths of a plan: which of them a budget may change, and the plan with other widths."""

from dataclasses import replace

from anybit.errors import ModelError
from anybit.ptq.algorithms.shared_weights import get_weight_values, group_linked
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.mixed_precision.pareto import Widths
from anybit.ptq.plan import QuantPlan
from anybit.quant_types.spec import QuantSpec
from anybit.quant_types.spec_parser import IntegerFormat

FLOAT_BITS = 32


def set_width(spec: QuantSpec, bits: int) -> QuantSpec:
    """Return an integer spec with another width.

    Raises:
        TypeError: The format is not an integer.
    """
    if not isinstance(spec.format, IntegerFormat):
        raise TypeError(f"{spec.text!r}: only integers have other widths")
    number_format = IntegerFormat(bits, spec.format.signed)
    options = spec.text.split()[1:]
    return replace(
        spec,
        format=number_format,
        text=" ".join([str(number_format), *options]),
        narrow=spec.narrow and bits > 1,
    )


def set_widths(plan: QuantPlan, widths: Widths) -> QuantPlan:
    """Return a plan with other widths of some weights and activations."""
    weights, activations = dict(plan.weights), dict(plan.activations)
    for target, bits in widths:
        if isinstance(target, ActivationTensor):
            activations[target] = set_width(activations[target], bits)
        else:
            weights[target] = set_width(weights[target], bits)
    return replace(plan, weights=weights, activations=activations)


def select_variable_specs(
    plan: QuantPlan,
) -> tuple[dict[TargetNode, QuantSpec], dict[ActivationTensor, QuantSpec]]:
    """Return the specs of weights and activations whose widths a budget may change.

    These are integers of layers without a spec of their own.

    Raises:
        ModelError: There are no such weights.
    """
    weights = {
        layer: plan.weights[layer]
        for layers in group_linked(plan.weights, get_weight_values)
        for layer in layers
        if plan.named.isdisjoint(layers) and isinstance(plan.weights[layer].format, IntegerFormat)
    }
    activations = {
        tensor: spec
        for tensor, spec in plan.activations.items()
        if isinstance(spec.format, IntegerFormat)
        and not any(layer in plan.named for layer, _ in tensor.readers)
    }
    if not weights:
        raise ModelError(
            "a budget chooses the widths of integers, and no weights are integers; use "
            "--weights int8"
        )
    return weights, activations
