# SPDX-License-Identifier: Apache-2.0
"""Kernels for GPUs, derived from the references of the operators.

The reference, or its derivatives, runs once on arrays that record what is done to them
(`traced`, `namespace`). The expression that is left becomes the text of a Triton kernel (`source`),
cut to the layout of the tensors (`tiles`, `plan`). So there is no third
implementation of an operator, and a new operator has kernels at once.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from anybit.ops import Operator
from anybit.ops.gradient import carried_back
from anybit.torch.checks import check, check_backward
from anybit.torch.triton.checks import check_values_of
from anybit.torch.triton.namespace import array_input
from anybit.torch.triton.plan import Layout, Plan, Result, layouts_of
from anybit.torch.triton.tiles import Sizes
from anybit.torch.triton.traced import Traced

Forward = Callable[..., torch.Tensor]
Backward = Callable[..., list[torch.Tensor]]

# Plans that are kept; to work one out again takes milliseconds.
_KEPT = 4096


@functools.cache
def forward_kernel(operator: Operator) -> Forward:
    """The operator on tensors of a GPU. It takes what the reference takes, without `out`."""
    plans: dict[Any, Plan] = {}

    def kernel(*inputs: Any, **attributes: Any) -> torch.Tensor:
        key = (layouts_of(inputs), *attributes.items())
        plan = plans.get(key)
        if plan is None:
            check(operator, inputs, attributes)
            plan = _kept(plans, key, forward_plan(operator, inputs, attributes))
        check_values_of(operator, inputs)
        return plan.run(inputs)[0]

    return kernel


@functools.cache
def backward_kernel(operator: Operator) -> Backward:
    """The gradients of the inputs named in `wanted`, in that order.

    It takes the gradient of the result, then what the reference takes. Gradients of parameters are
    sums over what each tile sums up: not in the order of `carried_back`, but the same every time.
    """
    plans: dict[Any, Plan] = {}

    def kernel(
        gradient: torch.Tensor, *inputs: Any, wanted: Sequence[str], **attributes: Any
    ) -> list[torch.Tensor]:
        key = (layouts_of((*inputs, gradient)), tuple(wanted), *attributes.items())
        plan = plans.get(key)
        if plan is None:
            check_backward(operator, gradient, inputs, wanted, attributes)
            new = backward_plan(operator, gradient, inputs, wanted, attributes)
            plan = _kept(plans, key, new)
        check_values_of(operator, inputs)
        return plan.run((*inputs, gradient))

    return kernel


def forward_plan(operator: Operator, inputs: Sequence[Any], attributes: dict[str, Any]) -> Plan:
    """The kernel for such inputs; they have been checked."""
    layouts = layouts_of(inputs)
    traced = [_recorded(layout, place, place == 0) for place, layout in enumerate(layouts)]
    value = operator.reference(*traced, **attributes)
    names = [declared.name for declared in operator.inputs[: len(inputs)]]
    result = _result(value, "result", value.shape, like_x=True)
    shapes = operator.broadcast_shapes(traced, attributes)
    views = [shapes.get(name) for name in names]
    return Plan(f"{operator.name}_forward", names, layouts, [result], views)


def backward_plan(
    operator: Operator,
    gradient: Any,
    inputs: Sequence[Any],
    wanted: Sequence[str],
    attributes: dict[str, Any],
) -> Plan:
    """The kernel for such inputs; they have been checked."""
    layouts = layouts_of((*inputs, gradient))
    varying = (0, len(inputs))
    *traced, upstream = (
        _recorded(layout, place, place in varying) for place, layout in enumerate(layouts)
    )
    names = [declared.name for declared in operator.inputs[: len(inputs)]]
    shapes = operator.broadcast_shapes(traced, attributes)
    found = carried_back(
        upstream,
        dict(zip(names, traced, strict=True)),
        operator.partials(*traced, **attributes),
        wanted,
        shapes,
    )
    results = [
        _result(found[name], f"{name}_gradient", shapes[name], like_x=name == names[0])
        for name in wanted
    ]
    views = [*(shapes.get(name) for name in names), tuple(gradient.shape)]
    return Plan(f"{operator.name}_backward", [*names, "gradient"], layouts, results, views)


def _kept(plans: dict[Any, Plan], key: Any, plan: Plan) -> Plan:
    if len(plans) >= _KEPT:
        plans.clear()
    plans[key] = plan
    return plan


def _recorded(layout: Layout | None, place: int, varies: bool) -> Traced | None:
    if layout is None:
        return None
    return array_input(place, layout.dtype_name, layout.shape, varies=varies)


def _result(value: Traced, name: str, shape: Sizes, like_x: bool) -> Result:
    """The result that has this value. Kernels cast where they store, and sum in their own way.

    `shape` is the one in which it broadcasts to x.
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
        if delivered != shape:  # the last reshape, which `Plan` does
            value = value.operands[0]
    return Result(name, value, dtype, shape, like_x, delivered)
