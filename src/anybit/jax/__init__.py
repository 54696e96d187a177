# SPDX-License-Identifier: Apache-2.0
"""Operators for JAX: bit-exact, under jit, grad, vmap, scan and shard_map.

Each operator has its own name and signature.

>>> import jax
>>> import anybit.jax
>>> jax.jit(anybit.jax.int_quant)(jax.numpy.asarray([0.5, 1.5, 99.0]), 0.5, 0, 4)
Array([0.5, 1.5, 3.5], dtype=float32)
"""

from typing import TYPE_CHECKING, Any

from anybit.jax._functions import make_function
from anybit.jax._programs import register
from anybit.ops import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable

    def __getattr__(name: str) -> Callable[..., Any]: ...


# Programs exported by another process need the kernels before any call.
register()

globals().update({operator.name: make_function(operator) for operator in OPERATORS})

__all__ = [operator.name for operator in OPERATORS]
