# SPDX-License-Identifier: Apache-2.0
"""Operators as Triton kernels: on a GPU if there is one, else under Triton's interpreter."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch_backend import as_array, as_tensors

from anybit.ops import OPERATORS
from anybit.torch import triton
from anybit.torch.dispatch.parameters import convert_to_parameter

# Elementwise operators have kernels; those that reduce blocks run their reference on GPUs.
BY_NAME = {operator.name: operator for operator in OPERATORS if operator.block_axis is None}
FORWARD: dict[str, Callable[..., torch.Tensor]] = {
    name: triton.make_forward_kernel(operator) for name, operator in BY_NAME.items()
}
BACKWARD: dict[str, Callable[..., list[torch.Tensor]]] = {
    name: triton.make_backward_kernel(operator) for name, operator in BY_NAME.items()
}
DEVICE = "cuda" if torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ else "cpu"


def evaluate(operator: str, *inputs: Any, **attributes: Any) -> np.ndarray:
    """Call an operator; arrays become tensors of the same strides, numbers and lists tensors."""
    with interpreter():
        return as_array(FORWARD[operator](*as_device_tensors(operator, inputs), **attributes).cpu())


def gradients(
    operator: str,
    gradient: np.ndarray,
    inputs: tuple[Any, ...],
    attributes: dict[str, Any],
    names: Sequence[str],
) -> list[np.ndarray]:
    arriving = as_tensors((gradient,))[0].to(DEVICE)
    arguments = as_device_tensors(operator, inputs)
    with interpreter():
        results = BACKWARD[operator](arriving, *arguments, requested=names, **attributes)
    return [as_array(tensor.cpu()) for tensor in results]


def as_device_tensors(operator: str, inputs: tuple[Any, ...]) -> list[torch.Tensor | None]:
    """Return all inputs as tensors on the device."""
    x, *rest = (
        value.to(DEVICE) if isinstance(value, torch.Tensor) else value
        for value in as_tensors(inputs)
    )
    declared = BY_NAME[operator].inputs[1:]
    return [
        x,
        *(
            convert_to_parameter(value, parameter, x)
            for value, parameter in zip(rest, declared, strict=False)
        ),
    ]


@contextmanager
def interpreter() -> Iterator[None]:
    """Triton reads the variable whenever it is handed a function."""
    before = os.environ.get("TRITON_INTERPRET")
    if DEVICE == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield
    finally:
        os.environ.pop("TRITON_INTERPRET", None)
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before
