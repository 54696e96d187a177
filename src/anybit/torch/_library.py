# SPDX-License-Identifier: Apache-2.0
"""The operators in PyTorch's dispatcher: schema, kernels, shapes, derivatives."""

from typing import Any

import torch

from anybit.ops import Attribute, Operator
from anybit.ops._gradient import carried_back

_LIBRARY = torch.library.Library("anybit", "DEF")
_SCHEMA_TYPES = {bool: "bool", int: "int", str: "str"}


def define(operator: Operator) -> Any:
    """Register the operator and return its overload in `torch.ops.anybit`."""
    attributes = "".join(f", {_declaration(item)}" for item in operator.attributes)
    star = ", *" * bool(attributes)
    _LIBRARY.define(f"{operator.name}({_inputs(operator)}{star}{attributes}) -> Tensor")
    _LIBRARY.impl(operator.name, operator.reference, "CPU")
    torch.library.register_fake(f"anybit::{operator.name}", _fake(operator), lib=_LIBRARY)
    if operator.differentiable:
        inputs = f"Tensor gradient, {_inputs(operator)}, *, str[] wanted"
        _LIBRARY.define(f"{operator.name}_backward({inputs}{attributes}) -> Tensor[]")
        _define_gradient(operator)
    return getattr(torch.ops.anybit, operator.name).default


def _inputs(operator: Operator) -> str:
    return ", ".join(
        f"Tensor? {declared.name}=None" if declared.optional else f"Tensor {declared.name}"
        for declared in operator.inputs
    )


def _declaration(attribute: Attribute) -> str:
    default = attribute.default
    spelled = f'"{default}"' if isinstance(default, str) else repr(default)
    return f"{_SCHEMA_TYPES[type(default)]} {attribute.name}={spelled}"


def _fake(operator: Operator) -> Any:
    def fake(x: torch.Tensor, *parameters: Any, **attributes: Any) -> torch.Tensor:
        dtype = operator.result_dtype and getattr(torch, operator.result_dtype(attributes))
        return torch.empty_like(x, dtype=dtype or x.dtype)

    return fake


def _define_gradient(operator: Operator) -> None:
    names = [declared.name for declared in operator.inputs]
    backward_name = f"{operator.name}_backward"

    def backward(
        gradient: torch.Tensor, *inputs: Any, wanted: list[str], **attributes: Any
    ) -> list[torch.Tensor]:
        given = dict(zip(names, inputs, strict=False))
        found = carried_back(gradient, given, operator.partials(*inputs, **attributes), wanted)
        return [found[name] for name in wanted]

    def fake(
        gradient: torch.Tensor, *inputs: Any, wanted: list[str], **attributes: Any
    ) -> list[torch.Tensor]:
        given = dict(zip(names, inputs, strict=False))
        return [torch.empty_like(given[name]) for name in wanted]

    _LIBRARY.impl(backward_name, backward, "CPU")
    torch.library.register_fake(f"anybit::{backward_name}", fake, lib=_LIBRARY)
    overload = getattr(torch.ops.anybit, backward_name).default

    def remember(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        ctx.save_for_backward(*inputs)
        ctx.attributes = keyword_only_inputs or {}

    def differentiate(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        wanted = [name for name, need in zip(names, ctx.needs_input_grad, strict=False) if need]
        found = overload(gradient, *ctx.saved_tensors, wanted=wanted, **ctx.attributes)
        by_name = dict(zip(wanted, found, strict=True))
        return tuple(by_name.get(name) for name in names)

    torch.library.register_autograd(
        f"anybit::{operator.name}", differentiate, setup_context=remember, lib=_LIBRARY
    )
