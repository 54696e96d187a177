# SPDX-License-Identifier: Apache-2.0
"""Operators on PyTorch's tensors: the back-ends `torch` and `torch-compile`."""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from cases import Case
from torch._dynamo.exc import TorchRuntimeError, Unsupported
from x_types import reads_codes, x_dtypes

import anybit.torch
from anybit.ops import Operator

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
RAISED = re.compile(r"""(?:got|raised exception) (TypeError|ValueError)\((['"])(.*)\2\)$""", re.M)


def tensor_as_x(operator: Operator, x: torch.Tensor) -> torch.Tensor:
    """Return floats as they are, or truncated to the first type of codes, if x is one of codes."""
    return x.to(getattr(torch, x_dtypes(operator)[0])) if reads_codes(operator) else x


def evaluate(operator: str, *inputs: Any, **attributes: Any) -> np.ndarray:
    """Compute one call; arrays become tensors of the same strides."""
    return as_array(getattr(anybit.torch, operator)(*as_tensors(inputs), **attributes))


def evaluate_compiled(operator: str, *inputs: Any, **attributes: Any) -> np.ndarray:
    """Compute one call in a compiled program; inputs other than tensors are constants."""
    if not is_traceable(inputs):
        pytest.skip("PyTorch refuses to trace arrays of text, before our code sees them")
    function = getattr(anybit.torch, operator)
    tensors = as_tensors(inputs)
    with compile_function(lambda: function(*tensors, **attributes)) as program:
        return as_array(program())


def evaluate_all_compiled(operator: str, calls: Sequence[Case]) -> list[np.ndarray]:
    """Compute calls in one compiled program."""
    function = getattr(anybit.torch, operator)
    tensors = [as_tensors(case.inputs) for case in calls]

    def run() -> list[torch.Tensor]:
        rows = zip(tensors, calls, strict=True)
        return [function(*inputs, **case.attributes) for inputs, case in rows]

    with compile_function(run) as program:
        return [as_array(result) for result in program()]


@contextmanager
def compile_function(
    function: Callable[..., Any], backend: Any = "aot_eager", **options: Any
) -> Iterator[Callable[..., Any]]:
    """Compile a function as one graph for this context; errors have their eager types."""
    torch._dynamo.reset()  # PyTorch recompiles one piece of code a few times only
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield torch.compile(function, backend=backend, fullgraph=True, **options)
    except (TorchRuntimeError, Unsupported) as error:
        raised = RAISED.search(str(error))
        if raised is None:
            raise
        raise {"TypeError": TypeError, "ValueError": ValueError}[raised[1]](raised[3]) from error
    finally:
        logger.setLevel(level)
        torch._dynamo.reset()


def as_tensors(inputs: tuple[Any, ...]) -> list[Any]:
    x, *parameters = inputs
    return [
        as_tensor(x),
        *(value if stays_number(value) else as_tensor(value) for value in parameters),
    ]


def is_traceable(inputs: tuple[Any, ...]) -> bool:
    return not any(isinstance(value, np.ndarray) and value.dtype.kind == "U" for value in inputs)


def stays_number(value: Any) -> bool:
    """Return whether a parameter has no counterpart in PyTorch: numbers, lists, None and text."""
    return not isinstance(value, np.ndarray | np.generic) or value.dtype.kind in "OSU"


def as_tensor(value: Any) -> torch.Tensor:
    """Return a tensor of the array's memory; PyTorch has no negative strides."""
    array = np.asarray(value)
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        if array.dtype == BFLOAT16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    return tensor.numpy()


def assert_same_tensor(actual: torch.Tensor, expected: Any) -> None:
    """Equal dtype, shape and bits; NaN equals NaN."""
    expected_tensor = as_tensor(expected)
    assert actual.dtype == expected_tensor.dtype
    torch.testing.assert_close(actual, expected_tensor, rtol=0, atol=0, equal_nan=True)
    ordinary = ~actual.isnan()
    assert torch.equal(actual.signbit() & ordinary, expected_tensor.signbit() & ordinary)
