# SPDX-License-Identifier: Apache-2.0
"""Conversion of numbers, lists and NumPy arrays to tensors, with at most one rounding.

Integer parameters are checked and converted as integers; others get x's compute type, float32 or
float64. Values that Python has are checked in Python, without waiting for a device.
"""

import math
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
import torch

from anybit.formats import LARGEST_FLOAT32
from anybit.ops import Input, Operator
from anybit.ops.arrays import convert_parameter
from anybit.ops.domain import Domain

_ROUNDS_TO_INFINITY = 2.0**128 - 2.0**103
# All integers up to this one are float64 numbers, so that a conversion rounds once.
_EXACT = 2**53
# Larger integers have the effect of this one; the conversion must not wrap.
_MAX_INTEGER = 2**62
Attributes: TypeAlias = Mapping[str, Any]
# The attributes, the parameters with None in place of tensors, and the indices of tensors among the
# inputs.
SplitArguments: TypeAlias = tuple[Attributes, tuple[Any, ...], tuple[int, ...]]
ONLY_X: tuple[int, ...] = (0,)
# Types of parameters that are passed to kernels without a conversion.
NUMBERS = frozenset({float, int, bool, NoneType})


def convert_to_tensors(operator: Operator, inputs: Sequence[Any]) -> list[torch.Tensor | None]:
    """Convert the inputs of a call; x is a tensor."""
    x = inputs[0]
    parameters = zip(inputs[1:], operator.inputs[1:], strict=True)
    return [x, *[convert_to_parameter(value, declared, x) for value, declared in parameters]]


def split_call(
    inputs: Sequence[Any], attributes: Attributes
) -> tuple[SplitArguments, Sequence[torch.Tensor]]:
    """Separate a call and its tensors. The first input is a tensor."""
    parameters = tuple(inputs[1:])
    for value in parameters:
        if type(value) not in NUMBERS:
            break
    else:
        return (attributes, parameters, ONLY_X), inputs[:1]
    tensors = [inputs[0]]
    places = ONLY_X
    rest = list(parameters)
    for place, value in enumerate(parameters, 1):
        if type(value) not in NUMBERS:
            tensors.append(value)
            places += (place,)
            rest[place - 1] = None
    return (attributes, tuple(rest), places), tensors


def join_call(call: SplitArguments, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Return the inputs of a call from its parts."""
    _, parameters, places = call
    if len(places) == 1:
        return tensors[0], *parameters
    inputs = [tensors[0], *parameters]
    for place, tensor in zip(places, tensors, strict=True):
        inputs[place] = tensor
    return tuple(inputs)


def convert_to_parameter(value: Any, declared: Input, x: torch.Tensor) -> torch.Tensor | None:
    """Convert a value to a tensor on x's device; errors are those of the NumPy function."""
    if isinstance(value, torch.Tensor):
        return value
    if value is None and declared.optional:
        return None
    if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        if declared.domain.integer:
            return _convert_integer(value, declared, x)
        return _convert_real(value, declared, x)
    return _convert_array(value, declared, x)


def _convert_integer(value: Any, declared: Input, x: torch.Tensor) -> torch.Tensor:
    domain = declared.domain
    if isinstance(value, float):
        if not value.is_integer():  # NaN and infinities are not integers
            raise ValueError(_describe_refusal(declared, value))
        value = int(value)
    if not domain.minimum <= value <= domain.maximum:
        raise ValueError(_describe_refusal(declared, value))
    if abs(value) > _MAX_INTEGER:
        value = _MAX_INTEGER if value > 0 else -_MAX_INTEGER
    return torch.full((), value, dtype=_get_integer_type(domain), device=x.device)


def _convert_real(value: Any, declared: Input, x: torch.Tensor) -> torch.Tensor:
    if declared.domain.minimum > -math.inf and not value >= declared.domain.minimum:
        raise ValueError(_describe_refusal(declared, value))
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if not isinstance(value, (float, torch.SymFloat)) and abs(value) > _EXACT:
        if abs(value) < 2**63:
            return torch.full((), value, dtype=torch.int64, device=x.device).to(dtype)
        value = _convert_to_float(value, declared)
    if dtype == torch.float32 and abs(value) > LARGEST_FLOAT32:  # which PyTorch refuses to round
        magnitude = math.inf if abs(value) >= _ROUNDS_TO_INFINITY else LARGEST_FLOAT32
        value = magnitude if value > 0 else -magnitude
    return torch.full((), value, dtype=dtype, device=x.device)


def _convert_array(value: Any, declared: Input, x: torch.Tensor) -> torch.Tensor:
    domain, wide = declared.domain, x.dtype == torch.float64
    if torch.compiler.is_compiling():
        return _convert_traced_array(value, domain, x)
    like = np.empty(0, np.float64 if wide else np.float32)
    with np.errstate(all="ignore"):
        tensor = torch.from_numpy(np.asarray(convert_parameter(value, domain, like, declared.name)))
    return tensor.to(x.device, _get_integer_type(domain) if domain.integer else tensor.dtype)


def _convert_traced_array(value: Any, domain: Domain, x: torch.Tensor) -> torch.Tensor:
    """Convert an array in a traced program, without NumPy; the kernel checks the values."""
    if hasattr(value, "dtype"):
        return torch.as_tensor(value, device=x.device)
    if not domain.integer:
        exact = torch.as_tensor(value, dtype=torch.float64)
        return exact.to(x.device, torch.float64 if x.dtype == torch.float64 else torch.float32)
    tensor = torch.as_tensor(value, device=x.device)
    return tensor if tensor.is_floating_point() else tensor.to(_get_integer_type(domain))


def _get_integer_type(domain: Domain) -> torch.dtype:
    return getattr(torch, domain.dtypes[-1]) if domain.dtypes else torch.int64


def _convert_to_float(value: int, declared: Input) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{declared.name} is an integer beyond every float") from None


def _describe_refusal(declared: Input, value: Any) -> str:
    text = f"{_convert_to_float(value, declared):.17g}"
    return f"{declared.name} must be {declared.domain.description}, got {text}"
