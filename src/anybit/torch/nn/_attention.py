# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention with quantized factors of all products."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from anybit.torch.nn._functions import compute_attention, convert_mask, copy_for_factor
from anybit.torch.nn._layers import QuantizedLayer, QuantLinear, apply_quantizer, match_layer
from anybit.torch.nn._quantizers import Quantizer
from anybit.torch.nn._scales import FixedScale

_FACTORS = ("query_quantizer", "key_quantizer", "value_quantizer", "probability_quantizer")


class QuantMultiheadAttention(QuantizedLayer, torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with quantizers; see `QuantizedLayer`.

    * `input_quantizer` for the arguments query, key and value, with one scale for all three.
    * Copies of `weight_quantizer` for the weights of the projections, `in_proj_weight_quantizer` or
      `q_proj_weight_quantizer` and so on. `out_proj` becomes a `QuantLinear` with copies of
      both, and has the `output_quantizer`.
    * Copies of `input_quantizer` for the factors of the products of attention: `query_quantizer`,
      `key_quantizer`, `value_quantizer`, and `probability_quantizer`, whose integers are unsigned.

    Softmax, its scaling and all biases stay in floating point. Rows that are masked throughout are
    0. Attention with `add_bias_kv` or `add_zero_attn` is not supported.
    """

    quantizers = ("weight_quantizer", "input_quantizer", "output_quantizer")
    out_proj: Any

    @property
    def weight_quantizer(self) -> Quantizer | None:  # type: ignore[override]
        """The quantizer of the first projection; the others have copies."""
        return next((quantizer for _, _, quantizer in self.quantized_parameters()), None)

    @property
    def output_quantizer(self) -> Quantizer | None:  # type: ignore[override]
        """The output quantizer of the last projection."""
        quantizer: Quantizer | None = getattr(self.out_proj, "output_quantizer", None)
        return quantizer

    @classmethod
    def supports(cls, layer: Any) -> bool:
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
            quantizer = copy_for_factor(input_quantizer, name)
            if quantizer is not None:
                match_layer(quantizer, self, next(iter(weights.values())))
            setattr(self, name, quantizer)
        self.out_proj.__class__ = QuantLinear
        self.out_proj.attach(
            copy.deepcopy(weight_quantizer), None, copy.deepcopy(input_quantizer), output_quantizer
        )
        self._initialize_scales()

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
            raise ValueError("biases of attention stay in floating point: remove bias_quantizer")
        if not cls.supports(layer):
            raise ValueError("attention with add_bias_kv or add_zero_attn cannot be quantized")
        super().check(layer, weight_quantizer, None, input_quantizer, output_quantizer)
        scale = None if input_quantizer is None else input_quantizer.scale
        if scale is not None and (scale.layout.per_channel or isinstance(scale, FixedScale)):
            raise ValueError(
                "the factors of attention have copies of the input_quantizer: use a scale per "
                'tensor that is computed for each factor, such as "learned"'
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
            raise RuntimeError("is_causal is a hint about attn_mask: pass attn_mask, too")
        batched = query.dim() == 3
        mask = _merge_masks(attn_mask, key_padding_mask, query.dtype, self.num_heads)
        q, k, v = self._project(*self._quantize_inputs(query, key, value))
        dropout = (self.dropout, self.training)
        heads, probabilities = compute_attention(
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

    def compute_with(self, x: torch.Tensor, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the outputs of the projections whose inputs are as wide as x."""
        weights = [values[name] for name in self._weights()]
        matching = [weight for weight in weights if weight.shape[1] == x.shape[-1]]
        return torch.cat([functional.linear(x, weight) for weight in matching], dim=-1)

    def _weights(self) -> dict[str, torch.nn.Parameter]:
        """Return the weights of the first projections by name: one for all three, or three."""
        named = dict(self.named_parameters(recurse=False))
        return {name: named[name] for name in named if name.endswith("proj_weight")}

    def _quantize_inputs(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Quantize query, key and value, once if they are one tensor, with the batch first."""
        quantized: dict[int, torch.Tensor] = {}
        for x in inputs:
            if id(x) not in quantized:
                y = apply_quantizer(self.input_quantizer, x)[0]
                if x.dim() == 2:
                    y = y[None]
                elif not self.batch_first:
                    y = y.transpose(0, 1)
                quantized[id(x)] = y
        return [quantized[id(x)] for x in inputs]

    def _project(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Return the quantized factors per head: (batch, head, position, channel)."""
        weights = [
            apply_quantizer(getattr(self, f"{name}_quantizer"), weight)[0]
            for name, weight in self._weights().items()
        ]
        if len(weights) == 1:
            weights = list(weights[0].chunk(3))
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        factors = []
        for x, weight, bias, name in zip(inputs, weights, biases, _FACTORS, strict=False):
            heads = functional.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1))
            factors.append(apply_quantizer(getattr(self, name), heads.transpose(1, 2))[0])
        return factors


def _merge_masks(
    attn_mask: torch.Tensor | None,
    padding: torch.Tensor | None,
    dtype: torch.dtype,
    heads: int,
) -> torch.Tensor | None:
    """Return the sum of an attention mask and a padding mask, to be added to the scores."""
    mask = None
    if attn_mask is not None:
        mask = convert_mask(attn_mask, dtype)
        mask = mask.unflatten(0, (-1, heads)) if mask.dim() == 3 else mask
    if padding is not None:
        padding = convert_mask(padding, dtype).reshape(-1, 1, 1, padding.shape[-1])
        mask = padding if mask is None else mask + padding
    return mask
