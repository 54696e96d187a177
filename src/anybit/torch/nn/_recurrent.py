# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers with quantized weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from anybit.torch.nn._layers import QuantizedLayer, fit, quantized
from anybit.torch.nn._quantizer import Quantizer


class QuantizedRecurrent(QuantizedLayer):
    """What recurrent layers share; see `QuantizedLayer`.

    Every weight, of each layer and direction, gets a copy of the weight quantizer, called
    `weight_ih_l0_quantizer` and so on; with one scale per channel there is one for each row of
    each gate. The input of the first layer and the output of the last one have quantizers. States
    between steps, and between the layers of one module, stay in float, and so do biases: PyTorch
    computes all steps in one call.
    """

    _flat_weights: list[Any]
    _channel_axis = -1
    quantizers = ("weight_quantizer", "input_quantizer", "output_quantizer")

    @property
    def weight_quantizer(self) -> Quantizer | None:  # type: ignore[override]
        """That of the first weight; the others have copies."""
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
        weights = [each for each in parameters if each[0].startswith("weight")]
        self._attach_copies(weight_quantizer, weights)
        batch_axis = 0 if self.batch_first else 1
        for quantizer, channels in zip(
            (input_quantizer, output_quantizer), self.channels(), strict=True
        ):
            if quantizer is not None:
                quantizer.settle(-1, {-1: channels}, batch_axis)
                fit(quantizer, self, self.weight_ih_l0)
        self._finish()

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
            raise ValueError("the biases of recurrent layers stay in float: give no bias_quantizer")
        super().check(layer, weight_quantizer, None, *others, **more)

    def forward(self, input: Any, hx: Any = None) -> Any:
        x = _with_data(input, quantized(self.input_quantizer, _data(input))[0])
        self._update_flat_weights()
        # PyTorch computes with this list, which it makes of the parameters.
        kept = self._flat_weights
        self._flat_weights = [
            quantized(getattr(self, f"{name}_quantizer", None), weight)[0]
            for name, weight in zip(self._flat_weights_names, kept, strict=True)
        ]
        try:
            output, states = super(QuantizedLayer, self).forward(x, hx)
        finally:
            self._flat_weights = kept
        return _with_data(output, quantized(self.output_quantizer, _data(output))[0]), states

    def channels(self) -> tuple[int, int]:
        states = self.proj_size or self.hidden_size
        return self.input_size, states * (1 + self.bidirectional)

    def read(self, x: torch.Tensor, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The products of the input, step by step: sequences may be packed."""
        names = ["weight_ih_l0"] + ["weight_ih_l0_reverse"] * self.bidirectional
        return torch.cat([functional.linear(x, values[name]) for name in names], dim=-1)


def _data(x: Any) -> torch.Tensor:
    found: torch.Tensor = x.data if isinstance(x, PackedSequence) else x
    return found


def _with_data(x: Any, data: torch.Tensor) -> Any:
    return x._replace(data=data) if isinstance(x, PackedSequence) else data


class QuantLSTM(QuantizedRecurrent, torch.nn.LSTM):
    """`torch.nn.LSTM` with quantizers; see `QuantizedRecurrent`."""


class QuantGRU(QuantizedRecurrent, torch.nn.GRU):
    """`torch.nn.GRU` with quantizers; see `QuantizedRecurrent`."""


class QuantRNN(QuantizedRecurrent, torch.nn.RNN):
    """`torch.nn.RNN` with quantizers; see `QuantizedRecurrent`."""
