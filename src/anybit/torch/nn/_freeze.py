# SPDX-License-Identifier: Apache-2.0
"""Quantizers with constant scales, for what comes after training."""

import copy

import torch

from anybit.torch.nn._layers import QuantizedLayer
from anybit.torch.nn._quantizers import Quantizer
from anybit.torch.nn._scales import AccumulatorScale, FixedScale, Layout, StoredScale


@torch.no_grad()
def freeze(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model in eval mode, with every scale that can be known as a number.

    These are learned, "ema" and fixed scales, those of the layers' weights and biases, and those
    of accumulators whose input has one. Only "absmax" and "absmean" of activations stay what they
    are. The copy computes the same bits.

    Raises:
        RuntimeError: A scale is not known yet.
    """
    model = copy.deepcopy(model).eval()
    for module in list(model.modules()):
        if isinstance(module, QuantizedLayer):
            _freeze_parameters(module)
    for module in list(model.modules()):
        if isinstance(module, Quantizer) and isinstance(module.scale, StoredScale):
            scale = module.scale
            module.scale = _fixed(scale.restricted(scale.known()), module, scale.layout)
    return model


def _freeze_parameters(layer: QuantizedLayer) -> None:
    """Fix the scales of weight and bias, in quantizers that no other layer shares."""
    weight_scale = None
    if layer.weight_quantizer is not None:
        layer.weight_quantizer = quantizer = copy.deepcopy(layer.weight_quantizer)
        weight_scale = quantizer.scale.restricted(quantizer.scale.measured(layer.weight))
        quantizer.scale = _fixed(weight_scale, quantizer, quantizer.scale.layout)
    if layer.bias_quantizer is None or layer.bias is None:
        return
    layer.bias_quantizer = quantizer = copy.deepcopy(layer.bias_quantizer)
    layout = quantizer.scale.layout
    if not isinstance(quantizer.scale, AccumulatorScale):
        scale = quantizer.scale.restricted(quantizer.scale.measured(layer.bias))
        quantizer.scale = _fixed(scale, quantizer, layout)
        return
    assert weight_scale is not None
    assert layer.input_quantizer is not None
    input_scale = layer.input_quantizer.scale
    if isinstance(input_scale, StoredScale):
        step = input_scale.restricted(input_scale.known()) * weight_scale
        layout = Layout(step.ndim == 1, 0, len(step) if step.ndim else None, None)
        quantizer.scale = _fixed(step, quantizer, layout)


def _fixed(scale: torch.Tensor, quantizer: Quantizer, layout: Layout) -> FixedScale:
    return FixedScale(quantizer.scale.reach, layout, False, scale)
