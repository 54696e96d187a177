# SPDX-License-Identifier: Apache-2.0
"""Quantizers that FPGA compilers support, by the rules of `anybit.check` for the target."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from anybit.errors import OptionError
from anybit.onnx.checks.checking import check
from anybit.onnx.cleaning import clean
from anybit.onnx.graph.op_traits import OpTrait, is_onnx_op, list_operators
from anybit.ptq.graph.targets import ActivationTensor
from anybit.ptq.plan import FLOAT, QuantPlan
from anybit.quant_types.spec import QuantSpec
from anybit.quant_types.spec_parser import BipolarFormat, IntegerFormat, NumberFormat
from anybit.quant_types.suggestions import describe_unknown

# Operators that commute with an increasing quantizer: maxima and data movement.
_DATA_MOVEMENT = list_operators(OpTrait.RESHAPE) | {"Identity", "MaxPool", "Transpose"}
_GRANULARITIES = {"per-channel", "per-tensor"}


@dataclass(frozen=True)
class _Rules:
    """Quantizers that a compiler supports.

    Attributes:
        power_of_two: Whether all scales are powers of two, one per tensor.
        bipolar: Whether weights may be -1 and 1 times a scale.
    """

    power_of_two: bool
    bipolar: bool


_TARGETS: Mapping[str, _Rules] = {
    "finn": _Rules(power_of_two=False, bipolar=True),
    "hls4ml": _Rules(power_of_two=True, bipolar=False),
}


def check_target(target: str | None) -> None:
    """Check that there are rules for a target.

    Raises:
        OptionError: There is no such target.
    """
    if target is not None and target not in _TARGETS:
        raise OptionError(f"target={target!r}: {describe_unknown('value', target, list(_TARGETS))}")


def adapt_plan(plan: QuantPlan, target: str) -> QuantPlan:
    """Return the plan with quantizers of the same widths that the target supports.

    Zero-points are 0. Weights are signed and narrow. Activations have one scale; they are unsigned
    after Relu and signed elsewhere. The quantizer stands directly after Relu if there are only
    maxima and data movement before the layer. Channels are not scaled against weights.

    Raises:
        OptionError: The target does not support a format.
    """
    rules = _TARGETS[target]
    layers = {layer for activation in plan.activations for layer, _ in activation.readers}
    if any(layer.weights and layer not in layers for layer in plan.layers):
        raise OptionError(
            f"target={target!r}: activations must be integers, not {FLOAT}; add data='FILE.npz' "
            "and activations='uint8'"
        )
    weights = {
        layer: _adapt_weight(spec, rules, f"target={target!r}: {layer.name}")
        for layer, spec in plan.weights.items()
    }
    activations = {}
    for activation, spec in plan.activations.items():
        moved = _move_after_relu(activation)
        name = f"target={target!r}: {moved.value.name}"
        activations[moved] = _adapt_activation(spec, rules, _is_rectified(moved), name)
    return replace(plan, weights=weights, activations=activations)


def check_result(target: str, model: ir.Model) -> tuple[str, ...]:
    """Return one remark per error that a check for the target finds after cleaning for it."""
    cleaned = clean(model, target=target).model
    errors = [finding for finding in check(cleaned, target) if finding.severity == "error"]
    return tuple(f"{target}: {finding}" for finding in errors)


def _adapt_weight(spec: QuantSpec, rules: _Rules, name: str) -> QuantSpec:
    if isinstance(spec.format, BipolarFormat) and rules.bipolar:
        return spec
    bits = _get_width(spec, name)
    if bits < 2:
        raise OptionError(f"{name}: weights are {spec.text!r}; use int2 or more, or ternary")
    number_format = (
        spec.format if spec.text.startswith("ternary") else IntegerFormat(bits, signed=True)
    )
    per_channel = spec.per_channel and not rules.power_of_two
    adapted = _replace_format(spec, number_format, rules, None if per_channel else "per-tensor")
    return replace(adapted, per_channel=per_channel, narrow=True)


def _adapt_activation(spec: QuantSpec, rules: _Rules, rectified: bool, name: str) -> QuantSpec:
    bits = _get_width(spec, name)
    if bits < 2 and not rectified:
        raise OptionError(f"{name}: signed activations are {spec.text!r}; use 2 bits or more")
    number_format = IntegerFormat(bits, signed=not rectified)
    return replace(_replace_format(spec, number_format, rules, None), narrow=False)


def _get_width(spec: QuantSpec, name: str) -> int:
    """Return the width of integers without a zero-point and with one scale per tensor or channel.

    Raises:
        OptionError: The spec has another format.
    """
    if not isinstance(spec.format, IntegerFormat) or spec.block_size:
        raise OptionError(f"{name}: {spec.text!r} is not supported; use integers, such as int8")
    if spec.dynamic:
        raise OptionError(f"{name}: {spec.text!r}: scales must be static; leave dynamic out")
    if "asymmetric" in spec.text.split():
        raise OptionError(f"{name}: {spec.text!r}: zero-points must be 0; leave asymmetric out")
    return spec.bits


def _replace_format(
    spec: QuantSpec, number_format: NumberFormat, rules: _Rules, granularity: str | None
) -> QuantSpec:
    """Return a symmetric spec with another format, and with the scales and text that belong to it.

    `granularity` is the word for it in the text; None keeps that of the spec.
    """
    power_of_two = spec.power_of_two or rules.power_of_two
    text = _format_spec(spec.text, number_format, power_of_two, granularity)
    return replace(
        spec, format=number_format, text=text, power_of_two=power_of_two, asymmetric=False
    )


def _format_spec(
    text: str, number_format: NumberFormat, power_of_two: bool, granularity: str | None
) -> str:
    """Return the text of a spec with another format, scale and granularity."""
    first, *others = text.split()
    first = first if first == "ternary" else str(number_format)
    dropped = {"narrow", "power-of-two"} | (_GRANULARITIES if granularity else set())
    words = [first, *(word for word in others if word not in dropped)]
    words += [granularity] if granularity else []
    return " ".join([*words, "power-of-two"] if power_of_two else words)


def _move_after_relu(activation: ActivationTensor) -> ActivationTensor:
    """Return the activation, quantized directly after the Relu that its elements come from."""
    unscaled = replace(activation, smooth=False)
    if activation.sites:
        return unscaled
    value, use = activation.value, None
    while (producer := value.producer()) is not None and _is_data_movement(producer):
        if value is not activation.value and len(value.uses()) != 1:
            return unscaled
        moved = producer.inputs[0]
        if moved is None or producer.outputs[0].is_graph_output():
            return unscaled
        value, use = moved, (producer, 0)
    if use is None or producer is None or producer.op_type != "Relu":
        return unscaled
    if not _has_only_layers_as_readers(activation):
        return unscaled
    return replace(unscaled, sites=((value, (use,)),))


def _is_data_movement(node: ir.Node) -> bool:
    return is_onnx_op(node, *_DATA_MOVEMENT) and len(node.outputs) == 1


def _has_only_layers_as_readers(activation: ActivationTensor) -> bool:
    uses = {(layer.node, index) for layer, index in activation.readers}
    return set(activation.value.uses()) == uses


def _is_rectified(activation: ActivationTensor) -> bool:
    values = [value for value, _ in activation.sites] or [activation.value]
    producers = [value.producer() for value in values]
    return all(producer is not None and producer.op_type == "Relu" for producer in producers)
