# SPDX-License-Identifier: Apache-2.0
"""The operators for PyTorch: the same bits, differentiable, compiled and exported.

Every operator is here under its own name and signature, and as `torch.ops.anybit.<name>`.

>>> import torch
>>> import anybit.torch
>>> anybit.torch.int_quant(torch.tensor([0.5, 1.5, 99.0]), 0.5, 0, 4)
tensor([0.5000, 1.5000, 3.5000])
"""

from typing import TYPE_CHECKING, Any

from anybit.ops import OPERATORS
from anybit.torch._functions import function_of

if TYPE_CHECKING:
    from collections.abc import Callable

    def __getattr__(name: str) -> Callable[..., Any]: ...


globals().update({operator.name: function_of(operator) for operator in OPERATORS})

__all__ = [operator.name for operator in OPERATORS]  # noqa: PLE0605
