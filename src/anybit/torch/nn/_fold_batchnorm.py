# SPDX-License-Identifier: Apache-2.0
"""Folding of batch normalization into the layer before it."""

import copy
import warnings
from typing import Any

import torch
from torch import nn

from anybit.text import join_names
from anybit.torch.nn._call_graph import CallGraph, has_hooks, make_call_graph
from anybit.torch.nn._layers import QuantizedLayer

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
# The largest error power of folding, relative to that of the quantized weights.
_MAX_ERROR = 1e-2


def fold_batchnorm(model: nn.Module, *, inplace: bool = False, strict: bool = False) -> nn.Module:
    """Fold batch normalization into the convolution or linear layer before it.

    The model then computes in both modes what it computed in eval mode, up to the rounding of
    float32. Folded modules become `torch.nn.Identity`, so that names stay. Fold before
    `quantize_model`, so that training sees the final weights. Afterwards, per-channel scales and
    accumulator biases are adapted to the folded weights.

    The layer before is found by tracing forward with torch.fx in training and eval mode, or forward
    of the children where that fails. A forward that asks `type(x)` must treat tensors like any
    other type. Normalization stays where the layer's output has other users, the layer is called
    twice, there are no running statistics, a layer has hooks, or forward calls
    `torch.nn.functional.batch_norm`; a warning has the reasons. After a linear layer, whose
    channels are on the last axis, the `Identity` rejects inputs of 3 dimensions, whose second axis
    was normalized.

    Args:
        model: Any model.
        inplace: Whether the model itself is changed. Otherwise a copy is. Parameters are new
            either way, and tied weights are no longer tied.
        strict: Whether normalization that stays is an error. Otherwise it is a warning.

    Returns:
        The model without the normalization that could be folded.

    Raises:
        ValueError: Quantized weights that would be rounded to other values, such as those with one
            scale per tensor or with powers of two as scales; a quantizer between the layer and the
            normalization; with `strict` normalization that stays. The model is unchanged then.

    Warns:
        UserWarning: Normalization that stays: names and reasons.

    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    >>> fold_batchnorm(model)[1]
    Identity()
    """
    if not inplace:
        model = copy.deepcopy(model)
    names = {module: name for name, module in model.named_modules()}
    graph = make_call_graph(model)
    norms = [module for module in names if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    obstacles = {norm: _explain_obstacle(norm, graph, names) for norm in norms}
    pairs = [(graph.producers[norm], norm) for norm in norms if not obstacles[norm]]
    # All pairs are checked before any module is changed.
    for layer, norm in pairs:
        if isinstance(layer, QuantizedLayer):
            _check(layer, norm, names[layer])
    reasons = [
        f"{names[norm] or 'the model'} ({obstacle})"
        for norm, obstacle in obstacles.items()
        if obstacle
    ]
    if reasons := [*reasons, *_find_functional(graph)]:
        text = f"batch normalization stays in {join_names(reasons)}"
        if strict:
            raise ValueError(text)
        warnings.warn(text, stacklevel=2)
    for layer, norm in pairs:
        _fold(layer, norm)
    folded = {
        norm: FoldedRows if isinstance(layer, nn.Linear) else nn.Identity for layer, norm in pairs
    }
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in folded:
                setattr(parent, name, folded[child]().train(child.training))
    return model


class FoldedRows(nn.Identity):
    """Identity in place of folded normalization after a linear layer, for 2 dimensions only.

    With three dimensions, normalization is over the second axis, and the layer's channels are last.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _check_rows(input)


@torch.fx.wrap
def _check_rows(x: torch.Tensor) -> torch.Tensor:
    if x.ndim != 2:
        raise ValueError(
            f"batch normalization was folded into a linear layer for inputs of 2 dimensions, got "
            f"{x.ndim}: it would be over another axis; do not fold this model"
        )
    return x


def _explain_obstacle(norm: Any, graph: CallGraph, names: dict[nn.Module, str]) -> str:
    """Return why the normalization cannot be folded; "" if it can."""
    if type(norm) not in _NORMS:
        return f"its type {type(norm).__name__} may compute something else"
    if norm.running_var is None:
        return "it has no running statistics"
    layer = graph.producers.get(norm)
    if layer is None:
        return graph.reasons.get(norm, "forward does not call it")
    kind, name = type(layer), names[layer]
    if not (kind in _LAYERS or (isinstance(layer, QuantizedLayer) and isinstance(layer, _LAYERS))):
        return f"its input is the output of {name!r}, of type {kind.__name__}"
    # Reparametrized weights are not parameters: each call computes them.
    if "weight" not in layer._parameters:
        return f"the weight of layer {name!r} is computed in each call"
    for module in (layer, norm):
        if has_hooks(module):
            return f"{names[module]!r} has hooks, which may use what folding changes"
    if isinstance(layer, nn.Linear) and not isinstance(norm, nn.BatchNorm1d | nn.SyncBatchNorm):
        return f"the channels of layer {name!r} are on the last axis, not on the second"
    if _count_outputs(layer) != norm.num_features:
        return (
            f"layer {name!r} has {_count_outputs(layer)} output channels, not {norm.num_features}"
        )
    return ""


def _find_functional(graph: CallGraph) -> list[str]:
    reason = "forward calls it as a function: use a module"
    return [f"{name or 'the model'} ({reason})" for name in dict.fromkeys(graph.functional)]


def _count_outputs(layer: Any) -> int:
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)


@torch.no_grad()
def _fold(layer: Any, norm: Any) -> None:
    """Replace weight and bias of the layer, so that they include the normalization."""
    weight, factor = layer.weight, _compute_factor(norm)
    bias = torch.zeros_like(norm.running_mean) if layer.bias is None else layer.bias
    shift = 0 if norm.bias is None else norm.bias
    bias = ((bias - norm.running_mean) * factor + shift).to(weight.dtype)
    requires_grad = weight.requires_grad
    layer.weight = nn.Parameter(
        _scale_weight(layer, weight, factor).to(weight.dtype), requires_grad
    )
    layer.bias = nn.Parameter(bias, requires_grad)


def _compute_factor(norm: Any) -> torch.Tensor:
    factor = torch.rsqrt(norm.running_var + norm.eps)
    return factor if norm.weight is None else factor * norm.weight


def _scale_weight(layer: Any, weight: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return the weight of a layer with its output channels multiplied by factors."""
    if not isinstance(layer, _TRANSPOSED):
        return weight * factor.reshape([-1] + [1] * (weight.ndim - 1))
    # Input channels of all groups lie on axis 0, output channels of one group on axis 1.
    grouped = weight.unflatten(0, (layer.groups, -1))
    factors = factor.reshape([layer.groups, 1, -1] + [1] * (weight.ndim - 2))
    return (grouped * factors).flatten(0, 1)


@torch.no_grad()
def _check(layer: QuantizedLayer, norm: nn.Module, name: str) -> None:
    """Raise ValueError if folding, tried on a copy, would change quantized weights."""
    remedy = "call fold_batchnorm before quantize_model"
    if layer.output_quantizer is not None:
        raise ValueError(
            f"layer {name!r}: its output_quantizer is before the batch normalization; {remedy}"
        )
    if layer.weight_quantizer is None or layer.weight.is_meta:
        return
    expected = _scale_weight(layer, layer.weight_quantizer(layer.weight), _compute_factor(norm))
    folded = copy.deepcopy(layer)
    _fold(folded, norm)
    assert folded.weight_quantizer is not None
    quantized = folded.weight_quantizer(folded.weight)
    error = (quantized - expected).square().sum()
    if error > _MAX_ERROR * (quantized - folded.weight).square().sum():
        raise ValueError(
            f"layer {name!r}: its weights would be rounded to other values; {remedy}, or use "
            "per-channel scales that are not powers of two"
        )
