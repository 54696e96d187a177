# SPDX-License-Identifier: Apache-2.0
"""Assignment of specs to layers: defaults for all of them, and specs by name or pattern."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import onnx_ir as ir

from anybit.errors import ModelError, OptionError
from anybit.name_patterns import match_names
from anybit.onnx.graph.names import get_all_names
from anybit.onnx.graph.walk import iter_nodes
from anybit.ptq.algorithms.round_to_nearest import check_weights
from anybit.ptq.algorithms.shared_weights import get_weight_values, group_linked
from anybit.ptq.graph.outputs import is_output_node
from anybit.ptq.graph.quantizer_sites import keep_input_scales, tie_grids
from anybit.ptq.graph.states import tie_states
from anybit.ptq.graph.targets import ActivationTensor, TargetNode, Targets
from anybit.quant_types.block_formats import BlockFormat
from anybit.quant_types.spec import QuantSpec, parse_quant_spec
from anybit.quant_types.spec_parser import BipolarFormat, IntegerFormat
from anybit.text import escape_name, join_names

FLOAT = "float"
"""The spec of a layer or an activation without a quantizer."""

SpecPair: TypeAlias = tuple[QuantSpec | None, QuantSpec | None]
"""The specs of weights and of activations; None stands for float."""


@dataclass(frozen=True)
class LayerSpecs:
    """The specs of the layers that a pattern matches.

    Attributes:
        text: The specs as text.
        pair: The specs of weights and activations.
        weights_only: Whether the text has no spec of activations, so that these keep theirs.
    """

    text: str
    pair: SpecPair
    weights_only: bool


@dataclass(frozen=True)
class SpecOptions:
    """Parsed specs of `quantize`.

    Attributes:
        default: The specs of all layers that no pattern matches.
        by_layer: Specs by name or pattern; later ones win.
        keep: Names and patterns of nodes that stay float.
        outputs: The spec of the model's outputs; None for float.
        states: Outputs by the inputs that take them in the next step.
        keeps_float_weights: Whether weights that are float stay float by default, and the
            activations of their layers, because the model has quantized weights.
    """

    default: SpecPair
    by_layer: Mapping[str, LayerSpecs]
    keep: Sequence[str]
    outputs: QuantSpec | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    keeps_float_weights: bool = False

    @property
    def has_dynamic_integers(self) -> bool:
        """Return whether scales of some activations in integers are computed at run time."""
        pairs = (self.default, *(specs.pair for specs in self.by_layer.values()))
        specs = (*(activations for _, activations in pairs), self.outputs)
        return any(
            spec is not None and spec.dynamic and isinstance(spec.format, IntegerFormat)
            for spec in specs
        )


@dataclass(frozen=True)
class QuantPlan:
    """The specs of everything that is quantized.

    Attributes:
        layers: The layers with quantized weights or activations, in order.
        weights: The specs of the weights of layers; other weights stay float.
        activations: The specs of activations.
        named: Layers whose specs were requested by name, and outputs.
        skipped: Layers that stay float, with the reasons.
        remarks: Remarks on requests that contradict one another.
    """

    layers: tuple[TargetNode, ...]
    weights: Mapping[TargetNode, QuantSpec]
    activations: Mapping[ActivationTensor, QuantSpec]
    named: frozenset[TargetNode]
    skipped: Mapping[str, str]
    remarks: tuple[str, ...]


def parse_specs(
    weights: str,
    activations: str,
    by_layer: Mapping[str, str],
    keep: Sequence[str],
    outputs: str | None,
    power_of_two: bool,
) -> SpecOptions:
    """Parse the specs of `quantize`.

    Args:
        weights: The spec of weights.
        activations: The spec of activations, or "float".
        by_layer: Spec of weights, or of weights and activations (`a/b`), by name or pattern.
        keep: Names and patterns of nodes that stay float.
        outputs: The spec of the model's outputs; None for float.
        power_of_two: Whether all scales are powers of two.

    Raises:
        OptionError: A spec has a fault.
    """
    return SpecOptions(
        _parse_pair(weights, activations, power_of_two),
        {
            pattern: _parse_layer_specs(pattern, text, power_of_two)
            for pattern, text in by_layer.items()
        },
        [keep] if isinstance(keep, str) else keep,
        _parse_pair(FLOAT, outputs or FLOAT, power_of_two, ("", "outputs="))[1],
    )


def _parse_layer_specs(pattern: str, text: str, power_of_two: bool) -> LayerSpecs:
    if not isinstance(text, str):
        raise OptionError(f'layers[{pattern!r}]: use a spec like "int4/uint8", not {text!r}')
    weights, both, activations = text.partition("/")
    labels = f"layers[{pattern!r}]: weights ", f"layers[{pattern!r}]: activations "
    pair = _parse_pair(weights, activations if both else FLOAT, power_of_two, labels)
    return LayerSpecs(text, pair, not both and pair[0] is not None)


def _parse_pair(
    weights: str,
    activations: str,
    power_of_two: bool,
    labels: tuple[str, str] = ("weights=", "activations="),
) -> SpecPair:
    """Return the specs of weights and activations. The labels stand before them in messages."""
    pair = (
        None if weights == FLOAT else parse_quant_spec(weights, "weights", labels[0]),
        None if activations == FLOAT else parse_quant_spec(activations, "activations", labels[1]),
    )
    return (_restrict_scales(pair[0]), _restrict_scales(pair[1])) if power_of_two else pair


def _restrict_scales(spec: QuantSpec | None) -> QuantSpec | None:
    """Return the spec with power-of-two scales."""
    if spec is None:
        return None
    if not isinstance(spec.format, BlockFormat):
        if spec.dynamic:
            raise OptionError(
                f"scales='power-of-two': {spec.text!r} has other scales; use mxint8 instead"
            )
        return replace(spec, power_of_two=True)
    if spec.format.second_scale:
        raise OptionError(
            f"scales='power-of-two': {spec.format} has other scales; use mxfp4 instead"
        )
    return spec


def assign_specs(model: ir.Model, targets: Targets, options: SpecOptions) -> QuantPlan:
    """Return the plan with a spec for the weights and activations of each layer.

    A weight or activation of several layers gets one spec, the widest that one of them requests.

    Args:
        model: The model.
        targets: The layers that can be quantized.
        options: The specs.

    Raises:
        OptionError: A pattern matches nothing.
    """
    outputs = [layer for layer in targets.layers if is_output_node(layer.node)]
    layers = [layer for layer in targets.layers if layer not in outputs]
    pairs = dict.fromkeys(layers, options.default)
    if options.keeps_float_weights:
        pairs |= dict.fromkeys([layer for layer in layers if layer.weights], (None, None))
    named = set(outputs)
    for pattern, specs in options.by_layer.items():
        matched = [
            layers[index] for index in sorted(_match(pattern, layers, f"layers[{pattern!r}]"))
        ]
        _set_specs(pairs, matched, pattern, specs)
        named.update(matched)
    for index in _match_kept(model, layers, options.keep):
        pairs[layers[index]] = (None, None)
    pairs |= dict.fromkeys(outputs, (None, options.outputs))
    requests = {layer: spec for layer, (spec, _) in pairs.items() if layer.weights and spec}
    weights, weight_remarks = _unify_weights(requests)
    requests = {layer: spec for layer, (_, spec) in pairs.items() if spec}
    sources, grid_remarks = tie_grids(targets, requests)
    if outputs:
        sources = tie_states(model, keep_input_scales(sources), options.states)
    activations, activation_remarks = _unify_activations(sources, requests)
    quantized = tuple(layer for layer in targets.layers if layer in weights or layer in requests)
    skipped = dict(targets.skipped)
    for layer in layers:
        if layer not in weights and layer not in requests:
            skipped[layer.name] = _explain_float(layer, pairs[layer], options)
    remarks = (*targets.remarks, *grid_remarks, *weight_remarks, *activation_remarks)
    return QuantPlan(quantized, weights, activations, frozenset(named), skipped, remarks)


def _explain_float(layer: TargetNode, pair: SpecPair, options: SpecOptions) -> str:
    """Return why a layer stays float, given its specs."""
    if pair != (None, None):
        return "it multiplies activations, which stay float"
    if options.keeps_float_weights and layer.weights:
        return "its weights are float; weights='int8' quantizes them, too"
    return "float was requested"


def check_plan(plan: QuantPlan, name: str, *, integer_only: bool, has_data: bool) -> None:
    """Check that there are layers to quantize, and everything that their specs need.

    Args:
        plan: The plan.
        name: The name of the model in messages.
        integer_only: Whether weights and activations must be integers of at most 8 bits.
        has_data: Whether there are data.

    Raises:
        ModelError: There is no layer to quantize, or a weight holds NaN or infinity.
        OptionError: A spec is not an integer, or needs data.
    """
    if integer_only:
        _check_integers(plan)
    if not any(layer.weights or layer.stored for layer in plan.layers):
        skipped = list(plan.skipped.items())[:4]
        reasons = "; ".join(f"{layer}: {reason}" for layer, reason in skipped)
        raise ModelError(
            f"{name} has no layer to quantize: {reasons or 'nothing in it multiplies weights'}"
        )
    if not has_data and not all(spec.dynamic for spec in plan.activations.values()):
        raise OptionError(
            "activations need calibration data for their ranges: add data='FILE.npz'; or use "
            "activations='int8 dynamic' (scales at run time) or activations='float'"
        )
    check_weights(plan.layers)


def _check_integers(plan: QuantPlan) -> None:
    for name, specs in (("activations", plan.activations), ("weights", plan.weights)):
        others = [spec.text for spec in specs.values() if not is_small_integer(spec)]
        if others or not specs:
            raise OptionError(
                f"integer_only=True: {name} must be integers of at most 8 bits with static "
                f"scales, such as int8, not {others[0] if others else FLOAT}"
            )


def is_small_integer(spec: QuantSpec) -> bool:
    """Return whether a spec is an integer of at most 8 bits with static scales, no blocks."""
    return (
        isinstance(spec.format, IntegerFormat | BipolarFormat)
        and spec.bits <= 8
        and not spec.block_size
        and not spec.dynamic
    )


def _set_specs(
    pairs: dict[TargetNode, SpecPair], layers: Sequence[TargetNode], pattern: str, specs: LayerSpecs
) -> None:
    """Give layers the specs of their pattern."""
    for layer in layers:
        if layer.stored and specs.pair[0] is not None:
            raise OptionError(
                f"layers[{pattern!r}]: the weights of {layer.name!r} are quantized already; "
                f'use "{FLOAT}/ACTIVATIONS" for its activations'
            )
    if specs.weights_only and not any(layer.weights for layer in layers):
        raise OptionError(
            f"layers[{pattern!r}]: no match has weights; "
            f'use "{FLOAT}/{specs.text}" to quantize its activations'
        )
    for layer in layers:
        weights, activations = specs.pair
        pairs[layer] = (weights, pairs[layer][1]) if specs.weights_only else (weights, activations)


def _match_kept(model: ir.Model, layers: Sequence[TargetNode], keep: Sequence[str]) -> set[int]:
    """Return the indices of layers that stay float. Patterns may match other nodes, too."""
    layer_nodes = {layer.node for layer in layers}
    others = [get_all_names(node) for node in iter_nodes(model.graph) if node not in layer_nodes]
    matched: set[int] = set()
    for pattern in keep:
        matched |= _match(pattern, layers, f"keep={pattern!r}", others)
    return {index for index in matched if index < len(layers)}


def _match(
    pattern: str, layers: Sequence[TargetNode], where: str, others: Sequence[Sequence[str]] = ()
) -> set[int]:
    try:
        names = [*(get_all_names(layer.node) for layer in layers), *others]
        return match_names(pattern, names, where)
    except ValueError as error:
        raise OptionError(str(error)) from None


def _unify_weights(
    requests: Mapping[TargetNode, QuantSpec],
) -> tuple[dict[TargetNode, QuantSpec], list[str]]:
    """Return one spec per weight that layers share, the widest, and remarks on narrower ones."""
    specs, remarks = dict(requests), []
    for layers in group_linked(requests, get_weight_values):
        name = str(get_weight_values(layers[0])[0].name)
        spec, remark = _select_widest(name, {layer: requests[layer] for layer in layers})
        specs.update(dict.fromkeys(layers, spec))
        remarks += remark
    return specs, remarks


def _unify_activations(
    activations: Iterable[ActivationTensor], requests: Mapping[TargetNode, QuantSpec]
) -> tuple[dict[ActivationTensor, QuantSpec], list[str]]:
    """Return one spec per activation, the widest, and remarks on narrower ones."""
    specs, remarks = {}, []
    for activation in activations:
        requested = {layer: requests[layer] for layer, _ in activation.readers}
        specs[activation], remark = _select_widest(str(activation.value.name), requested)
        remarks += remark
    return specs, remarks


def _select_widest(
    name: str, requests: Mapping[TargetNode, QuantSpec]
) -> tuple[QuantSpec, list[str]]:
    """Return the widest of several specs, the first of equal ones, and the remark on the others."""
    widest = max(requests.values(), key=lambda spec: spec.bits)
    if len({spec.text for spec in requests.values()}) == 1:
        return widest, []
    requested = join_names(
        f"{escape_name(layer.name)} asks for {spec.text}" for layer, spec in requests.items()
    )
    return widest, [
        f"{escape_name(name)} gets {widest.text}, the widest for what reads it: {requested}"
    ]
