# SPDX-License-Identifier: Apache-2.0
"""The operators for JAX: the same bits, under jit, grad, vmap, scan and shard_map.

Every operator is here under its own name and signature.

>>> import jax
>>> import anybit.jax
>>> jax.jit(anybit.jax.int_quant)(jax.numpy.asarray([0.5, 1.5, 99.0]), 0.5, 0, 4)
Array([0.5, 1.5, 3.5], dtype=float32)
"""

from typing import TYPE_CHECKING, Any

from anybit.jax._functions import function_of
from anybit.jax._native import register
from anybit.ops import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable

    def __getattr__(name: str) -> Callable[..., Any]: ...


# Not at the first call: a program that was exported elsewhere needs them too.
register()

globals().update({operator.name: function_of(operator) for operator in OPERATORS})

__all__ = [operator.name for operator in OPERATORS]
