# SPDX-License-Identifier: Apache-2.0
"""Whole models: their layers get quantizers by a specification."""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from anybit.text import listed
from anybit.torch.nn._attention import QuantMultiheadAttention
from anybit.torch.nn._embedding import QuantEmbedding
from anybit.torch.nn._floats import FloatWeights, in_float, percentage
from anybit.torch.nn._functions import QuantizedFunction
from anybit.torch.nn._layers import (
    QuantConv1d,
    QuantConv2d,
    QuantConvTranspose2d,
    QuantizedLayer,
    QuantLinear,
)
from anybit.torch.nn._model_functions import (
    ModelFunctions,
    check_function,
    joined,
    model_functions,
    words_by_kind,
)
from anybit.torch.nn._quantizer import Quantizer
from anybit.torch.nn._recurrent import QuantGRU, QuantLSTM, QuantRNN
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


def quantize_model(
    model: torch.nn.Module,
    spec: Mapping[str, Any],
    *,
    inplace: bool = False,
    strict: bool = False,
) -> torch.nn.Module:
    """Give quantizers to the layers of a model.

    Those are Linear, Conv1d, Conv2d, ConvTranspose2d, Embedding, LSTM, GRU, RNN and
    MultiheadAttention; what of the specification a layer has not, such as a quantizer for the
    indices of an Embedding, it does not get. Parameters, names, hooks, tied weights, training
    mode, dtype and device stay: the layers become `anybit.torch.nn.QuantLinear` and so on where
    they are. Subclasses of these types are left alone, for they may compute something else.
    `TransformerEncoderLayer` loses its fast path of eval mode, which never calls its layers.

    With "functions" in the specification the sums, concatenations and products of activations that
    a `forward` computes by itself become modules `QuantAdd`, `QuantConcat`, `QuantMatMul` and
    `QuantScaledDotProductAttention` of the module that computes them, called `add`, `add_1` and so
    on. Its `forward` is traced for that, for both modes and for arguments given and left out, or
    None where it asks for that (of more than 6 such, each by itself); what else its Python decides
    by, such as an attribute, it has decided then. Sums with parameters or numbers, what may be
    scores or a mask, and most of what is added in place stay in float.

    Args:
        model: The model in float. It may be one layer.
        spec: A mapping with these keys, all optional. Quantizers are described by words, as in
            `anybit.torch.nn.quantizer`; "none" stands for none.

            * "weight", "bias", "activation", "output": for all layers. Activations are quantized
              where they enter a layer; "output" quantizes what leaves it, too.
            * "first/last": words for weight and activation of the first and the last layer, in
              the order in which the model registers them, or a mapping of the four keys above. A
              model's input may be negative: words like "int8" are right for both.
            * "functions": words for what functions of activations read, or a mapping from the kinds
              "add", "concat", "matmul" and "attention" to words. One scale is found for all that a
              sum or a concatenation reads, and one for each factor of a product.
            * "layers": a mapping from names or patterns (`blocks.*.proj`) to mappings of the four
              keys. Later entries win over earlier ones, all win over "first/last". Functions have
              names, too, and of the keys "activation" and "output".
            * "skip": a list of names or patterns of layers and functions that stay as they are,
              whatever else matches them; and of other modules or parameters, of which then nothing
              is said.
        inplace: Whether the model itself is changed. Otherwise a copy is.
        strict: Whether weights that cannot have quantizers, and a `forward` with functions that
            cannot be traced, are an error if they are not skipped. Otherwise they are a warning.

    Returns:
        The model with quantizers. Learned and "ema" scales of activations start with the first
        batch in training mode.

    Raises:
        ValueError: Unknown keys or words, a name or pattern that matches no layer, quantizers that
            a layer cannot use together, a model without such layers, and with `strict` what would
            be a warning of what stays in float. The model is unchanged then.

    Warns:
        UserWarning: Other modules have weights, which stay in float: names, and their share; and
            modules whose functions stay in float, with the reason. With `strict` or without it:
            optional arguments with which a `forward` that has functions could not be traced; such
            calls will be refused.

    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> spec = {"weight": "int4 per-channel narrow", "activation": "uint4", "first/last": "int8"}
    >>> quantized = quantize_model(model, spec)
    >>> quantized(torch.randn(4, 8)).shape
    torch.Size([4, 2])
    """
    layers = _layers(model)
    calls = model_functions(model) if "functions" in _mapping(spec) else ModelFunctions()
    functions = calls.named()
    if not (layers or functions):
        kinds = ", ".join(kind.__name__ for kind in LAYERS)
        done = any(isinstance(module, QuantizedLayer) for module in model.modules())
        also = " that is not quantized already" if done else ""
        raise ValueError(f"the model has no layer of the types {kinds}{also}: nothing to quantize")
    plans = _planned(model, spec, layers, calls, strict)
    quantizers = [
        _quantizers(layer, names[0], roles)
        for (layer, names), roles in zip(layers, plans, strict=False)
    ]
    of_functions = {
        name: _of_function(name, roles)
        for name, roles in zip(functions, plans[len(layers) :], strict=True)
    }
    if not (any(quantizers) or any(of_functions.values())):
        raise ValueError(f"the specification quantizes nothing: {dict(spec)!r}")
    for (layer, names), each in zip(layers, quantizers, strict=True):
        _check(layer, names[0], each)
    for name, function in functions.items():
        check_function(function, name, of_functions[name])
    refused = [
        f"{name or 'the model'} ({each})"
        for name, found in calls.traced.items()
        if any(of_functions[joined(name, function)] for function in found.functions)
        for each in found.refused()
    ]
    if refused:
        text = f"these calls could not be traced, and will be errors: {listed(refused)}"
        warnings.warn(text, stacklevel=2)
    if not inplace:
        model = copy.deepcopy(model)
        layers = _layers(model)
    for (layer, names), each in zip(layers, quantizers, strict=True):
        if each:
            # The object stays, and with it everything that refers to it or hangs on it.
            layer.__class__ = LAYERS[type(layer)]
            for keyword, attached in each.items():
                attached.scale.owner = f"the {keyword} of layer {names[0]!r}"
            layer.attach(**each)
    calls.attach(model, of_functions)
    _call_all_layers(model)
    return model


