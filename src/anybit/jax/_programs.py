# SPDX-License-Identifier: Apache-2.0
"""What a call and its gradient compute: the kernels on CPUs, the references on other platforms.

Both are traced on every platform, so that both refuse what they do not take.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anybit._native import differentiable
from anybit.jax import _native
from anybit.jax._rounded_once import rounded_once
from anybit.ops import Operator
from anybit.ops.arrays import cast, compute_type
from anybit.ops.gradient import carried_back


def evaluate(operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """The result of the operator."""

    def native(*inputs: Any) -> Any:
        return _native.evaluate(operator, attributes, inputs)

    @rounded_once
    def traced(*inputs: Any) -> Any:
        return _strong(operator.reference(*_unfolded(operator, inputs), **attributes))

    return jax.lax.platform_dependent(*inputs, cpu=native, default=traced)


def gradients(
    operator: Operator,
    attributes: Mapping[str, Any],
    wanted: Collection[str],
    gradient: Any,
    inputs: Sequence[Any],
) -> dict[str, Any]:
    """The gradients of the wanted inputs, from that of the result."""
    kernels = [name for name in wanted if name in differentiable(operator.name)]
    others = [name for name in wanted if name not in kernels]

    def by_reference(
        names: Collection[str], gradient: Any, inputs: Sequence[Any]
    ) -> dict[str, Any]:
        partials = operator.partials(*_unfolded(operator, inputs), **attributes)
        shapes = operator.broadcast_shapes(inputs, attributes)
        found = carried_back(gradient, operator.named(inputs), partials, names, shapes)
        return {name: _strong(each) for name, each in found.items()}

    def native(gradient: Any, *inputs: Any) -> dict[str, Any]:
        found = by_reference(others, gradient, inputs) if others else {}
        if kernels:
            found |= _native.gradients(operator, attributes, kernels, gradient, inputs)
        return found

    @rounded_once
    def traced(gradient: Any, *inputs: Any) -> dict[str, Any]:
        return by_reference(wanted, gradient, inputs)

    @jax.custom_jvp
    def either(*arrays: Any) -> Any:
        return jax.lax.platform_dependent(*arrays, cpu=native, default=traced)

    @either.defjvp
    def second_derivative(arrays: Any, directions: Any) -> tuple[Any, Any]:
        _, change = jax.jvp(traced, arrays, directions)  # kernels have none
        return either(*arrays), change

    found: dict[str, Any] = either(gradient, *inputs)
    return found


def _strong(array: Any) -> Any:
    """Without a weak type, which results of kernels do not have."""
    return jax.lax.convert_element_type(array, array.dtype)


def _unfolded(operator: Operator, inputs: Sequence[Any]) -> list[Any]:
    """Inputs for the reference, with parameters of which XLA does not see that they are repeated.

    It would replace x / scale by x * (1 / scale), which rounds twice. Parameters that broadcast by
    a rule of their own are left as they are.
    """
    x, *parameters = inputs
    if not operator.broadcasts:
        return list(inputs)
    declared = zip(operator.inputs[1:], parameters, strict=False)
    return [x, *(value if item.domain.integer else _unfold(value, x) for item, value in declared)]


def _unfold(value: Any, x: Any) -> Any:
    value = cast(value, compute_type(x))
    return jnp.where(x == x, value, jax.lax.optimization_barrier(jax.lax.stop_gradient(value)))
