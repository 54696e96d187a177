# SPDX-License-Identifier: Apache-2.0
"""Result tensors without values: for tracing, and for kernels to write to."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anybit.ops import Operator


def get_result_dtype(
    operator: Operator, x: torch.Tensor, attributes: Mapping[str, Any]
) -> torch.dtype:
    if operator.result_dtype is None:
        return x.dtype
    # The dispatcher drops attributes with their default value.
    return getattr(torch, operator.result_dtype(operator.complete(attributes)))


def make_empty_result(
    operator: Operator, x: torch.Tensor, attributes: Mapping[str, Any]
) -> torch.Tensor:
    """Return an empty result in x's memory format, as `torch.empty_like` has it."""
    if operator.result_dtype is None:
        return torch.empty_like(x)
    return torch.empty_like(x, dtype=get_result_dtype(operator, x, attributes))


def make_empty_gradients(
    operator: Operator, inputs: Sequence[Any], requested: Sequence[str]
) -> list[torch.Tensor]:
    """Return empty gradients: x's in x's memory format, those of parameters contiguous."""
    tensors = operator.name_inputs(inputs)
    x_name = operator.inputs[0].name
    return [
        torch.empty_like(tensors[name])
        if name == x_name
        else torch.empty_like(tensors[name], memory_format=torch.contiguous_format)
        for name in requested
    ]
