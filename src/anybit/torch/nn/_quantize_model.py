# SPDX-License-Identifier: Apache-2.0
"""Quantization of the layers of a whole model by a specification."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anybit.text import join_names
from anybit.torch.nn._attention import QuantMultiheadAttention
from anybit.torch.nn._layers import (
    QuantConv1d,
    QuantConv2d,
    QuantConvTranspose2d,
    QuantEmbedding,
    QuantizedLayer,
    QuantLinear,
)
from anybit.torch.nn._quantizers import Quantizer
from anybit.torch.nn._recurrent import QuantGRU, QuantLSTM, QuantRNN
from anybit.torch.nn._report import (
    FloatOperation,
    FloatWeights,
    find_float_operations,
    find_float_weights,
    format_percentage,
)
from anybit.torch.nn._specification import Roles, plan
from anybit.torch.nn._words import quantizer as make_quantizer

LAYERS: dict[type[torch.nn.Module], type[QuantizedLayer]] = {
    torch.nn.Linear: QuantLinear,
    torch.nn.Conv1d: QuantConv1d,
    torch.nn.Conv2d: QuantConv2d,
    torch.nn.ConvTranspose2d: QuantConvTranspose2d,
    torch.nn.Embedding: QuantEmbedding,
    torch.nn.LSTM: QuantLSTM,
    torch.nn.GRU: QuantGRU,
    torch.nn.RNN: QuantRNN,
    torch.nn.MultiheadAttention: QuantMultiheadAttention,
}

_KEYWORDS = {
    "weight": "weight_quantizer",
    "bias": "bias_quantizer",
    "activation": "input_quantizer",
    "output": "output_quantizer",
}
_ACTIVATIONS = {"input_quantizer", "output_quantizer"}

NamedLayer = tuple[torch.nn.Module, list[str]]
"""A layer, and all names that it has in the model."""


def quantize_model(
    model: torch.nn.Module,
    spec: Mapping[str, Any],
    *,
    inplace: bool = False,
    strict: bool = False,
) -> torch.nn.Module:
    """Give quantizers to the layers of a model.

    Layers are Linear, Conv1d, Conv2d, ConvTranspose2d, Embedding, LSTM, GRU, RNN and
    MultiheadAttention. They become `anybit.torch.nn.QuantLinear` and so on in place: parameters,
    names, hooks, tied weights, training mode, dtype and device stay. A quantizer for which a layer
    has no use, such as one for the indices of an Embedding, is left out. Subclasses of these types
    stay as they are, because they may compute something else. `TransformerEncoderLayer` loses its
    fast path of eval mode, which never calls its layers.

    Functional operations such as `x + y` have no module that could get a quantizer. Where
    activations are quantized, a warning names them, and the module to call instead: `QuantAdd`,
    `QuantConcat`, `QuantMatMul` or `QuantScaledDotProductAttention`. They are found by tracing each
    `forward` with torch.fx, with default arguments; nothing is reported of a forward that cannot be
    traced.

    Args:
        model: The model in floating point. It may be one layer.
        spec: A mapping with these keys, all optional. Quantizers are described by words, as in
            `anybit.torch.nn.quantizer`; "none" stands for none.

            * "weight", "bias", "activation", "output": for all layers. Activations are quantized
              where they enter a layer; "output" adds a quantizer where they leave it.
            * "first/last": words for weight and activation of the first and the last layer, in
              the order in which the model registers them, or a mapping of the four keys above. A
              model's input may be negative: words like "int8" are right for both.
            * "layers": a mapping from names or patterns (`blocks.*.proj`) to mappings of the four
              keys. Later entries win over earlier ones, all win over "first/last".
            * "skip": a list of names or patterns of layers that stay as they are, whatever else
              matches them; and of other modules, parameters and functional operations, which are
              then not reported.
        inplace: Whether the model itself is changed. Otherwise a copy is.
        strict: Whether weights and functional operations without a quantizer are an error if they
            are not skipped. Otherwise they are a warning.

    Returns:
        The model with quantizers. Learned and "ema" scales of activations start with the first
        batch in training mode.

    Raises:
        ValueError: Unknown keys or words, a name or pattern that matches no layer, quantizers that
            a layer cannot use together, a model without such layers; with `strict` whatever would
            be a warning. The model is unchanged then.

    Warns:
        UserWarning: Other modules have weights, or functional operations could have quantizers.

    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> spec = {"weight": "int4 per-channel narrow", "activation": "uint4", "first/last": "int8"}
    >>> quantized = quantize_model(model, spec)
    >>> quantized(torch.randn(4, 8)).shape
    torch.Size([4, 2])
    """
    layers = _list_layers(model)
    if not layers:
        types = ", ".join(kind.__name__ for kind in LAYERS)
        done = any(isinstance(module, QuantizedLayer) for module in model.modules())
        also = " that is not quantized already" if done else ""
        raise ValueError(f"the model has no layer of the types {types}{also}: nothing to quantize")
    quantizers, unquantized = _make_quantizers(model, spec, layers)
    _report(model, unquantized, strict)
    if not inplace:
        model = copy.deepcopy(model)
        layers = _list_layers(model)
    for (layer, names), by_keyword in zip(layers, quantizers, strict=True):
        if by_keyword:
            # The object stays, and with it hooks and other references to it.
            layer.__class__ = LAYERS[type(layer)]
            for keyword, quantizer in by_keyword.items():
                quantizer.scale.owner = f"the {keyword} of layer {names[0]!r}"
            layer.attach(**by_keyword)
    _disable_fast_paths(model)
    return model


def _make_quantizers(
    model: torch.nn.Module, spec: Mapping[str, Any], layers: Sequence[NamedLayer]
) -> tuple[list[dict[str, Quantizer]], list[FloatWeights | FloatOperation]]:
    """Return the quantizers of layers by keyword, and what has none and is not skipped."""
    if not isinstance(spec, Mapping):
        raise ValueError(
            f'the specification must be a mapping like {{"weight": "int4"}}, got {spec!r}'
        )
    quantizable = {part for layer, _ in layers for part in layer.modules()}
    others: list[FloatWeights | FloatOperation] = [
        *(weights for weights in find_float_weights(model) if weights.module not in quantizable),
        *find_float_operations(model),
    ]
    plans, unskipped = plan(spec, [names for _, names in layers], [other.names for other in others])
    quantizers = [
        _make_layer_quantizers(layer, names[0], roles)
        for (layer, names), roles in zip(layers, plans, strict=True)
    ]
    if not any(quantizers):
        raise ValueError(f"the specification quantizes nothing: {dict(spec)!r}")
    for (layer, names), by_keyword in zip(layers, quantizers, strict=True):
        _check(layer, names[0], by_keyword)
    has_activations = any(_ACTIVATIONS & by_keyword.keys() for by_keyword in quantizers)
    unquantized = [others[index] for index in unskipped]
    return quantizers, [
        other for other in unquantized if has_activations or isinstance(other, FloatWeights)
    ]


def _report(
    model: torch.nn.Module, unquantized: Sequence[FloatWeights | FloatOperation], strict: bool
) -> None:
    """Warn of weights, with their share, and of operations without a quantizer."""
    weights = [other for other in unquantized if isinstance(other, FloatWeights)]
    operations = [other for other in unquantized if isinstance(other, FloatOperation)]
    sentences = []
    if weights:
        total = sum(weight.numel() for weight in model.parameters() if weight.ndim >= 2)
        floats = {weight for module in weights for weight in module.parameters.values()}
        share = sum(weight.numel() for weight in floats) / total
        names = join_names([str(module) for module in weights])
        sentences.append(
            f"{format_percentage(share)} of the weights stay in floating point: {names}"
        )
    if operations:
        replacements = {
            replacement: join_names(
                [other.name for other in operations if other.replacement == replacement]
            )
            for replacement in dict.fromkeys(other.replacement for other in operations)
        }
        names = "; ".join(f"{names} (use {name})" for name, names in replacements.items())
        sentences.append(
            f"functional operations stay in floating point: {names}; call these modules of "
            "anybit.torch.nn in forward"
        )
    if not sentences:
        return
    text = f'{". ".join(sentences)}. List names under "skip" if this is intended'
    if strict:
        raise ValueError(text)
    warnings.warn(text, stacklevel=3)


def _disable_fast_paths(model: torch.nn.Module) -> None:
    """Make encoders call their layers in eval mode, where they would read weights only."""
    for module in model.modules():
        if not any(isinstance(part, QuantizedLayer) for part in module.modules()):
            continue
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, torch.nn.TransformerEncoder):
            module.use_nested_tensor = False


def _list_layers(model: torch.nn.Module) -> list[NamedLayer]:
    """Return the layers that can be quantized, in order."""
    layers: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) in LAYERS and LAYERS[type(module)].supports(module):
            layers.setdefault(module, []).append(name)
    return list(layers.items())


def _make_layer_quantizers(
    layer: torch.nn.Module, name: str, roles: Roles | None
) -> dict[str, Quantizer]:
    """Return the quantizers of a layer by keyword."""
    quantizers = {}
    for role, words in (roles or {}).items():
        keyword = _KEYWORDS[role]
        if words == "none" or (role == "bias" and getattr(layer, "bias", None) is None):
            continue
        if keyword not in LAYERS[type(layer)].quantizers:
            continue
        try:
            quantizers[keyword] = make_quantizer(words)
        except ValueError as error:
            raise ValueError(f"layer {name!r}, {role}: {error}") from None
    return quantizers


def _check(layer: torch.nn.Module, name: str, quantizers: Mapping[str, Quantizer]) -> None:
    try:
        LAYERS[type(layer)].check(layer, **quantizers)
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None
