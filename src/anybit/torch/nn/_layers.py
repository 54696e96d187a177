# SPDX-License-Identifier: Apache-2.0
"""Layers of torch.nn with quantized weights, biases, inputs and outputs."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from anybit.torch.nn._dynamic_scale import DynamicScale
from anybit.torch.nn._quantizers import Quantizer
from anybit.torch.nn._scales import AccumulatorScale, FixedScale, StoredScale

QUANTIZERS = ("weight_quantizer", "bias_quantizer", "input_quantizer", "output_quantizer")


class QuantizedLayer(torch.nn.Module):
    """Base of the quantized layers. Subclasses have the computation and the channel axes.

    Keyword-only arguments besides those of the torch layer, each a `Quantizer` or None:

        weight_quantizer, bias_quantizer: Applied to the parameters in each forward pass. Learned
            weight and bias scales start from the parameters.
        input_quantizer, output_quantizer: Applied to inputs and outputs.

    The parameters and their names are those of the torch layer. Its state dicts load with
    strict=False; missing scales are then initialized from the new parameters. Where a parameter is
    replaced, as torch's fusion of batch normalization does, the scales of the weight change in
    proportion to its largest magnitudes, and those of the bias are initialized again. Training and
    eval mode compute the same function.
    """

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    weight_quantizer: Quantizer | None
    bias_quantizer: Quantizer | None
    input_quantizer: Quantizer | None
    output_quantizer: Quantizer | None

    # The axes of the output channels in the weight, and of the channels in inputs and outputs. The
    # latter count from the end, because inputs may have no batch axis.
    _weight_axis = 0
    _channel_axis = -3
    _loading = False
    # The quantizers that the layer supports.
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
        """Set the quantizers and their channel axes, and initialize them from the parameters."""
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
                quantizer.bind_axes(axis, sizes, batch_axis)
                match_layer(quantizer, self, self.weight)
        if input_quantizer is not None:
            # Products of all channels of a window are summed.
            input_quantizer.bind_rows(tuple(range(channel, 0)))
        self._initialize_scales()

    def _attach_copies(
        self, quantizer: Quantizer | None, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> None:
        """Add a copy of a quantizer for each weight, named after the weight."""
        for name, weight in weights:
            copied = copy.deepcopy(quantizer)
            if copied is not None:
                copied.bind_axes(0, {axis: weight.shape[axis] for axis in range(-2, 2)}, None)
                match_layer(copied, self, weight)
            setattr(self, f"{name}_quantizer", copied)

    def _initialize_scales(self) -> None:
        """Initialize scales from parameters, now and after loading a state dict without them."""
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
        """Raise ValueError for quantizers that a layer cannot use together."""
        quantizers = (weight_quantizer, bias_quantizer, input_quantizer, output_quantizer)
        for keyword, quantizer in zip(QUANTIZERS, quantizers, strict=True):
            _check_role(keyword, quantizer)
        if bias_quantizer is None or not isinstance(bias_quantizer.scale, AccumulatorScale):
            return
        # An output is a sum of products, which must all have the same scale.
        bias = 'a bias_quantizer with scale="accumulator"'
        if weight_quantizer is None or input_quantizer is None:
            raise ValueError(f"{bias} needs a weight_quantizer and an input_quantizer")
        inputs = input_quantizer.scale
        if isinstance(inputs, DynamicScale) and inputs.asymmetric:
            raise ValueError(f'{bias} needs inputs without a zero-point, such as "int8"')
        if inputs.layout.per_channel or inputs.layout.per_row:
            raise ValueError(f'{bias} needs an input_quantizer with granularity="per-tensor"')
        layout = weight_quantizer.scale.layout
        if layout.per_channel and layout.axis not in (None, cls._weight_axis):
            raise ValueError(
                f"{bias} needs weight scales for output channels, on axis {cls._weight_axis}, "
                f"got axis={layout.axis}"
            )

    @classmethod
    def supports(cls, layer: Any) -> bool:
        """Return whether a torch layer can become one of this class."""
        return True

    def quantized_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter, Quantizer]]:
        """Yield name, parameter and quantizer of the quantized parameters."""
        for name, parameter in self.named_parameters(recurse=False):
            quantizer = getattr(self, f"{name}_quantizer", None)
            if quantizer is not None:
                yield name, parameter, quantizer

    def compute_with(self, x: torch.Tensor, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the layer's output for a quantized input and values for its parameters."""
        return self._compute(x, values["weight"], values.get("bias"))

    def _initialize(self, only_uninitialized: bool = False) -> None:
        for _, parameter, quantizer in self.quantized_parameters():
            if not (only_uninitialized and getattr(quantizer.scale, "is_initialized", True)):
                quantizer.initialize(parameter)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, torch.nn.Parameter) and not self._loading:
            old = self.__dict__.get("_parameters", {}).get(name)
            rescale_quantizers(self, name, old, value)
        super().__setattr__(name, value)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        # assign=True replaces parameters. Their scales are loaded or initialized afterwards.
        self._loading = True
        try:
            super()._load_from_state_dict(*arguments)
        finally:
            del self._loading

    def forward(self, input: torch.Tensor, *sizes: Any, **named: Any) -> torch.Tensor:
        x, input_scale = apply_quantizer(self.input_quantizer, input)
        weight, weight_scale = apply_quantizer(self.weight_quantizer, self.weight)
        bias = self._quantized_bias(input_scale, weight_scale)
        output = self._compute(x, weight, bias, *sizes, **named)
        return apply_quantizer(self.output_quantizer, output)[0]

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
        """Return the numbers of input and of output channels."""
        return self.in_channels, self.out_channels

    def _compute(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the layer's function of an input, a weight and a bias."""
        return self._conv_forward(x, weight, bias)


def apply_quantizer(
    quantizer: Quantizer | None, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return x, quantized unless the quantizer is None, and the scale of symmetric integers."""
    if quantizer is None:
        return x, None
    if isinstance(quantizer.scale, DynamicScale) and quantizer.scale.asymmetric:
        return quantizer(x), None
    scale = quantizer.scale(x)
    return quantizer(x, scale), scale


def match_layer(quantizer: torch.nn.Module, layer: torch.nn.Module, weight: torch.Tensor) -> None:
    """Move a quantizer to the device, the precision and the mode of its layer."""
    wide = torch.float64 if weight.dtype == torch.float64 else None
    quantizer.to(weight.device, wide).train(layer.training)


def _check_role(keyword: str, quantizer: Any) -> None:
    if not (quantizer is None or isinstance(quantizer, Quantizer)):
        raise TypeError(
            f"{keyword} must be a quantizer of anybit.torch.nn or None, got {quantizer!r}; "
            'anybit.torch.nn.quantizer("int4") creates one'
        )
    if quantizer is None:
        return
    is_parameter = keyword in ("weight_quantizer", "bias_quantizer")
    if is_parameter and isinstance(quantizer.scale, DynamicScale):
        raise ValueError(f'scale="dynamic" is for activations, not for {keyword}; use "absmax"')
    if keyword == "bias_quantizer":
        return
    if isinstance(quantizer.scale, AccumulatorScale):
        raise ValueError(f'scale="accumulator" is for a bias_quantizer, not for {keyword}')


def _initialize_missing(layer: QuantizedLayer, _incompatible: Any) -> None:
    layer._initialize(only_uninitialized=True)


class QuantLinear(QuantizedLayer, torch.nn.Linear):
    """`torch.nn.Linear` with quantizers; see `QuantizedLayer`."""

    _channel_axis = -1

    def channels(self) -> tuple[int, int]:
        return self.in_features, self.out_features

    def _compute(
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

    Axis 1 of its weight has the output channels of one group. With groups > 1, per-channel scales
    of the weight need an explicit axis, 0 or 1.
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

    def _compute(
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


class QuantEmbedding(QuantizedLayer, torch.nn.Embedding):
    """`torch.nn.Embedding` with quantizers for its weight and its output; see `QuantizedLayer`.

    Per-channel scales are per column of the table. `max_norm`, which changes weights in a forward
    pass, and sparse gradients are not supported.
    """

    _weight_axis = 1
    _channel_axis = -1
    quantizers = ("weight_quantizer", "output_quantizer")
    bias = None

    @classmethod
    def supports(cls, layer: Any) -> bool:
        return layer.max_norm is None and not layer.sparse

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, _ = apply_quantizer(self.weight_quantizer, self.weight)
        rows = functional.embedding(
            input, weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )
        return apply_quantizer(self.output_quantizer, rows)[0]

    def channels(self) -> tuple[int, int]:
        return self.num_embeddings, self.embedding_dim


_REMEDY = (
    "call anybit.torch.fold_batchnorm before quantize_model, or copy the new values into the "
    "existing parameter"
)


def rescale_quantizers(layer: torch.nn.Module, name: str, old: Any, new: Any) -> None:
    """Adapt the scales of a layer to the replacement of a parameter.

    Raises:
        ValueError: A scale cannot be adapted: it is fixed, or is that of the layer's output.
    """
    # Shards and views have the same values in other forms.
    if not (type(old) is type(new) is torch.nn.Parameter and old.shape == new.shape):
        return
    if old.is_meta or new.is_meta or torch.equal(old, values := new.detach().to(old)):
        return
    output = getattr(layer, "output_quantizer", None)
    if output is not None and isinstance(output.scale, StoredScale) and output.scale.is_initialized:
        raise ValueError(
            f"{output.scale.owner} has a scale for outputs with the old {name}: {_REMEDY}"
        )
    quantizer = getattr(layer, f"{name}_quantizer", None)
    if quantizer is None:
        return
    scale = quantizer.scale
    if isinstance(scale, FixedScale):
        raise ValueError(f"{scale.owner} has a fixed scale for the old {name}: {_REMEDY}")
    if isinstance(scale, StoredScale) and scale.is_initialized:
        if name.startswith("bias"):
            quantizer.initialize(values)
        else:
            _rescale(quantizer, old.detach(), values)


def _rescale(quantizer: Quantizer, old: torch.Tensor, new: torch.Tensor) -> None:
    """Change scales in proportion to the largest magnitudes; initialize those of zeros."""
    scale = quantizer.scale
    dims = scale.layout.shared_axes(old)
    old_max, new_max = (x.abs().amax(dim=dims) if dims else x.abs() for x in (old, new))
    rescaled = scale.stored().detach() * (new_max / old_max)
    quantizer.initialize(new)
    scale.set(torch.where(old_max > 0, rescaled, scale.stored()))
