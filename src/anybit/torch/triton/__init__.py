# SPDX-License-Identifier: Apache-2.0
"""Kernels for GPUs, derived from the references of the operators.

The reference, or its derivatives, runs once on arrays that record operations (`traced`,
`namespace`). The recorded expression becomes the source of a Triton kernel (`source`), with tiles
that fit the layout of the tensors (`tiles`, `plan`). Thus operators have no second GPU
implementation, and a new operator has kernels at once.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from anybit.ops import Operator
from anybit.ops.arrays import check_values
from anybit.ops.gradient import propagate_gradients
from anybit.torch.checks import check, check_backward
from anybit.torch.triton.namespace import make_input
from anybit.torch.triton.plan import Layout, Plan, Result, get_layouts
from anybit.torch.triton.tiles import TileSizes
from anybit.torch.triton.traced import Traced

Forward = Callable[..., torch.Tensor]
Backward = Callable[..., list[torch.Tensor]]

# The largest number of cached plans per operator; computing one takes milliseconds.
_MAX_PLANS = 4096
# The last checked version of each tensor.
_CHECKED_VERSIONS: Any = WeakTensorKeyDictionary()


@functools.cache
def make_forward_kernel(operator: Operator) -> Forward:
    """Return the operator for tensors of a GPU, with the arguments of the reference."""
    plans: dict[Any, Plan] = {}

    def kernel(*inputs: Any, **attributes: Any) -> torch.Tensor:
        key = (get_layouts(inputs), *attributes.items())
        plan = plans.get(key)
        if plan is None:
            check(operator, inputs, attributes)
            plan = _cache_plan(plans, key, make_forward_plan(operator, inputs, attributes))
        check_input_values(operator, inputs)
        return plan.run(inputs)[0]

    return kernel


@functools.cache
def make_backward_kernel(operator: Operator) -> Backward:
    """Return the function that computes the gradients of the inputs named in `requested`.

    Its arguments are the gradient of the result, then those of the reference. Gradients of
    parameters are sums over tiles: not in the order of `propagate_gradients`, but deterministic.
    """
    plans: dict[Any, Plan] = {}

    def kernel(
        gradient: torch.Tensor, *inputs: Any, requested: Sequence[str], **attributes: Any
    ) -> list[torch.Tensor]:
        key = (get_layouts((*inputs, gradient)), tuple(requested), *attributes.items())
        plan = plans.get(key)
        if plan is None:
            check_backward(operator, gradient, inputs, requested, attributes)
            new = make_backward_plan(operator, gradient, inputs, requested, attributes)
            plan = _cache_plan(plans, key, new)
        check_input_values(operator, inputs)
        return plan.run((*inputs, gradient))

    return kernel


def make_forward_plan(
    operator: Operator, inputs: Sequence[Any], attributes: dict[str, Any]
) -> Plan:
    """Return the forward kernel for checked inputs of these layouts."""
    layouts = get_layouts(inputs)
    traced = [_record_input(layout, place, place == 0) for place, layout in enumerate(layouts)]
    value = operator.reference(*traced, **attributes)
    names = [declared.name for declared in operator.inputs[: len(inputs)]]
    result = _make_result(value, "result", value.shape, like_x=True)
    shapes = operator.broadcast_shapes(traced, attributes)
    views = [shapes.get(name) for name in names]
    return Plan(f"{operator.name}_forward", names, layouts, [result], views)


def make_backward_plan(
    operator: Operator,
    gradient: Any,
    inputs: Sequence[Any],
    requested: Sequence[str],
    attributes: dict[str, Any],
) -> Plan:
    """Return the backward kernel for checked inputs of these layouts."""
    layouts = get_layouts((*inputs, gradient))
    varying = (0, len(inputs))
    *traced, upstream = (
        _record_input(layout, place, place in varying) for place, layout in enumerate(layouts)
    )
    names = [declared.name for declared in operator.inputs[: len(inputs)]]
    shapes = operator.broadcast_shapes(traced, attributes)
    gradients = propagate_gradients(
        upstream,
        dict(zip(names, traced, strict=True)),
        operator.partials(*traced, **attributes),
        requested,
        shapes,
    )
    results = [
        _make_result(gradients[name], f"{name}_gradient", shapes[name], like_x=name == names[0])
        for name in requested
    ]
    views = [*(shapes.get(name) for name in names), tuple(gradient.shape)]
    return Plan(f"{operator.name}_backward", [*names, "gradient"], layouts, results, views)


def _cache_plan(plans: dict[Any, Plan], key: Any, plan: Plan) -> Plan:
    if len(plans) >= _MAX_PLANS:
        plans.clear()
    plans[key] = plan
    return plan


def _record_input(layout: Layout | None, place: int, varies: bool) -> Traced | None:
    if layout is None:
        return None
    return make_input(place, layout.dtype_name, layout.shape, varies=varies)


def _make_result(value: Traced, name: str, shape: TileSizes, like_x: bool) -> Result:
    """Return a result without the last casts, sums and reshapes, which kernels do themselves.

    `shape` is the shape in which the value broadcasts to x.
    """
    dtype, delivered = getattr(torch, value.dtype), value.shape
    inner = value
    while inner.operation in ("cast", "reshape"):
        inner = inner.operands[0]
    if inner.operation == "sum":
        value = inner.operands[0]
    else:
        if value.operation == "cast":
            value = value.operands[0]
        if delivered != shape:  # `Plan` does the last reshape
            value = value.operands[0]
    return Result(name, value, dtype, shape, like_x, delivered)


def check_input_values(operator: Operator, inputs: Sequence[torch.Tensor | None]) -> None:
    """Raise ValueError for values outside of an input's domain, such as fractional bit-widths.

    Reading values waits for the GPU. It is done once per tensor, and again after a change of the
    tensor. It is not done while a CUDA graph is captured, where waiting is not allowed, and not for
    integers and limits of one element, which were numbers and have been checked.
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
        if version is None or _CHECKED_VERSIONS.get(value) != version:
            check_values(value, domain, declared.name)
            if version is not None:
                _CHECKED_VERSIONS[value] = version
