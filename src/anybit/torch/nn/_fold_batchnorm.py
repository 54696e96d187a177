# SPDX-License-Identifier: Apache-2.0
"""Batch normalization as part of the layer before it."""

import copy
import warnings
from typing import Any

import torch
from torch import nn

from anybit.text import listed
from anybit.torch.nn._calls import Calls, called, has_hooks
from anybit.torch.nn._layers import QuantizedLayer

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
# What folding may add to quantized weights, beside what quantization adds, as powers.
_ADDED = 1e-2


def fold_batchnorm(model: nn.Module, *, inplace: bool = False, strict: bool = False) -> nn.Module:
    """Put batch normalization into the convolution or linear layer whose outputs it alone reads.

    The model then computes in both modes what it computed in eval mode, up to the rounding of
    float32. Modules that are folded become `torch.nn.Identity`, so that names stay. It is best done
    before `quantize_model`: training then sees the weights that will be. Behind it, scales per
    channel follow the weights, and so do accumulator biases.

    Which module reads what is found by tracing forward, and where that fails part by part, as of
    `torch.nn.Sequential`. Normalization is left alone where something else reads the layer's
    output too, or the layer is called twice, or there are no running statistics, and where forward
    calls `torch.nn.functional.batch_norm` by itself; where that is so in training or in eval mode
    only, too; and where layers have hooks. What is left is said, with the reasons. Behind a linear
    layer, whose channels are on the last axis, the `Identity` refuses inputs of 3 dimensions, of
    which the second one had been normalized.

    Args:
        model: Any model. A layer and the normalization behind it may be anywhere in it.
        inplace: Whether the model itself is changed. Otherwise a copy is. Parameters are new
            either way, and weights that were tied are so no longer.
        strict: Whether normalization that stays is an error. Otherwise it is a warning.

    Returns:
        The model without the normalization that could be folded.

    Raises:
        ValueError: Quantized weights that would be rounded to other values, such as those with one
            scale for all channels, or with scales that are powers of two; a quantizer between the
            layer and the normalization; and with `strict` what would be a warning. The model is
            unchanged then.

    Warns:
        UserWarning: Normalization that stays: names, and why.

    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    >>> fold_batchnorm(model)[1]
    Identity()
    """
    if not inplace:
        model = copy.deepcopy(model)
    names = {module: name for name, module in model.named_modules()}
    calls = called(model)
    norms = [module for module in names if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    left = {norm: _obstacle(norm, calls, names) for norm in norms}
    pairs = [(calls.before[norm], norm) for norm in norms if not left[norm]]
    # All are checked before any is changed.
    for layer, norm in pairs:
        if isinstance(layer, QuantizedLayer):
            _check(layer, norm, names[layer])
    reasons = [f"{names[norm] or 'the model'} ({why})" for norm, why in left.items() if why]
    if reasons := [*reasons, *_functional(calls)]:
        text = f"batch normalization stays in {listed(reasons)}"
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
    """Where normalization behind a linear layer was, which is right for rows of channels alone.

    With three dimensions it normalized the second one, and the layer has its channels on the last.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _checked_rows(input)


@torch.fx.wrap
def _checked_rows(x: torch.Tensor) -> torch.Tensor:
    if x.ndim != 2:
        raise ValueError(
            f"batch normalization was folded into a linear layer for inputs of 2 dimensions, got "
            f"{x.ndim}: it had normalized another axis; do not fold this model"
        )
    return x


def _obstacle(norm: Any, calls: Calls, names: dict[nn.Module, str]) -> str:
    """Why the normalization cannot be folded; "" if it can."""
    if type(norm) not in _NORMS:
        return f"its type {type(norm).__name__} may compute something else"
    if norm.running_var is None:
        return "it has no running statistics"
    layer = calls.before.get(norm)
    if layer is None:
        return calls.why.get(norm, "forward does not call it")
    kind, name = type(layer), names[layer]
    if not (kind in _LAYERS or (isinstance(layer, QuantizedLayer) and isinstance(layer, _LAYERS))):
        return f"it reads what {name!r} gives, of type {kind.__name__}"
    # Reparametrized weights are computed before each call, and are not parameters.
    if "weight" not in layer._parameters:
        return f"the weight of layer {name!r} is computed in each call"
    for each in (layer, norm):
        if has_hooks(each):
            return f"{names[each]!r} has hooks, which may read or change what folding changes"
    if isinstance(layer, nn.Linear) and not isinstance(norm, nn.BatchNorm1d | nn.SyncBatchNorm):
        return f"layer {name!r} gives its channels on the last axis, not on the second"
    if _outputs(layer) != norm.num_features:
        return f"layer {name!r} gives {_outputs(layer)} channels, not {norm.num_features}"
    return ""


def _functional(calls: Calls) -> list[str]:
    why = "forward calls it as a function: use a module"
    return [f"{name or 'the model'} ({why})" for name in dict.fromkeys(calls.functional)]


def _outputs(layer: Any) -> int:
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)


@torch.no_grad()
def _fold(layer: Any, norm: Any) -> None:
    """Give the layer the weight and the bias that do what the normalization did."""
    weight, factor = layer.weight, _factor(norm)
    bias = torch.zeros_like(norm.running_mean) if layer.bias is None else layer.bias
    added = 0 if norm.bias is None else norm.bias
    bias = ((bias - norm.running_mean) * factor + added).to(weight.dtype)
    trained = weight.requires_grad
    layer.weight = nn.Parameter(_times(layer, weight, factor).to(weight.dtype), trained)
    layer.bias = nn.Parameter(bias, trained)


def _factor(norm: Any) -> torch.Tensor:
    factor = torch.rsqrt(norm.running_var + norm.eps)
    return factor if norm.weight is None else factor * norm.weight


def _times(layer: Any, weight: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """The weight of a layer with each output channel multiplied."""
    if not isinstance(layer, _TRANSPOSED):
        return weight * factor.reshape([-1] + [1] * (weight.ndim - 1))
    # Input channels of all groups lie on axis 0, output channels of one group on axis 1.
    grouped = weight.unflatten(0, (layer.groups, -1))
    beside = factor.reshape([layer.groups, 1, -1] + [1] * (weight.ndim - 2))
    return (grouped * beside).flatten(0, 1)


@torch.no_grad()
def _check(layer: QuantizedLayer, norm: nn.Module, name: str) -> None:
    """ValueError if the function would change: tried on a copy."""
    before = "call fold_batchnorm before quantize_model"
    if layer.output_quantizer is not None:
        raise ValueError(
            f"layer {name!r}: its output_quantizer lies before the batch normalization; {before}"
        )
    if layer.weight_quantizer is None or layer.weight.is_meta:
        return
    wanted = _times(layer, layer.weight_quantizer(layer.weight), _factor(norm))
    tried = copy.deepcopy(layer)
    _fold(tried, norm)
    assert tried.weight_quantizer is not None
    found = tried.weight_quantizer(tried.weight)
    added, own = (found - wanted).square().sum(), (found - tried.weight).square().sum()
    if added > _ADDED * own:
        raise ValueError(
            f"layer {name!r}: its weights would be rounded to other values; {before}, or use "
            "per-channel scales that are not powers of two"
        )
