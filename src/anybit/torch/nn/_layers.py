# SPDX-License-Identifier: Apache-2.0
"""Layers of torch.nn with quantized weights, biases, inputs and outputs."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from anybit.torch.nn._quantizer import Quantizer
from anybit.torch.nn._replacement import replaced
from anybit.torch.nn._scales import AccumulatorScale

QUANTIZERS = ("weight_quantizer", "bias_quantizer", "input_quantizer", "output_quantizer")


class QuantizedLayer(torch.nn.Module):
    """What the layers share. A subclass says how it computes and where its channels are.

    Keyword-only arguments besides those of the torch layer, each a `Quantizer` or None:

        weight_quantizer, bias_quantizer: Applied to the parameters in each forward pass. Learned
            weight and bias scales start from the parameters.
        input_quantizer, output_quantizer: Applied to what enters and leaves.

    The parameters and their names are those of the torch layer: its state dicts load with
    strict=False, after which scales that were missing are taken from the new parameters. Where a
    parameter is replaced by another one, as torch's fusion of batch normalization does, the scales
    of the weight change as its largest magnitudes do, and a bias starts anew. Training and eval
    mode compute the same function.
    """

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    weight_quantizer: Quantizer | None
    bias_quantizer: Quantizer | None
    input_quantizer: Quantizer | None
    output_quantizer: Quantizer | None

    # The axes of the output channels in the weight and of the channels in inputs and outputs: from
    # the end, for there may be no batch.
    _weight_axis = 0
    _channel_axis = -3
    _loading = False
    # Which of the quantizers the layer has.
    quantizers: tuple[str, ...] = QUANTIZERS

    def __init__(
        self,
        *arguments: Any,
        weight_quantizer: Quantizer | None = None,
        bias_quantizer: Quantizer | None = None,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__(*arguments, **keywords)
        self.attach(weight_quantizer, bias_quantizer, input_quantizer, output_quantizer)

    def attach(
        self,
        weight_quantizer: Quantizer | None = None,
        bias_quantizer: Quantizer | None = None,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        """Set the quantizers, tell them their channels, and start them from the parameters."""
        self.check(self, weight_quantizer, bias_quantizer, input_quantizer, output_quantizer)
        self.weight_quantizer = weight_quantizer
        self.bias_quantizer = bias_quantizer
        self.input_quantizer = input_quantizer
        self.output_quantizer = output_quantizer
        inputs, outputs = self.channels()
        channel, shape = self._channel_axis, self.weight.shape
        weight_sizes = {axis: shape[axis] for axis in range(-len(shape), len(shape))}
        for quantizer, axis, sizes, batch_axis in (
            (weight_quantizer, self._weight_axis, weight_sizes, None),
            (bias_quantizer, 0, {0: outputs}, None),
            (input_quantizer, channel, {channel: inputs}, 0),
            (output_quantizer, channel, {channel: outputs}, 0),
        ):
            if quantizer is not None:
                quantizer.settle(axis, sizes, batch_axis)
                fit(quantizer, self, self.weight)
        self._finish()

    def _attach_copies(
        self, quantizer: Quantizer | None, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> None:
        """Give each of several weights a copy of a quantizer, which is called after it."""
        for name, weight in weights:
            each = copy.deepcopy(quantizer)
            if each is not None:
                each.settle(0, {axis: weight.shape[axis] for axis in range(-2, 2)}, None)
                fit(each, self, weight)
            setattr(self, f"{name}_quantizer", each)

    def _finish(self) -> None:
        """Start the scales from the parameters, now and whenever a state dict has none."""
        self._initialize()
        self.register_load_state_dict_post_hook(_initialize_missing)

    @classmethod
    def check(
        cls,
        layer: torch.nn.Module,
        weight_quantizer: Quantizer | None = None,
        bias_quantizer: Quantizer | None = None,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        """ValueError for quantizers that a layer cannot use together, be it still in float."""
        given = (weight_quantizer, bias_quantizer, input_quantizer, output_quantizer)
        for keyword, quantizer in zip(QUANTIZERS, given, strict=True):
            _check_role(keyword, quantizer)
        if bias_quantizer is None or not isinstance(bias_quantizer.scale, AccumulatorScale):
            return
        # Each output must be a sum of products of one scale.
        bias = 'a bias_quantizer with scale="accumulator"'
        if weight_quantizer is None or input_quantizer is None:
            raise ValueError(f"{bias} needs a weight_quantizer and an input_quantizer")
        if input_quantizer.scale.layout.per_channel:
            raise ValueError(f'{bias} needs an input_quantizer with granularity="per-tensor"')
        layout = weight_quantizer.scale.layout
        if layout.per_channel and layout.axis not in (None, cls._weight_axis):
            raise ValueError(
                f"{bias} needs weight scales for output channels, on axis {cls._weight_axis}, "
                f"got axis={layout.axis}"
            )

    @classmethod
    def takes(cls, layer: Any) -> bool:
        """Whether a layer in float can become one of these."""
        return True

    def quantized_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter, Quantizer]]:
        """The parameters that have a quantizer, with their names."""
        for name, parameter in self.named_parameters(recurse=False):
            quantizer = getattr(self, f"{name}_quantizer", None)
            if quantizer is not None:
                yield name, parameter, quantizer

    def read(self, x: torch.Tensor, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What the layer makes of what its input quantizer gives, with values for parameters."""
        return self._computed(x, values["weight"], values.get("bias"))

    def _initialize(self, only_unknown: bool = False) -> None:
        for _, parameter, quantizer in self.quantized_parameters():
            if not (only_unknown and getattr(quantizer.scale, "is_known", True)):
                quantizer.initialize(parameter)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, torch.nn.Parameter) and not self._loading:
            old = self.__dict__.get("_parameters", {}).get(name)
            replaced(self, name, old, value)
        super().__setattr__(name, value)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        # assign=True replaces parameters. Their scales are loaded next, or taken from them.
        self._loading = True
        try:
            super()._load_from_state_dict(*arguments)
        finally:
            del self._loading

    def forward(self, input: torch.Tensor, *sizes: Any, **named: Any) -> torch.Tensor:
        x, input_scale = quantized(self.input_quantizer, input)
        weight, weight_scale = quantized(self.weight_quantizer, self.weight)
        bias = self._quantized_bias(input_scale, weight_scale)
        output = self._computed(x, weight, bias, *sizes, **named)
        return quantized(self.output_quantizer, output)[0]

    def _quantized_bias(
        self, input_scale: torch.Tensor | None, weight_scale: torch.Tensor | None
    ) -> torch.Tensor | None:
        if self.bias is None or self.bias_quantizer is None:
            return self.bias
        step = None
        accumulated = isinstance(self.bias_quantizer.scale, AccumulatorScale)
        if accumulated and input_scale is not None and weight_scale is not None:
            step = (input_scale * weight_scale.flatten()).detach()
        return self.bias_quantizer(self.bias, step)

    def channels(self) -> tuple[int, int]:
        """The numbers of input and of output channels."""
        return self.in_channels, self.out_channels

    def _computed(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """The layer's function of an input, a weight and a bias."""
        return self._conv_forward(x, weight, bias)


def quantized(
    quantizer: Quantizer | None, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """x, quantized if there is a quantizer, and the scale."""
    if quantizer is None:
        return x, None
    scale = quantizer.scale(x)
    return quantizer(x, scale), scale


def fit(quantizer: torch.nn.Module, layer: torch.nn.Module, weight: torch.Tensor) -> None:
    """Bring a quantizer to the device, the precision and the mode of its layer."""
    wide = torch.float64 if weight.dtype == torch.float64 else None
    quantizer.to(weight.device, wide).train(layer.training)


def _check_role(keyword: str, quantizer: Any) -> None:
    if not (quantizer is None or isinstance(quantizer, Quantizer)):
        raise TypeError(
            f"{keyword} must be a quantizer of anybit.torch.nn or None, got {quantizer!r}; "
            'anybit.torch.nn.quantizer("int4") makes one from words'
        )
    if keyword == "bias_quantizer" or quantizer is None:
        return
    if isinstance(quantizer.scale, AccumulatorScale):
        raise ValueError(f'scale="accumulator" is for a bias_quantizer, not for {keyword}')


def _initialize_missing(layer: QuantizedLayer, _incompatible: Any) -> None:
    layer._initialize(only_unknown=True)


class QuantLinear(QuantizedLayer, torch.nn.Linear):
    """`torch.nn.Linear` with quantizers; see `QuantizedLayer`."""

    _channel_axis = -1

    def channels(self) -> tuple[int, int]:
        return self.in_features, self.out_features

    def _computed(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return functional.linear(x, weight, bias)


class QuantConv1d(QuantizedLayer, torch.nn.Conv1d):
    """`torch.nn.Conv1d` with quantizers; see `QuantizedLayer`."""

    _channel_axis = -2


class QuantConv2d(QuantizedLayer, torch.nn.Conv2d):
    """`torch.nn.Conv2d` with quantizers; see `QuantizedLayer`."""


class QuantConvTranspose2d(QuantizedLayer, torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` with quantizers; see `QuantizedLayer`.

    Its weight has the output channels on axis 1, those of one group only: with groups > 1,
    per-channel scales of the weight need axis=0 or axis=1 in words.
    """

    _weight_axis = 1

    @classmethod
    def check(
        cls,
        layer: torch.nn.Module,
        weight_quantizer: Quantizer | None = None,
        bias_quantizer: Quantizer | None = None,
        *others: Quantizer | None,
        **more: Quantizer | None,
    ) -> None:
        super().check(layer, weight_quantizer, bias_quantizer, *others, **more)
        layout = None if weight_quantizer is None else weight_quantizer.scale.layout
        if layer.groups == 1 or layout is None or not layout.per_channel:
            return
        accumulated = bias_quantizer and isinstance(bias_quantizer.scale, AccumulatorScale)
        if layout.axis is None or accumulated:
            raise ValueError(
                f"ConvTranspose2d with groups={layer.groups}: no axis of its weight has all output "
                'channels; use granularity="per-tensor", or, without an accumulator bias, axis=1 '
                "(one scale for the same channel of all groups) or axis=0 (input channels)"
            )

    def _computed(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        output_size: list[int] | None = None,
    ) -> torch.Tensor:
        padding = self._output_padding(
            x, output_size, self.stride, self.padding, self.kernel_size, 2, self.dilation
        )
        return functional.conv_transpose2d(
            x, weight, bias, self.stride, self.padding, padding, self.groups, self.dilation
        )
