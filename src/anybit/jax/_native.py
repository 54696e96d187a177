# SPDX-License-Identifier: Apache-2.0
"""The native kernels as custom calls of XLA on CPUs."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from anybit import _core
from anybit.ops import Operator


def register() -> None:
    """Make the kernels known to XLA, under names that exported programs keep."""
    for name, handler in _core.xla_handlers.items():
        jax.ffi.register_ffi_target(_target(name), handler, platform="cpu")


def call(operator: Operator, attributes: Mapping[str, Any], *inputs: Any) -> Any:
    """The operator, computed by its kernel."""
    x = inputs[0]
    parameters = [
        _aligned(operator.place(value, x, declared.name, dict(attributes)), x.ndim)
        for declared, value in zip(operator.inputs[1:], inputs[1:], strict=False)
    ]
    dtype = operator.result_dtype(attributes) if operator.result_dtype else x.dtype
    # What the result is like: of x's shape and, under shard_map, on x's devices. Nothing is cast,
    # and a weak type, which custom calls do not have, ends here.
    like_x = jax.lax.convert_element_type(x, dtype)
    compute = jax.ffi.ffi_call(_target(operator.name), like_x, vmap_method="expand_dims")
    return compute(x, *parameters, **attributes)


def _target(name: str) -> str:
    return f"anybit_{name}"


def _aligned(parameter: Any, rank: int) -> Any:
    """The parameter with as many axes as x, so that an axis that vmap adds is the first of both."""
    return jnp.reshape(parameter, (1,) * (rank - parameter.ndim) + parameter.shape)
