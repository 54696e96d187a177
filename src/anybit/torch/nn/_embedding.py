# SPDX-License-Identifier: Apache-2.0
"""Tables of quantized weights."""

from typing import Any

import torch
from torch.nn import functional

from anybit.torch.nn._layers import QuantizedLayer, quantized


class QuantEmbedding(QuantizedLayer, torch.nn.Embedding):
    """`torch.nn.Embedding` with quantizers for its weight and its output; see `QuantizedLayer`.

    With one scale per channel there is one for each column of the table. `max_norm`, which changes
    weights while they are read, and sparse gradients are not for quantized weights.
    """

    _weight_axis = 1
    _channel_axis = -1
    quantizers = ("weight_quantizer", "output_quantizer")
    bias = None

    @classmethod
    def takes(cls, layer: Any) -> bool:
        return layer.max_norm is None and not layer.sparse

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, _ = quantized(self.weight_quantizer, self.weight)
        rows = functional.embedding(
            input, weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )
        return quantized(self.output_quantizer, rows)[0]

    def channels(self) -> tuple[int, int]:
        return self.num_embeddings, self.embedding_dim
