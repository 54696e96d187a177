# SPDX-License-Identifier: Apache-2.0
"""The layers of PyTorch's transformers, of which the sums of residuals are modules."""

import torch

from anybit.torch.nn._functions import added


def _sum(layer: torch.nn.Module, name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    function = layer._modules.get(name)
    return x + y if function is None else function(x, y)


class QuantTransformerEncoderLayer(torch.nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer` with modules for its sums, as far as there are any."""

    sums = ("attention_add", "feedforward_add")

    def forward(
        self,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        mask = None if src_mask is None else added(src_mask, src.dtype)
        padding = None if src_key_padding_mask is None else added(src_key_padding_mask, src.dtype)
        first, second = self.sums
        if self.norm_first:
            y = self._sa_block(self.norm1(src), mask, padding, is_causal)
            x = _sum(self, first, src, y)
            return _sum(self, second, x, self._ff_block(self.norm2(x)))
        x = self.norm1(_sum(self, first, src, self._sa_block(src, mask, padding, is_causal)))
        normalized: torch.Tensor = self.norm2(_sum(self, second, x, self._ff_block(x)))
        return normalized


class QuantTransformerDecoderLayer(torch.nn.TransformerDecoderLayer):
    """`torch.nn.TransformerDecoderLayer` with modules for its sums, as far as there are any."""

    sums = ("attention_add", "cross_attention_add", "feedforward_add")

    def forward(
        self,
        tgt: torch.Tensor,
        memory: torch.Tensor,
        tgt_mask: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
        tgt_key_padding_mask: torch.Tensor | None = None,
        memory_key_padding_mask: torch.Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> torch.Tensor:
        own = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        cross = (memory, memory_mask, memory_key_padding_mask, memory_is_causal)
        first, second, third = self.sums
        if self.norm_first:
            x = _sum(self, first, tgt, self._sa_block(self.norm1(tgt), *own))
            x = _sum(self, second, x, self._mha_block(self.norm2(x), *cross))
            return _sum(self, third, x, self._ff_block(self.norm3(x)))
        x = self.norm1(_sum(self, first, tgt, self._sa_block(tgt, *own)))
        x = self.norm2(_sum(self, second, x, self._mha_block(x, *cross)))
        normalized: torch.Tensor = self.norm3(_sum(self, third, x, self._ff_block(x)))
        return normalized


TRANSFORMERS: dict[
    type[torch.nn.Module],
    type[QuantTransformerEncoderLayer] | type[QuantTransformerDecoderLayer],
] = {
    torch.nn.TransformerEncoderLayer: QuantTransformerEncoderLayer,
    torch.nn.TransformerDecoderLayer: QuantTransformerDecoderLayer,
}
