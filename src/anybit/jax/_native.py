# SPDX-License-Identifier: Apache-2.0
"""The native kernels as custom calls of XLA on CPUs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anybit._native import xla_handlers
from anybit.ops import Operator


def register() -> None:
    """Make the kernels known to XLA, under names that exported programs keep."""
    for name, handler in xla_handlers.items():
        jax.ffi.register_ffi_target(_target(name), handler, platform="cpu")


def evaluate(operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """The operator, computed by its kernel."""
    x = inputs[0]
    dtype = operator.result_dtype(attributes) if operator.result_dtype else x.dtype
    # Under vmap, what has no axis of its own gets one of size 1, x too.
    compute = jax.ffi.ffi_call(_target(operator.name), _like(x, dtype), vmap_method="expand_dims")
    return compute(*_aligned(operator, attributes, inputs), **attributes)


def gradients(
    operator: Operator,
    attributes: Mapping[str, Any],
    wanted: Collection[str],
    gradient: Any,
    inputs: Sequence[Any],
) -> dict[str, Any]:
    """The gradients of the wanted inputs, which must be `differentiable`, by the kernels."""
    aligned = _aligned(operator, attributes, inputs)
    places = [place for place, declared in enumerate(operator.inputs) if declared.name in wanted]
    # Under vmap each element of the batch has sums of its own, so that all inputs get the axis.
    compute = jax.ffi.ffi_call(
        _target(f"{operator.name}_backward"),
        tuple(_like(aligned[place], aligned[place].dtype) for place in places),
        vmap_method="broadcast_all",
    )
    bits = sum(1 << place for place in places)
    found = compute(gradient, *aligned, wanted=bits, **attributes)
    return {
        operator.inputs[place].name: jnp.reshape(result, inputs[place].shape)
        for place, result in zip(places, found, strict=True)
    }


def _target(name: str) -> str:
    return f"anybit_{name}"


def _like(array: Any, dtype: Any) -> Any:
    """What a result is like: of the array's shape and, under shard_map, on its devices.

    Nothing is cast. A weak type, which results of custom calls do not have, ends here.
    """
    return jax.lax.convert_element_type(array, dtype)


def _aligned(operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> list[Any]:
    """x, and the parameters with as many axes, so that an axis of vmap is the first of all."""
    x = inputs[0]
    parameters = [
        operator.place(value, x, declared.name, dict(attributes))
        for declared, value in zip(operator.inputs[1:], inputs[1:], strict=False)
    ]
    return [
        x,
        *(jnp.reshape(each, (1,) * (x.ndim - each.ndim) + each.shape) for each in parameters),
    ]
