# SPDX-License-Identifier: Apache-2.0
"""The generated kernels on tensors of a GPU, for calls whose numbers are still numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from anybit.ops import Operator
from anybit.torch import triton
from anybit.torch.dispatch.parameters import as_parameter

try:
    from torch._C import _cuda_getCurrentRawStream as _current_stream
except ImportError:

    def _current_stream(device: int) -> int:
        stream: int = torch.cuda.current_stream(device).cuda_stream
        return stream


# How many calls' numbers are kept as tensors.
_KEPT = 4096


def result(operator: Operator) -> Callable[[Sequence[Any], Mapping[str, Any]], torch.Tensor]:
    """The operator on tensors, and numbers beside the first."""
    kernel, as_tensors = triton.forward_kernel(operator), _with_constants(operator)

    def call(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> torch.Tensor:
        return kernel(*as_tensors(inputs), **attributes)

    return call


def gradients(operator: Operator) -> Callable[..., Sequence[torch.Tensor]]:
    """The gradients that are wanted, in that order."""
    kernel, as_tensors = triton.backward_kernel(operator), _with_constants(operator)

    def call(
        gradient: torch.Tensor,
        inputs: Sequence[Any],
        wanted: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> Sequence[torch.Tensor]:
        return kernel(gradient, *as_tensors(inputs), wanted=wanted, **attributes)

    return call


def _with_constants(operator: Operator) -> Callable[[Sequence[Any]], list[Any]]:
    """All inputs as tensors. To make one of a number is a kernel of its own, so they are kept.

    They are kept for one stream: on another they might not be there yet. A graph that is captured
    has its own, since what is kept here may be given up while it still reads them.
    """
    kept: dict[Any, list[torch.Tensor | None]] = {}

    def call(inputs: Sequence[Any]) -> list[Any]:
        x, *parameters = inputs
        shown = [None if isinstance(each, torch.Tensor) else repr(each) for each in parameters]
        device = x.get_device()
        key = (*shown, x.dtype == torch.float64, device, _current_stream(device))
        captured = torch.cuda.is_current_stream_capturing()
        constants = None if captured else kept.get(key)
        if constants is None:
            each = zip(shown, parameters, operator.inputs[1:], strict=True)
            constants = [
                None if text is None else as_parameter(value, declared, x)
                for text, value, declared in each
            ]
            if not captured:
                if len(kept) >= _KEPT:
                    kept.clear()
                kept[key] = constants
        pairs = zip(parameters, constants, strict=True)
        return [x, *[value if constant is None else constant for value, constant in pairs]]

    return call
