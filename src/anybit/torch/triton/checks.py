# SPDX-License-Identifier: Apache-2.0
"""Values that must be right before a kernel runs: they cannot be seen in dtypes and shapes."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from anybit.ops import Operator
from anybit.ops.arrays import check_values

# The version in which the values of a tensor were last found right.
_FOUND_RIGHT: Any = WeakTensorKeyDictionary()


def check_values_of(operator: Operator, inputs: Sequence[torch.Tensor | None]) -> None:
    """ValueError for floats that an input may not hold, such as NaN and fractions as bit-widths.

    To look at values on a GPU means to wait for it. That is done once per tensor, and again when
    the tensor has changed. It is not done while a CUDA graph is captured, which nothing may wait
    for, and not for what numbers become, which have been checked: integers, and limits of one
    element.
    """
    for declared, value in zip(operator.inputs[1:], inputs[1:], strict=False):
        domain = declared.domain
        if value is None or not value.is_floating_point():
            continue
        if not domain.integer and (domain.minimum == -math.inf or not value.ndim):
            continue
        if value.is_cuda and torch.cuda.is_current_stream_capturing():
            continue
        version = None if value.is_inference() else value._version
        if version is None or _FOUND_RIGHT.get(value) != version:
            check_values(value, domain, declared.name)
            if version is not None:
                _FOUND_RIGHT[value] = version
