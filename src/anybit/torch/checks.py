# SPDX-License-Identifier: Apache-2.0
"""Checks of dtypes, shapes and attributes before a kernel runs.

Kernels check values: traced tensors have none, and reading those of another device would wait.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from anybit.ops import Operator
from anybit.ops.domain import FLOATING, Domain
from anybit.torch.results import get_result_dtype

_REAL = frozenset(
    {
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64),
    }
)


def check(operator: Operator, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    """Raise the TypeError or ValueError of the NumPy function; ValueError for mixed devices."""
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
    requested: Collection[str],
    attributes: Mapping[str, Any],
) -> None:
    """Raise TypeError or ValueError for invalid arguments of a backward operator."""
    check(operator, inputs, attributes)
    x = inputs[0]
    _check_tensor(gradient, x, FLOATING, "gradient")
    if tuple(gradient.shape) != tuple(x.shape):
        raise ValueError(
            f"gradient must have the shape of {operator.inputs[0].name}, {tuple(x.shape)}, "
            f"got {tuple(gradient.shape)}"
        )
    names = {name for name, value in operator.name_inputs(inputs).items() if value is not None}
    candidates = [name for name in operator.differentiable if name in names]
    for name in requested:
        if name not in candidates:
            raise ValueError(f"requested must be among {', '.join(candidates)}, got {name!r}")
    if len(set(requested)) != len(requested):
        raise ValueError(f"requested must name an input once, got {list(requested)}")


def check_out(
    operator: Operator, x: torch.Tensor, out: torch.Tensor, attributes: Mapping[str, Any]
) -> None:
    dtype = get_result_dtype(operator, x, attributes)
    if tuple(out.shape) != tuple(x.shape) or out.dtype != dtype or out.device != x.device:
        raise ValueError(
            f"out must have shape {tuple(x.shape)} and dtype {dtype} on {x.device}, "
            f"got shape {tuple(out.shape)} and dtype {out.dtype} on {out.device}"
        )
    if out.numel() and _overlaps_itself(out):
        raise ValueError(
            "elements of out must not overlap, and its axes must not be interleaved; "
            f"got shape {tuple(out.shape)} with strides {out.stride()}"
        )


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether an axis has a smaller stride than the extent of the axes inside of it.

    Views of a tensor do so only if elements repeat, or if `as_strided` interleaved them.
    """
    axes = zip(tensor.stride(), tensor.shape, strict=True)
    moving = [(step, size) for step, size in axes if size != 1]
    # The kernel checks traced sizes: sorting them would fix their order in the program.
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
    """Call the NumPy function on one element of x's rank, with valid parameters."""
    one = np.ones((1,) * rank, operator.inputs[0].domain.dtypes[0])
    operator.function(one, *[1] * (operator.required_inputs - 1), **attributes)
