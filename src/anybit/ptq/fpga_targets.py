# SPDX-License-Identifier: Apache-2.0
"""Quantizers that FPGA compilers support, by the rules of `anybit.check` for the target."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from anybit.errors import OptionError
from anybit.onnx.checks.checking import check
from anybit.onnx.cleaning import clean
from anybit.onnx.graph.op_traits import OpTrait, list_operators
from anybit.ptq.graph.targets import ActivationTensor
from anybit.ptq.plan import FLOAT, QuantPlan
from anybit.quant_types.spec import QuantSpec
from anybit.quant_types.spec_parser import BipolarFormat, IntegerFormat
from anybit.quant_types.suggestions import describe_unknown

# Maxima and data movement: a quantizer that does not decrease gives the same values before them.
_MOVES = list_operators(OpTrait.RESHAPE) | {"Identity", "MaxPool", "Transpose"}
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
    """Refuse a target without rules.

    Raises:
        OptionError: There is no such target.
    """
    if target is not None and target not in _TARGETS:
        raise OptionError(describe_unknown("target", target, list(_TARGETS)))


def adapt_plan(plan: QuantPlan, target: str) -> QuantPlan:
    """Return the plan with quantizers that the target takes, of the same widths.

    Zero-points are 0. Weights are signed and narrow. Activations have one scale; they are unsigned
    after Relu and signed elsewhere, and their quantizer stands directly after Relu where only
    maxima and data movement lie between. Channels are not scaled against weights.

    Raises:
        OptionError: The target does not support a format.
    """
    rules = _TARGETS[target]
    if len({layer for source in plan.activations for layer, _ in source.readers}) < len(
        [layer for layer in plan.layers if layer.weights]
    ):
        raise OptionError(
            f"target {target}: activations must be integers; give data, and a width such as uint8 "
            f"instead of {FLOAT}"
        )
    weights = {
        layer: _weight(scheme, rules, f"target {target}: {layer.name}")
        for layer, scheme in plan.weights.items()
    }
    activations = {}
    for source, scheme in plan.activations.items():
        source = _after_relu(source)
        where = f"target {target}: {source.value.name}"
        activations[source] = _activation(scheme, rules, _is_rectified(source), where)
    return replace(plan, weights=weights, activations=activations)


def check_result(target: str, model: ir.Model) -> tuple[str, ...]:
    """Return one remark per error that a check for the target finds after cleaning for it."""
    cleaned = clean(model, target=target).model
    errors = [finding for finding in check(cleaned, target) if finding.severity == "error"]
    return tuple(f"{target}: {finding}" for finding in errors)


def _weight(scheme: QuantSpec, rules: _Rules, where: str) -> QuantSpec:
    if isinstance(scheme.format, BipolarFormat) and rules.bipolar:
        return scheme
    bits = _bits(scheme, where)
    if bits < 2:
        raise OptionError(f"{where}: weights are {scheme.text!r}; use int2 or more, or ternary")
    kind = scheme.format if scheme.text.startswith("ternary") else IntegerFormat(bits, signed=True)
    per_channel = scheme.per_channel and not rules.power_of_two
    power_of_two = scheme.power_of_two or rules.power_of_two
    return replace(
        scheme,
        format=kind,
        text=_words(scheme, kind, power_of_two, None if per_channel else "per-tensor"),
        per_channel=per_channel,
        narrow=True,
        power_of_two=power_of_two,
        asymmetric=False,
    )


def _activation(scheme: QuantSpec, rules: _Rules, rectified: bool, where: str) -> QuantSpec:
    bits = _bits(scheme, where)
    if bits < 2 and not rectified:
        raise OptionError(f"{where}: signed activations are {scheme.text!r}; use 2 bits or more")
    kind = IntegerFormat(bits, signed=not rectified)
    power_of_two = scheme.power_of_two or rules.power_of_two
    return replace(
        scheme,
        format=kind,
        text=_words(scheme, kind, power_of_two, None),
        narrow=False,
        power_of_two=power_of_two,
        asymmetric=False,
    )


def _bits(scheme: QuantSpec, where: str) -> int:
    """Return the width of integers without a zero-point and with one scale per tensor or channel.

    Raises:
        OptionError: It is another format.
    """
    if not isinstance(scheme.format, IntegerFormat) or scheme.block_size:
        raise OptionError(f"{where}: {scheme.text!r} is not supported; use integers, such as int8")
    if "asymmetric" in scheme.text.split():
        raise OptionError(f"{where}: {scheme.text!r}: zero-points must be 0; leave asymmetric out")
    return scheme.bits


def _words(scheme: QuantSpec, kind: object, power_of_two: bool, granularity: str | None) -> str:
    first, *others = scheme.text.split()
    first = first if first == "ternary" else str(kind)
    dropped = {"narrow", "power-of-two"} | (_GRANULARITIES if granularity else set())
    words = [first, *(word for word in others if word not in dropped)]
    words += [granularity] if granularity else []
    return " ".join([*words, "power-of-two"] if power_of_two else words)


def _after_relu(source: ActivationTensor) -> ActivationTensor:
    """Return the source with its quantizer directly after the Relu that its elements come from."""
    plain = replace(source, smooth=False)
    if source.sites:
        return plain
    value, use = source.value, None
    while (producer := value.producer()) is not None and _moves(producer):
        if value is not source.value and len(value.uses()) != 1:
            return plain
        before = producer.inputs[0]
        if before is None or producer.outputs[0].is_graph_output():
            return plain
        value, use = before, (producer, 0)
    if use is None or producer is None or producer.op_type != "Relu":
        return plain
    if not _only_layers_read(source):
        return plain
    return replace(plain, sites=((value, (use,)),))


def _moves(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _MOVES and len(node.outputs) == 1


def _only_layers_read(source: ActivationTensor) -> bool:
    """Return whether only its layers use an activation, so that it may be quantized earlier."""
    return set(source.value.uses()) == {(layer.node, index) for layer, index in source.readers}


def _is_rectified(source: ActivationTensor) -> bool:
    values = [value for value, _ in source.sites] or [source.value]
    producers = [value.producer() for value in values]
    return all(producer is not None and producer.op_type == "Relu" for producer in producers)
