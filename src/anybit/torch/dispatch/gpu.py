# SPDX-License-Identifier: Apache-2.0
"""The operators on tensors of a GPU, with parameters that are tensors or numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from anybit.ops import Operator
from anybit.torch import triton
from anybit.torch.dispatch import reference
from anybit.torch.dispatch.parameters import convert_to_parameter

try:
    from torch._C import _cuda_getCurrentRawStream as _current_stream
except ImportError:

    def _current_stream(device: int) -> int:
        stream: int = torch.cuda.current_stream(device).cuda_stream
        return stream


# The largest number of cached combinations of numbers per operator.
_MAX_CACHED = 4096


def make_forward_kernel(operator: Operator) -> Callable[..., torch.Tensor]:
    """Return the operator for tensors: a generated kernel, or the reference if it has blocks."""
    if operator.block_axis is not None:
        return reference.make_reference_forward(operator)
    return triton.make_forward_kernel(operator)


def make_backward_kernel(operator: Operator) -> Callable[..., list[torch.Tensor]]:
    """Return the gradients for tensors: a generated kernel, or the reference if it has blocks."""
    if operator.block_axis is not None:
        return reference.make_partials_backward(operator)
    return triton.make_backward_kernel(operator)


def make_result(operator: Operator) -> Callable[[Sequence[Any], Mapping[str, Any]], torch.Tensor]:
    """Return the operator for a tensor and parameters that are tensors or numbers."""
    kernel, as_tensors = make_forward_kernel(operator), _make_constant_converter(operator)

    def call(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> torch.Tensor:
        return kernel(*as_tensors(inputs), **attributes)

    return call


def make_gradients(operator: Operator) -> Callable[..., Sequence[torch.Tensor]]:
    """Return the function for the gradients of the inputs that it is called for."""
    kernel, as_tensors = make_backward_kernel(operator), _make_constant_converter(operator)

    def call(
        gradient: torch.Tensor,
        inputs: Sequence[Any],
        requested: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> Sequence[torch.Tensor]:
        return kernel(gradient, *as_tensors(inputs), requested=requested, **attributes)

    return call


def _make_constant_converter(operator: Operator) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that converts numbers to tensors, and caches these.

    Conversion launches a kernel, so a cached tensor is valid on one stream only: on another it
    might not be written yet. A captured graph has tensors of its own, because the cache may drop
    tensors.
    """
    cache: dict[Any, list[torch.Tensor | None]] = {}

    def call(inputs: Sequence[Any]) -> list[Any]:
        x, *parameters = inputs
        texts = [None if isinstance(value, torch.Tensor) else repr(value) for value in parameters]
        device = x.get_device()
        key = (*texts, x.dtype == torch.float64, device, _current_stream(device))
        captured = torch.cuda.is_current_stream_capturing()
        constants = None if captured else cache.get(key)
        if constants is None:
            rows = zip(texts, parameters, operator.inputs[1:], strict=True)
            constants = [
                None if text is None else convert_to_parameter(value, declared, x)
                for text, value, declared in rows
            ]
            if not captured:
                if len(cache) >= _MAX_CACHED:
                    cache.clear()
                cache[key] = constants
        pairs = zip(parameters, constants, strict=True)
        return [x, *[value if constant is None else constant for value, constant in pairs]]

    return call