def _planned(
    model: torch.nn.Module,
    spec: Mapping[str, Any],
    layers: list[tuple[torch.nn.Module, list[str]]],
    calls: ModelFunctions,
    strict: bool,
) -> list[Roles | None]:
    """The words for layers and functions, after it was said what stays in float."""
    quantizable = {part for layer, _ in layers for part in layer.modules()}
    others = [each for each in in_float(model) if each.module not in quantizable]
    wanted = words_by_kind(spec.get("functions", {}))
    plans, left = plan(
        spec,
        [names for _, names in layers],
        {name: wanted.get(each.kind, "none") for name, each in calls.named().items()},
        [*(each.names for each in others), *([name] for name in calls.untraced)],
    )
    weights = [others[index] for index in left if index < len(others)]
    untraced = list(calls.untraced.values())
    _say(model, weights, [untraced[i - len(others)] for i in left if i >= len(others)], strict)
    return plans


def _say(
    model: torch.nn.Module, left: list[FloatWeights], untraced: list[str], strict: bool
) -> None:
    """Say which weights stay in float, and by what share, and whose functions."""
    said = []
    if left:
        total = sum(weight.numel() for weight in model.parameters() if weight.ndim >= 2)
        weights = {weight for each in left for weight in each.parameters.values()}
        share = sum(weight.numel() for weight in weights) / total
        names = listed([str(each) for each in left])
        said.append(f"{percentage(share)} of the weights stay in float: {names}")
    if untraced:
        said.append(
            f"functions stay in float where forward cannot be traced: {listed(untraced)}; call "
            "modules such as anybit.torch.nn.QuantAdd there"
        )
    if not said:
        return
    text = f'{"; ".join(said)}; "skip" says that this is meant'
    if strict:
        raise ValueError(text)
    warnings.warn(text, stacklevel=4)


def _call_all_layers(model: torch.nn.Module) -> None:
    """Keep encoders from their way, in eval mode, to read weights and never call the layers."""
    for module in model.modules():
        parts = module.modules()
        if not any(isinstance(part, QuantizedLayer | QuantizedFunction) for part in parts):
            continue
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, torch.nn.TransformerEncoder):
            module.use_nested_tensor = False


def _layers(model: torch.nn.Module) -> list[tuple[torch.nn.Module, list[str]]]:
    """The layers that can be quantized, in order, each with all of its names."""
    found: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) in LAYERS and LAYERS[type(module)].takes(module):
            found.setdefault(module, []).append(name)
    return list(found.items())


def _quantizers(
    layer: torch.nn.Module, name: str, roles: Mapping[str, str] | None
) -> dict[str, Quantizer]:
    """The quantizers by keyword of the layer."""
    found = {}
    for role, words in (roles or {}).items():
        keyword = _KEYWORDS[role]
        if words == "none" or (role == "bias" and getattr(layer, "bias", None) is None):
            continue
        if keyword not in LAYERS[type(layer)].quantizers:
            continue
        try:
            found[keyword] = make_quantizer(words)
        except ValueError as error:
            raise ValueError(f"layer {name!r}, {role}: {error}") from None
    return found


def _of_function(name: str, roles: Mapping[str, str] | None) -> dict[str, Quantizer]:
    """The quantizers by keyword of the function."""
    found = {}
    for role in ("activation", "output"):
        words = (roles or {}).get(role, "none")
        if words != "none":
            try:
                found[_KEYWORDS[role]] = made = make_quantizer(words)
            except ValueError as error:
                raise ValueError(f"function {name!r}, {role}: {error}") from None
            made.scale.owner = f"the {_KEYWORDS[role]} of function {name!r}"
    return found


def _check(layer: torch.nn.Module, name: str, quantizers: Mapping[str, Quantizer]) -> None:
    try:
        LAYERS[type(layer)].check(layer, **quantizers)
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None


def _mapping(spec: Any) -> Mapping[str, Any]:
    if not isinstance(spec, Mapping):
        raise ValueError(
            f'the specification must be a mapping like {{"weight": "int4"}}, got {spec!r}'
        )
    return spec
