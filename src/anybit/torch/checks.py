# SPDX-License-Identifier: Apache-2.0
"""What is refused before any kernel runs, told from dtypes, shapes and attributes alone.

Values are not looked at: a tensor that is being traced has none, and those of another device would
have to be waited for. Kernels check them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from anybit.ops import Operator
from anybit.ops.domain import FLOATING, Domain
from anybit.torch.results import result_dtype

_REAL = frozenset(
    {
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64),
    }
)


def check(operator: Operator, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    """TypeError or ValueError, as the NumPy function has them, and for mixed devices."""
    x = inputs[0]
    _check_tensor(x, x, operator.inputs[0].domain, operator.inputs[0].name)
    complete = operator.complete(attributes)
    _check_attributes(operator, x.ndim, complete)
    for declared, value in zip(operator.inputs[1:], inputs[1:], strict=False):
        if value is not None:
            _check_tensor(value, x, declared.domain, declared.name)
            operator.place(value, x, declared.name, complete)


def check_backward(
    operator: Operator,
    gradient: torch.Tensor,
    inputs: Sequence[Any],
    wanted: Collection[str],
    attributes: Mapping[str, Any],
) -> None:
    """The same for a backward operator."""
    check(operator, inputs, attributes)
    x = inputs[0]
    _check_tensor(gradient, x, FLOATING, "gradient")
    if tuple(gradient.shape) != tuple(x.shape):
        raise ValueError(
            f"gradient must have the shape of {operator.inputs[0].name}, {tuple(x.shape)}, "
            f"got {tuple(gradient.shape)}"
        )
    given = {name for name, value in operator.named(inputs).items() if value is not None}
    for name in wanted:
        if name not in operator.differentiable or name not in given:
            known = ", ".join(each for each in operator.differentiable if each in given)
            raise ValueError(f"wanted must be among {known}, got {name!r}")
    if len(set(wanted)) != len(wanted):
        raise ValueError(f"wanted must name an input once, got {list(wanted)}")


def check_out(
    operator: Operator, x: torch.Tensor, out: torch.Tensor, attributes: Mapping[str, Any]
) -> None:
    dtype = result_dtype(operator, x, attributes)
    if tuple(out.shape) != tuple(x.shape) or out.dtype != dtype or out.device != x.device:
        raise ValueError(
            f"out must have shape {tuple(x.shape)} and dtype {dtype} on {x.device}, "
            f"got shape {tuple(out.shape)} and dtype {out.dtype} on {out.device}"
        )
    if out.numel() and _overlaps_itself(out):
        raise ValueError(
            "out must have one place for each element, none between those of another axis; "
            f"got shape {tuple(out.shape)} with strides {out.stride()}"
        )


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether an axis steps into what the axes with smaller steps reach.

    No view of a tensor does that, unless elements of it repeat or `as_strided` interleaved them.
    """
    axes = zip(tensor.stride(), tensor.shape, strict=True)
    moving = [(step, size) for step, size in axes if size != 1]
    # Sizes that are traced wait for the kernel: sorting them would tie the program to one order.
    if not all(isinstance(number, int) for axis in moving for number in axis):
        return any(isinstance(step, int) and step == 0 for step, _ in moving)
    reached = 0
    for step, size in sorted(moving):
        if step <= reached:
            return True
        reached += step * (size - 1)
    return False


def _check_tensor(value: torch.Tensor, x: torch.Tensor, domain: Domain, name: str) -> None:
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {value.layout}; use to_dense()")
    if value.device != x.device:
        raise ValueError(
            f"{name} must be on x's device {x.device}, got {value.device}; "
            f"use {name}.to({str(x.device)!r})"
        )
    dtype = str(value.dtype).removeprefix("torch.")
    if value.dtype not in _REAL or (domain.dtypes and dtype not in domain.dtypes):
        raise TypeError(f"{name} must be {domain.description}, got dtype {dtype}")


def _check_attributes(operator: Operator, rank: int, attributes: Mapping[str, Any]) -> None:
    """Lets the kernel look at them: one element of x's rank, with parameters that always fit."""
    one = np.ones((1,) * rank, operator.inputs[0].domain.dtypes[0])
    operator.function(one, *[1] * (operator.required_inputs - 1), **attributes)
