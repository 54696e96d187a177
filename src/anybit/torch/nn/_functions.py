# SPDX-License-Identifier: Apache-2.0
"""Modules with quantizers for functions of several activations."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from anybit.torch.nn._dynamic_scale import DynamicScale
from anybit.torch.nn._layers import apply_quantizer
from anybit.torch.nn._quantizers import IntQuantizer, Quantizer
from anybit.torch.nn._scales import FixedScale, StoredScale, ValueRange

# The reduction axis of the second factor of a product.
_COLUMNS = (-2,)


class QuantizedFunction(torch.nn.Module):
    """Base of the functions. Their only parameters are those of their quantizers.

    Args:
        input_quantizer: For the operands, with a scale per tensor; or None. The operands of sums
            and concatenations share one scale, so that these are integer operations on codes.
            The factors of products have copies of the quantizer.
        output_quantizer: For the result; or None.

    Operands that are not floating-point tensors are not quantized.
    """

    input_quantizer: Quantizer | None
    output_quantizer: Quantizer | None
    # The factors, besides the first, that have copies of the quantizer.
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
                    f"a function needs quantizers of anybit.torch.nn or None, got {quantizer!r}; "
                    'anybit.torch.nn.quantizer("int8") makes one from words'
                )
        scale = None if input_quantizer is None else input_quantizer.scale
        layout = None if scale is None else scale.layout
        if layout and (layout.per_channel or (layout.per_row and not self.factors)):
            raise ValueError(
                "the input_quantizer of a function needs one scale per tensor; use "
                '"per-tensor", as in "int8 dynamic per-tensor"'
            )
        if isinstance(scale, DynamicScale) and scale.asymmetric and not self.factors:
            raise ValueError(
                "the operands of a function share no zero-point that is dynamic; use "
                '"int8 dynamic per-tensor"'
            )
        if self.factors and isinstance(scale, FixedScale):
            raise ValueError(
                "the factors of a product have copies of the input_quantizer: use a scale that is "
                'computed for each factor, such as "learned", instead of a fixed one'
            )
        self.input_quantizer = input_quantizer
        for name in self.factors:
            setattr(self, name, copy_for_factor(input_quantizer, name))
        self.output_quantizer = output_quantizer

    def _quantize_together(self, tensors: Sequence[Any]) -> list[Any]:
        """Quantize all tensors with one scale."""
        quantizer = self.input_quantizer
        if quantizer is None or not all(map(_is_float, tensors)):
            return list(tensors)
        is_fixed = isinstance(quantizer.scale, StoredScale) and not quantizer.training
        scale = quantizer.scale(tensors[0] if is_fixed else _concatenate(tensors))
        return [quantizer(tensor, scale) for tensor in tensors]

    def _quantize_output(self, output: torch.Tensor) -> torch.Tensor:
        return apply_quantizer(self.output_quantizer, output)[0]


class QuantAdd(QuantizedFunction):
    """Sum input + other with one scale for both operands; see `QuantizedFunction`.

    >>> from anybit.torch.nn import quantizer
    >>> add = QuantAdd(quantizer("int8 scale=0.5"))
    >>> add(torch.tensor([0.6, 1.0]), torch.tensor([0.2, 2.2]))
    tensor([0.5000, 3.0000])
    """

    def forward(self, input: Any, other: Any) -> Any:
        first, second = self._quantize_together((input, other))
        output = first + second
        return self._quantize_output(output) if _is_float(output) else output


class QuantConcat(QuantizedFunction):
    """Concatenation torch.cat(tensors, dim) with one scale for all; see `QuantizedFunction`."""

    def forward(self, tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
        output = torch.cat(self._quantize_together(tensors), dim)
        return self._quantize_output(output) if _is_float(output) else output


class QuantMatMul(QuantizedFunction):
    """Matrix product input @ other with a scale per factor; see `QuantizedFunction`.

    Args:
        input_quantizer: For the first factor.
        output_quantizer: For the product.
        other_quantizer: For the second factor; a copy of `input_quantizer` by default. After a
            softmax the first one may be unsigned, and this one signed.
    """

    factors = ("other_quantizer",)
    other_quantizer: Quantizer | None

    def __init__(
        self,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
        *,
        other_quantizer: Quantizer | None = None,
    ) -> None:
        super().__init__(input_quantizer, output_quantizer)
        if other_quantizer is not None:
            other_quantizer.bind_rows(_COLUMNS)
            self.other_quantizer = other_quantizer

    def forward(self, input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if not (_is_float(input) and _is_float(other)):
            return input @ other
        first = apply_quantizer(self.input_quantizer, input)[0]
        return self._quantize_output(first @ apply_quantizer(self.other_quantizer, other)[0])


class QuantScaledDotProductAttention(QuantizedFunction):
    """`torch.nn.functional.scaled_dot_product_attention` with quantized factors of both products.

    `input_quantizer` is for the query. `key_quantizer`, `value_quantizer` and
    `probability_quantizer` are copies of it for the other factors; integers of the last one are
    unsigned. Softmax stays in floating point. Rows that are masked throughout are 0, as in PyTorch.
    See `QuantizedFunction`.
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
        q = apply_quantizer(self.input_quantizer, query)[0]
        k = apply_quantizer(self.key_quantizer, key)[0]
        v = apply_quantizer(self.value_quantizer, value)[0]
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            k, v = (factor.repeat_interleave(groups, -3) for factor in (k, v))
        if is_causal:
            shape = (query.shape[-2], key.shape[-2])
            attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            attn_mask = convert_mask(~attn_mask if is_bool else attn_mask, q.dtype)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        dropout = (dropout_p, dropout_p > 0)
        output, _ = compute_attention(
            q, k, v, attn_mask, scale, self.probability_quantizer, dropout
        )
        return self._quantize_output(output)


