# SPDX-License-Identifier: Apache-2.0
"""Programs of the operators and their gradients: kernels on CPUs, references elsewhere.

Both are traced on every platform, so that both reject the same arguments. The native kernels are
custom calls of XLA.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anybit._native import get_differentiable_inputs, xla_handlers
from anybit.jax._rounded_once import round_once
from anybit.ops import Operator
from anybit.ops.arrays import cast, get_compute_dtype
from anybit.ops.gradient import propagate_gradients


def register() -> None:
    """Register the kernels with XLA, under names that exported programs refer to."""
    for name, handler in xla_handlers.items():
        jax.ffi.register_ffi_target(_name_target(name), handler, platform="cpu")


def evaluate(operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """Return the result of the operator."""

    def native(*inputs: Any) -> Any:
        return _call_kernel(operator, attributes, inputs)

    @round_once
    def traced(*inputs: Any) -> Any:
        return _remove_weak_type(operator.reference(*_hide_repeats(operator, inputs), **attributes))

    return jax.lax.platform_dependent(*inputs, cpu=native, default=traced)


def compute_gradients(
    operator: Operator,
    attributes: Mapping[str, Any],
    names: Collection[str],
    gradient: Any,
    inputs: Sequence[Any],
) -> dict[str, Any]:
    """Return the gradients of the named inputs, from that of the result."""
    kernels = [name for name in names if name in get_differentiable_inputs(operator.name)]
    others = [name for name in names if name not in kernels]

    def by_reference(
        targets: Collection[str], gradient: Any, inputs: Sequence[Any]
    ) -> dict[str, Any]:
        partials = operator.partials(*_hide_repeats(operator, inputs), **attributes)
        shapes = operator.broadcast_shapes(inputs, attributes)
        results = propagate_gradients(
            gradient, operator.name_inputs(inputs), partials, targets, shapes
        )
        return {name: _remove_weak_type(result) for name, result in results.items()}

    def native(gradient: Any, *inputs: Any) -> dict[str, Any]:
        results = by_reference(others, gradient, inputs) if others else {}
        if kernels:
            results |= _call_backward_kernel(operator, attributes, kernels, gradient, inputs)
        return results

    @round_once
    def traced(gradient: Any, *inputs: Any) -> dict[str, Any]:
        return by_reference(names, gradient, inputs)

    @jax.custom_jvp
    def either(*arrays: Any) -> Any:
        return jax.lax.platform_dependent(*arrays, cpu=native, default=traced)

    @either.defjvp
    def second_derivative(arrays: Any, directions: Any) -> tuple[Any, Any]:
        _, change = jax.jvp(traced, arrays, directions)  # kernels have no derivatives
        return either(*arrays), change

    results: dict[str, Any] = either(gradient, *inputs)
    return results


def _remove_weak_type(array: Any) -> Any:
    """Remove a weak type, because results of kernels do not have one."""
    return jax.lax.convert_element_type(array, array.dtype)


def _hide_repeats(operator: Operator, inputs: Sequence[Any]) -> list[Any]:
    """Return inputs for the reference in a form that hides repeated parameters from XLA.

    Otherwise XLA would replace x / scale by x * (1 / scale), which rounds twice. Operators with
    broadcasting rules of their own are not affected.
    """
    x, *parameters = inputs
    if not operator.broadcasts:
        return list(inputs)
    declared = zip(operator.inputs[1:], parameters, strict=False)
    return [x, *(value if item.domain.integer else _unfold(value, x) for item, value in declared)]


def _unfold(value: Any, x: Any) -> Any:
    value = cast(value, get_compute_dtype(x))
    return jnp.where(x == x, value, jax.lax.optimization_barrier(jax.lax.stop_gradient(value)))


def _call_kernel(operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """Return the result of the kernel."""
    x = inputs[0]
    dtype = operator.result_dtype(attributes) if operator.result_dtype else x.dtype
    # Under vmap, inputs without the batch axis, x included, get one of size 1.
    compute = jax.ffi.ffi_call(
        _name_target(operator.name), _make_result_type(x, dtype), vmap_method="expand_dims"
    )
    keywords = operator.count_axis_from_end(attributes, x.ndim)
    return compute(*_align_inputs(operator, attributes, inputs), **keywords)


def _call_backward_kernel(
    operator: Operator,
    attributes: Mapping[str, Any],
    names: Collection[str],
    gradient: Any,
    inputs: Sequence[Any],
) -> dict[str, Any]:
    """Return the gradients of the named inputs, which must be `differentiable`."""
    aligned = _align_inputs(operator, attributes, inputs)
    places = [place for place, declared in enumerate(operator.inputs) if declared.name in names]
    # Under vmap gradients are sums per element of the batch, so that all inputs get the axis.
    compute = jax.ffi.ffi_call(
        _name_target(f"{operator.name}_backward"),
        tuple(_make_result_type(aligned[place], aligned[place].dtype) for place in places),
        vmap_method="broadcast_all",
    )
    bits = sum(1 << place for place in places)
    results = compute(gradient, *aligned, requested=bits, **attributes)
    return {
        operator.inputs[place].name: jnp.reshape(result, inputs[place].shape)
        for place, result in zip(places, results, strict=True)
    }


def _name_target(name: str) -> str:
    return f"anybit_{name}"


def _make_result_type(array: Any, dtype: Any) -> Any:
    """Return the type of a result: the array's shape and, under shard_map, its devices.

    There is no computation. It also removes a weak type, which custom calls do not support.
    """
    return jax.lax.convert_element_type(array, dtype)


def _align_inputs(
    operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]
) -> list[Any]:
    """Return x, and parameters of the same rank, so that vmap adds the first axis of all."""
    x = inputs[0]
    parameters = [
        operator.place(value, x, declared.name, dict(attributes))
        for declared, value in zip(operator.inputs[1:], inputs[1:], strict=False)
    ]
    return [
        x,
        *(jnp.reshape(value, (1,) * (x.ndim - value.ndim) + value.shape) for value in parameters),
    ]
