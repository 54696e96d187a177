# SPDX-License-Identifier: Apache-2.0
"""Functions of several activations as modules with quantizers for what they read."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from anybit.torch.nn._layers import quantized
from anybit.torch.nn._quantizer import Quantizer
from anybit.torch.nn._quantizers import IntQuantizer
from anybit.torch.nn._statistics import Reach
from anybit.torch.nn._stored_scales import FixedScale, StoredScale


class QuantizedFunction(torch.nn.Module):
    """What the functions share: they have no parameters but those of their quantizers.

    Args:
        input_quantizer: For what the function reads, with a scale per tensor; or None. Sums and
            concatenations have one scale for all that they read, so that they are integer
            operations on codes. Products have a copy of the quantizer for each factor.
        output_quantizer: For what it gives; or None.

    Operands that are not tensors of floats are not quantized.
    """

    input_quantizer: Quantizer | None
    output_quantizer: Quantizer | None
    # What factors have copies of the quantizer, besides the first.
    factors: tuple[str, ...] = ()

    def __init__(
        self,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        super().__init__()
        for quantizer in (input_quantizer, output_quantizer):
            if not isinstance(quantizer, Quantizer | None):
                raise TypeError(
                    f"a function needs quantizers of anybit.torch.nn or None, got {quantizer!r}"
                )
        scale = None if input_quantizer is None else input_quantizer.scale
        if scale is not None and scale.layout.per_channel:
            raise ValueError("what a function reads has one scale per tensor, not per channel")
        if self.factors and isinstance(scale, FixedScale):
            raise ValueError(
                "a product has a copy of the quantizer for each factor: use a scale that is found "
                "for each, such as learned"
            )
        self.input_quantizer = input_quantizer
        for name in self.factors:
            setattr(self, name, factor(input_quantizer, name))
        self.output_quantizer = output_quantizer

    def _on_one_grid(self, tensors: Sequence[Any]) -> list[Any]:
        """All of the tensors quantized with one scale."""
        quantizer = self.input_quantizer
        if quantizer is None or not all(map(_is_float, tensors)):
            return list(tensors)
        settled = isinstance(quantizer.scale, StoredScale) and not quantizer.training
        scale = quantizer.scale(tensors[0] if settled else _joined(tensors))
        return [quantizer(each, scale) for each in tensors]

    def _given(self, output: torch.Tensor) -> torch.Tensor:
        return quantized(self.output_quantizer, output)[0]


class QuantAdd(QuantizedFunction):
    """input + other, both quantized with one scale; see `QuantizedFunction`.

    >>> from anybit.torch.nn import quantizer
    >>> add = QuantAdd(quantizer("int8 scale=0.5"))
    >>> add(torch.tensor([0.6, 1.0]), torch.tensor([0.2, 2.2]))
    tensor([0.5000, 3.0000])
    """

    def forward(self, input: Any, other: Any) -> Any:
        first, second = self._on_one_grid((input, other))
        output = first + second
        return self._given(output) if _is_float(output) else output


class QuantConcat(QuantizedFunction):
    """torch.cat(tensors, dim), all of them quantized with one scale; see `QuantizedFunction`."""

    def forward(self, tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
        output = torch.cat(self._on_one_grid(tensors), dim)
        return self._given(output) if _is_float(output) else output


class QuantMatMul(QuantizedFunction):
    """input @ other, each quantized with a scale of its own; see `QuantizedFunction`.

    The quantizer of the second factor is `other_quantizer`.
    """

    factors = ("other_quantizer",)
    other_quantizer: Quantizer | None

    def forward(self, input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if not (_is_float(input) and _is_float(other)):
            return input @ other
        first = quantized(self.input_quantizer, input)[0]
        return self._given(first @ quantized(self.other_quantizer, other)[0])


class QuantScaledDotProductAttention(QuantizedFunction):
    """`torch.nn.functional.scaled_dot_product_attention`, of which both products have quantizers.

    `input_quantizer` is for the query, and `key_quantizer`, `value_quantizer` and
    `probability_quantizer` for the other factors; integers of the last one are unsigned. Softmax
    stays in float. Positions that are masked throughout give 0. See `QuantizedFunction`.
    """

    factors = ("key_quantizer", "value_quantizer", "probability_quantizer")
    key_quantizer: Quantizer | None
    value_quantizer: Quantizer | None
    probability_quantizer: Quantizer | None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        q = quantized(self.input_quantizer, query)[0]
        k = quantized(self.key_quantizer, key)[0]
        v = quantized(self.value_quantizer, value)[0]
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            k, v = (each.repeat_interleave(groups, -3) for each in (k, v))
        if is_causal:
            shape = (query.shape[-2], key.shape[-2])
            attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None:
            attn_mask = added(~attn_mask if attn_mask.dtype == torch.bool else attn_mask, q.dtype)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        dropout = (dropout_p, dropout_p > 0)
        return self._given(
            attended(q, k, v, attn_mask, scale, self.probability_quantizer, dropout)[0]
        )


def attended(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    quantizer: Quantizer | None,
    dropout: tuple[float, bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of factors that are quantized, and its probabilities, quantized by that one.

    The mask is added to the scores. `dropout` is a probability, and whether there is any.
    """
    scores = (q @ k.transpose(-2, -1)) * scale
    scores = scores if mask is None else scores + mask
    probabilities = torch.softmax(scores, dim=-1)
    if mask is not None:
        nothing = torch.isneginf(scores).all(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(nothing, 0.0)
    probabilities = quantized(quantizer, probabilities)[0]
    probabilities = functional.dropout(probabilities, *dropout)
    return probabilities @ v, probabilities


def factor(quantizer: Quantizer | None, name: str) -> Quantizer | None:
    """A copy of the input's quantizer for another factor; or itself."""
    if quantizer is None or name == "input_quantizer":
        return quantizer
    found = copy.deepcopy(quantizer)
    found.scale.owner = quantizer.scale.owner.replace("input_quantizer", name)
    if name == "probability_quantizer":
        without_sign(found)
    return found


def without_sign(quantizer: Quantizer) -> None:
    """Let the integers of a quantizer be unsigned, for what is never negative."""
    if isinstance(quantizer, IntQuantizer) and not quantizer.zeropt:
        quantizer.signed = quantizer.narrow = False
        quantizer.scale.reach = Reach(2.0**quantizer.bits - 1)


def added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores for a mask; True stands for what is left out."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all tensors, of which one scale is taken; rows of a batch stay rows."""
    first = tensors[0].shape
    if all(each.ndim > 1 and each.shape[0] == first[0] for each in tensors):
        return torch.cat([each.flatten(1) for each in tensors], 1)
    return torch.cat([each.flatten() for each in tensors])[None]
