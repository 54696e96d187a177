# SPDX-License-Identifier: Apache-2.0
"""Quantization of the activations of a model whose weights are quantized already."""

from collections.abc import Iterable
from dataclasses import replace

from anybit.errors import OptionError
from anybit.ptq.graph.stored_weights import compute_sums_in_float32, describe_stored_weight
from anybit.ptq.graph.targets import TargetNode
from anybit.ptq.options import QuantizeOptions
from anybit.ptq.plan import QuantPlan
from anybit.text import format_count

_OTHERWISE = "or quantize the float model from which it was made"


def adapt_options(
    options: QuantizeOptions, name: str, *, weights: str | None, scales: str | None
) -> QuantizeOptions:
    """Return the options for a model with quantized weights: these stay, like float weights.

    Args:
        options: The options.
        name: The name of the model in messages.
        weights: The spec of float weights; None keeps them float.
        scales: The restriction of scales.

    Raises:
        OptionError: An option needs float weights, or activations are float or static.
    """
    contradictions = {
        "integer_only=True": options.integer_only,
        f"target={options.target!r}": options.target is not None,
        f"scales={scales!r}": scales is not None,
        "budget": options.budget is not None,
        "sensitivity=True": options.sensitivity,
        "activations='auto'": options.dynamic is not None,
    }
    for option, is_set in contradictions.items():
        if is_set:
            raise OptionError(
                f"{option}: the weights of {name} are quantized already, and stay as they are; "
                f"use only activations='int8 dynamic', {_OTHERWISE}"
            )
    specs = options.specs
    pairs = [specs.default, *(layer.pair for layer in specs.by_layer.values())]
    activations = [spec for _, spec in pairs if spec is not None]
    if not activations:
        raise OptionError(
            f"the weights of {name} are quantized already; add activations='int8 dynamic' to "
            f"quantize its activations, {_OTHERWISE}"
        )
    for spec in activations:
        if not spec.dynamic:
            raise OptionError(
                f"activations={spec.text!r}: the weights of {name} are quantized already, and its "
                f"activations can have dynamic scales only: use 'int8 dynamic', {_OTHERWISE}"
            )
    if weights is not None:
        return options
    default = None, specs.default[1]
    return replace(options, specs=replace(specs, default=default, keeps_float_weights=True))


def keep_stored_weights(plan: QuantPlan, name: str, *, weights: str | None) -> tuple[str, ...]:
    """Prepare layers with quantized weights for quantized activations; return remarks.

    Args:
        plan: The plan.
        name: The name of the model in messages.
        weights: The requested spec of weights; None without one.

    Raises:
        OptionError: A spec of weights was requested, and no layer has float weights.
    """
    if weights is not None and not plan.weights:
        raise OptionError(
            f"weights={weights!r}: the weights of {name} are quantized already, and stay as they "
            f"are; leave weights out, {_OTHERWISE}"
        )
    layers = [layer for layer in plan.layers if layer.stored]
    rounded = sum([compute_sums_in_float32(layer.node) for layer in layers])
    remarks = [f"Quantized weights stay as they are: {_count(layers)}."] if layers else []
    if rounded:
        remarks.append(
            f"accuracy_level of {format_count(rounded, 'MatMulNBits node')} becomes 1 (float32): "
            "their inputs are quantized by nodes of their own."
        )
    return tuple(remarks)


def _count(layers: Iterable[TargetNode]) -> str:
    """Return the numbers of layers by operator and width."""
    weights = [
        describe_stored_weight(layer.node, index) for layer in layers for index in layer.stored
    ]
    kinds = [f"{w.operator} of {w.bits} bits" for w in weights if w is not None]
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
