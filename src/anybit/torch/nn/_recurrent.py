# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers with quantized weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from anybit.torch.nn._layers import QuantizedLayer, apply_quantizer, match_layer
from anybit.torch.nn._quantizers import Quantizer


class QuantizedRecurrent(QuantizedLayer):
    """Base of the recurrent layers; see `QuantizedLayer`.

    Every weight, of each layer and direction, gets a copy of the weight quantizer, called
    `weight_ih_l0_quantizer` and so on; per-channel scales are per row of each gate. The input of
    the first layer and the output of the last one have quantizers. States between steps and between
    the layers of one module stay in floating point, and so do biases, because PyTorch computes all
    steps in one call.
    """

    _flat_weights: list[Any]
    _channel_axis = -1
    quantizers = ("weight_quantizer", "input_quantizer", "output_quantizer")

    @property
    def weight_quantizer(self) -> Quantizer | None:  # type: ignore[override]
        """The quantizer of the first weight; the others have copies."""
        return getattr(self, "weight_ih_l0_quantizer", None)

    def attach(
        self,
        weight_quantizer: Quantizer | None = None,
        bias_quantizer: Quantizer | None = None,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        self.check(self, weight_quantizer, bias_quantizer, input_quantizer, output_quantizer)
        self.bias_quantizer = None
        self.input_quantizer = input_quantizer
        self.output_quantizer = output_quantizer
        parameters = list(self.named_parameters(recurse=False))
        weights = [(name, weight) for name, weight in parameters if name.startswith("weight")]
        self._attach_copies(weight_quantizer, weights)
        batch_axis = 0 if self.batch_first else 1
        for quantizer, channels in zip(
            (input_quantizer, output_quantizer), self.channels(), strict=True
        ):
            if quantizer is not None:
                quantizer.bind_axes(-1, {-1: channels}, batch_axis)
                match_layer(quantizer, self, self.weight_ih_l0)
        self._initialize_scales()

    @classmethod
    def check(
        cls,
        layer: torch.nn.Module,
        weight_quantizer: Quantizer | None = None,
        bias_quantizer: Quantizer | None = None,
        *others: Quantizer | None,
        **more: Quantizer | None,
    ) -> None:
        if bias_quantizer is not None:
            raise ValueError(
                "biases of recurrent layers stay in floating point: remove bias_quantizer"
            )
        super().check(layer, weight_quantizer, None, *others, **more)

    def forward(self, input: Any, hx: Any = None) -> Any:
        x = _replace_data(input, apply_quantizer(self.input_quantizer, _get_data(input))[0])
        self._update_flat_weights()
        # PyTorch computes with this list of the parameters.
        weights = self._flat_weights
        self._flat_weights = [
            apply_quantizer(getattr(self, f"{name}_quantizer", None), weight)[0]
            for name, weight in zip(self._flat_weights_names, weights, strict=True)
        ]
        try:
            output, states = super(QuantizedLayer, self).forward(x, hx)
        finally:
            self._flat_weights = weights
        return _replace_data(
            output, apply_quantizer(self.output_quantizer, _get_data(output))[0]
        ), states

    def channels(self) -> tuple[int, int]:
        states = self.proj_size or self.hidden_size
        return self.input_size, states * (1 + self.bidirectional)

    def compute_with(self, x: torch.Tensor, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the products of the input and the first weights; x may be packed data."""
        names = ["weight_ih_l0"] + ["weight_ih_l0_reverse"] * self.bidirectional
        return torch.cat([functional.linear(x, values[name]) for name in names], dim=-1)


def _get_data(x: Any) -> torch.Tensor:
    data: torch.Tensor = x.data if isinstance(x, PackedSequence) else x
    return data


def _replace_data(x: Any, data: torch.Tensor) -> Any:
    return x._replace(data=data) if isinstance(x, PackedSequence) else data


class QuantLSTM(QuantizedRecurrent, torch.nn.LSTM):
    """`torch.nn.LSTM` with quantizers; see `QuantizedRecurrent`."""


class QuantGRU(QuantizedRecurrent, torch.nn.GRU):
    """`torch.nn.GRU` with quantizers; see `QuantizedRecurrent`."""


class QuantRNN(QuantizedRecurrent, torch.nn.RNN):
    """`torch.nn.RNN` with quantizers; see `QuantizedRecurrent`."""
