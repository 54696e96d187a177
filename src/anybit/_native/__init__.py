# SPDX-License-Identifier: Apache-2.0
"""The native module, and the C++ behind it. Names no operator.

What is here is what the package uses of `_core`, the compiled module itself.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from anybit._native import _core

FOLDER = Path(_core.__file__).parent
"""Where the compiled libraries are, which need not be beside this file."""

isa = _core.isa
num_threads = _core.num_threads
set_num_threads = _core.set_num_threads
limit_threads = _core.limit_threads

Network = _core.Network
Call = _core.Call

xla_handlers = _core.xla_handlers


def kernel(operator: str) -> Callable[..., Any]:
    """An operator, by its name, on arrays."""
    found: Callable[..., Any] = getattr(_core, operator)
    return found


def backward_kernel(operator: str) -> Callable[..., list[Any]]:
    """The gradients of those of its inputs that are `wanted`."""
    found: Callable[..., list[Any]] = getattr(_core, f"{operator}_backward")
    return found


def differentiable(operator: str) -> frozenset[str]:
    """The inputs that its `backward_kernel` gives gradients of; where there are none, no kernel."""
    return frozenset(_core.descriptions[operator]["differentiable"])
