# SPDX-License-Identifier: Apache-2.0
"""The references as kernels, for devices without kernels of their own."""

from collections.abc import Callable
from typing import Any

import torch

from anybit.ops import Operator
from anybit.ops.gradient import propagate_gradients
from anybit.torch.checks import check, check_backward, check_out
from anybit.torch.results import make_empty_gradients, make_empty_result


def make_reference_forward(operator: Operator) -> Callable[..., torch.Tensor]:
    def kernel(*inputs: Any, **attributes: Any) -> torch.Tensor:
        check(operator, inputs, attributes)
        result = make_empty_result(operator, inputs[0], attributes)
        return result.copy_(operator.reference(*inputs, **attributes))

    return kernel


def make_reference_out(operator: Operator) -> Callable[..., None]:
    def kernel(*inputs: Any, out: torch.Tensor, **attributes: Any) -> None:
        check(operator, inputs, attributes)
        check_out(operator, inputs[0], out, attributes)
        overload = getattr(torch.ops.anybit, operator.name).default
        out.copy_(overload(*inputs, **attributes))

    return kernel


def make_batched_backward(operator: Operator) -> Callable[..., list[torch.Tensor]]:
    """Return the backward kernel for `torch.autograd.grad(..., is_grads_batched=True)`.

    The gradient has a hidden batch, so that this kernel consists of PyTorch operations and creates
    no tensors. Sums have PyTorch's order: the last bits of parameters' gradients may differ from
    those of a loop.
    """

    def kernel(
        gradient: torch.Tensor, *inputs: Any, requested: list[str], **attributes: Any
    ) -> list[torch.Tensor]:
        check_backward(operator, gradient, inputs, requested, attributes)
        partials = operator.partials(*inputs, **attributes)
        shapes = operator.broadcast_shapes(inputs, attributes)
        results = propagate_gradients(
            gradient, operator.name_inputs(inputs), partials, requested, shapes
        )
        return [results[name] for name in requested]

    return kernel


def make_partials_backward(operator: Operator) -> Callable[..., list[torch.Tensor]]:
    gradients = make_batched_backward(operator)

    def kernel(
        gradient: torch.Tensor, *inputs: Any, requested: list[str], **attributes: Any
    ) -> list[torch.Tensor]:
        values = gradients(gradient, *inputs, requested=requested, **attributes)
        results = make_empty_gradients(operator, inputs, requested)
        return [result.copy_(value) for result, value in zip(results, values, strict=True)]

    return kernel
