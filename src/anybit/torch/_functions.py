# SPDX-License-Identifier: Apache-2.0
"""The operators as functions of tensors and numbers, with the signatures of the NumPy ones."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from anybit.ops import Operator
from anybit.torch._library import define


def function_of(operator: Operator) -> Callable[..., Any]:
    """The public function. Numbers become tensors in x's compute type, on x's device."""
    overload = define(operator)
    signature = inspect.signature(operator.function)

    @functools.wraps(operator.function)
    def function(*arguments: Any, **keywords: Any) -> Any:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        given = bound.arguments
        out = given.pop("out")
        inputs = [given.pop(declared.name) for declared in operator.inputs]
        x = inputs[0]
        parameters = [
            value if value is None or isinstance(value, torch.Tensor) else _tensor(value, x)
            for value in inputs[1:]
        ]
        result = overload(x, *parameters, **given)
        return result if out is None else out.copy_(result)

    return function


def _tensor(value: Any, x: torch.Tensor) -> torch.Tensor:
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    whole = isinstance(value, int) and not isinstance(value, bool)
    return torch.as_tensor(value, dtype=torch.int64 if whole else kind, device=x.device)
