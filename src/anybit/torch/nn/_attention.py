# SPDX-License-Identifier: Apache-2.0
"""Attention, of which every product has quantized factors."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from anybit.torch.nn._functions import added, attended, factor
from anybit.torch.nn._layers import QuantizedLayer, QuantLinear, fit, quantized
from anybit.torch.nn._quantizer import Quantizer
from anybit.torch.nn._stored_scales import FixedScale

_FACTORS = ("query_quantizer", "key_quantizer", "value_quantizer", "probability_quantizer")


class QuantMultiheadAttention(QuantizedLayer, torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with quantizers; see `QuantizedLayer`.

    * `input_quantizer` for query, key and value as they are given, with one scale for all three.
    * Copies of `weight_quantizer` for the weights of the projections, `in_proj_weight_quantizer` or
      `q_proj_weight_quantizer` and so on. `out_proj` becomes a `QuantLinear`, with copies of
      both, and has the `output_quantizer`.
    * Copies of `input_quantizer` for the factors of the products of attention: `query_quantizer`,
      `key_quantizer`, `value_quantizer`, and `probability_quantizer`, of which integers are
      unsigned.

    Softmax, its scaling and all biases stay in float. Positions that are masked throughout give 0.
    Attention with `add_bias_kv` or `add_zero_attn` cannot become one of these.
    """

    quantizers = ("weight_quantizer", "input_quantizer", "output_quantizer")
    out_proj: Any

    @property
    def weight_quantizer(self) -> Quantizer | None:  # type: ignore[override]
        """That of the first projection; the others have copies."""
        found = [quantizer for _, _, quantizer in self.quantized_parameters()]
        return found[0] if found else None

    @property
    def output_quantizer(self) -> Quantizer | None:  # type: ignore[override]
        """That of the last projection."""
        found: Quantizer | None = getattr(self.out_proj, "output_quantizer", None)
        return found

    @classmethod
    def takes(cls, layer: Any) -> bool:
        return layer.bias_k is None and not layer.add_zero_attn

    def attach(
        self,
        weight_quantizer: Quantizer | None = None,
        bias_quantizer: Quantizer | None = None,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        self.check(self, weight_quantizer, bias_quantizer, input_quantizer, output_quantizer)
        weights = self._weights()
        self._attach_copies(weight_quantizer, weights.items())
        for name in ("input_quantizer", *_FACTORS):
            each = factor(input_quantizer, name)
            if each is not None:
                fit(each, self, next(iter(weights.values())))
            setattr(self, name, each)
        given = (weight_quantizer, None, input_quantizer)
        self.out_proj.__class__ = QuantLinear
        self.out_proj.attach(*(copy.deepcopy(each) for each in given), output_quantizer)
        self._finish()

    @classmethod
    def check(
        cls,
        layer: Any,
        weight_quantizer: Quantizer | None = None,
        bias_quantizer: Quantizer | None = None,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        if bias_quantizer is not None:
            raise ValueError("the biases of attention stay in float: give no bias_quantizer")
        if not cls.takes(layer):
            raise ValueError("attention with add_bias_kv or add_zero_attn cannot be quantized")
        super().check(layer, weight_quantizer, None, input_quantizer, output_quantizer)
        scale = None if input_quantizer is None else input_quantizer.scale
        if scale is not None and (scale.layout.per_channel or isinstance(scale, FixedScale)):
            raise ValueError(
                "attention has an input_quantizer for factors of several products: use a scale "
                "per tensor that is found for each, such as learned"
            )

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal is a hint about attn_mask: give that, too")
        batched = query.dim() == 3
        mask = _mask(attn_mask, key_padding_mask, query.dtype, self.num_heads)
        q, k, v = self._projected(*self._rounded(query, key, value))
        dropout = (self.dropout, self.training)
        heads, probabilities = attended(
            q, k, v, mask, self.head_dim**-0.5, self.probability_quantizer, dropout
        )
        output = self.out_proj(heads.transpose(1, 2).flatten(2))
        weights = probabilities.mean(dim=1) if average_attn_weights else probabilities
        if not batched:
            output, weights = output[0], weights[0]
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return output, weights if need_weights else None

    def channels(self) -> tuple[int, int]:
        return self.embed_dim, self.embed_dim

    def read(self, x: torch.Tensor, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What the projections make of it; where key and value are wider, theirs."""
        weights = [values[name] for name in self._weights()]
        fitting = [weight for weight in weights if weight.shape[1] == x.shape[-1]]
        return torch.cat([functional.linear(x, weight) for weight in fitting], dim=-1)

    def _weights(self) -> dict[str, torch.nn.Parameter]:
        """The weights of the first projections by name: one for all three, or three."""
        named = dict(self.named_parameters(recurse=False))
        return {name: named[name] for name in named if name.endswith("proj_weight")}

    def _rounded(self, *given: torch.Tensor) -> list[torch.Tensor]:
        """Query, key and value, quantized once if they are one tensor, with the batch first."""
        found: dict[int, torch.Tensor] = {}
        for x in given:
            if id(x) not in found:
                rounded = quantized(self.input_quantizer, x)[0]
                if x.dim() == 2:
                    rounded = rounded[None]
                elif not self.batch_first:
                    rounded = rounded.transpose(0, 1)
                found[id(x)] = rounded
        return [found[id(x)] for x in given]

    def _projected(self, *given: torch.Tensor) -> list[torch.Tensor]:
        """Factors per head: (batch, head, position, channel)."""
        weights = [
            quantized(getattr(self, f"{name}_quantizer"), weight)[0]
            for name, weight in self._weights().items()
        ]
        if len(weights) == 1:
            weights = list(weights[0].chunk(3))
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        found = []
        for x, weight, bias, name in zip(given, weights, biases, _FACTORS, strict=False):
            heads = functional.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1))
            found.append(quantized(getattr(self, name), heads.transpose(1, 2))[0])
        return found


def _mask(
    attention: torch.Tensor | None,
    padding: torch.Tensor | None,
    dtype: torch.dtype,
    heads: int,
) -> torch.Tensor | None:
    """What is added to the scores, in a shape that broadcasts to them."""
    found = None
    if attention is not None:
        found = added(attention, dtype)
        found = found.unflatten(0, (-1, heads)) if found.dim() == 3 else found
    if padding is not None:
        padding = added(padding, dtype).reshape(-1, 1, 1, padding.shape[-1])
        found = padding if found is None else found + padding
    return found
