# SPDX-License-Identifier: Apache-2.0
"""The readable references as kernels: for every device that has none of its own."""

from collections.abc import Callable
from typing import Any

import torch

from anybit.ops import Operator
from anybit.ops.gradient import carried_back
from anybit.torch.checks import check, check_backward, check_out
from anybit.torch.results import empty_gradients, empty_result


def forward_by_reference(operator: Operator) -> Callable[..., torch.Tensor]:
    def kernel(*inputs: Any, **attributes: Any) -> torch.Tensor:
        check(operator, inputs, attributes)
        result = empty_result(operator, inputs[0], attributes)
        return result.copy_(operator.reference(*inputs, **attributes))

    return kernel


def out_by_reference(operator: Operator) -> Callable[..., None]:
    def kernel(*inputs: Any, out: torch.Tensor, **attributes: Any) -> None:
        check(operator, inputs, attributes)
        check_out(operator, inputs[0], out, attributes)
        overload = getattr(torch.ops.anybit, operator.name).default
        out.copy_(overload(*inputs, **attributes))

    return kernel


def batched_backward(operator: Operator) -> Callable[..., list[torch.Tensor]]:
    """Where `torch.autograd.grad(..., is_grads_batched=True)` hides a batch in the gradient.

    PyTorch repeats or batches what this is made of; tensors made here would have no batch. Sums
    have PyTorch's order, so that the last bits of parameters' gradients may differ from a loop's.
    """

    def kernel(
        gradient: torch.Tensor, *inputs: Any, wanted: list[str], **attributes: Any
    ) -> list[torch.Tensor]:
        check_backward(operator, gradient, inputs, wanted, attributes)
        partials = operator.partials(*inputs, **attributes)
        shapes = operator.broadcast_shapes(inputs, attributes)
        found = carried_back(gradient, operator.named(inputs), partials, wanted, shapes)
        return [found[name] for name in wanted]

    return kernel


def backward_by_partials(operator: Operator) -> Callable[..., list[torch.Tensor]]:
    gradients = batched_backward(operator)

    def kernel(
        gradient: torch.Tensor, *inputs: Any, wanted: list[str], **attributes: Any
    ) -> list[torch.Tensor]:
        found = gradients(gradient, *inputs, wanted=wanted, **attributes)
        results = empty_gradients(operator, inputs, wanted)
        return [result.copy_(each) for result, each in zip(results, found, strict=True)]

    return kernel