def compute_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    quantizer: Quantizer | None,
    dropout: tuple[float, bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention with quantized factors, and its probabilities.

    Args:
        q, k, v: The quantized factors.
        mask: A tensor to add to the scores, or None.
        scale: The factor of the scores.
        quantizer: For the probabilities.
        dropout: The probability of dropout, and whether there is any.
    """
    scores = (q @ k.transpose(-2, -1)) * scale
    scores = scores if mask is None else scores + mask
    probabilities = torch.softmax(scores, dim=-1)
    if mask is not None:
        is_empty = torch.isneginf(scores).all(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(is_empty, 0.0)
    probabilities = apply_quantizer(quantizer, probabilities)[0]
    probabilities = functional.dropout(probabilities, *dropout)
    return probabilities @ v, probabilities


def copy_for_factor(quantizer: Quantizer | None, name: str) -> Quantizer | None:
    """Return a copy of an input quantizer for another factor of a product.

    `name` is the attribute for the quantizer; "input_quantizer" is the quantizer itself.
    """
    if quantizer is None or name == "input_quantizer":
        return quantizer
    copied = copy.deepcopy(quantizer)
    copied.scale.owner = quantizer.scale.owner.replace("input_quantizer", name)
    if name in ("other_quantizer", "value_quantizer"):
        copied.bind_rows(_COLUMNS)
    if name == "probability_quantizer" and not isinstance(copied.scale, DynamicScale):
        _make_unsigned(copied)
    return copied


def _make_unsigned(quantizer: Quantizer) -> None:
    """Make the integers of a quantizer unsigned, for values that are never negative."""
    if isinstance(quantizer, IntQuantizer) and not quantizer.zeropt:
        quantizer.signed = quantizer.narrow = False
        quantizer.scale.value_range = ValueRange(2.0**quantizer.bits - 1)


def convert_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask to add to scores; True in a boolean mask stands for positions left out."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _concatenate(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all tensors as one tensor; rows of a batch stay rows."""
    first = tensors[0].shape
    if all(tensor.ndim > 1 and tensor.shape[0] == first[0] for tensor in tensors):
        return torch.cat([tensor.flatten(1) for tensor in tensors], 1)
    return torch.cat([tensor.flatten() for tensor in tensors])[None]
