# SPDX-License-Identifier: Apache-2.0
"""Registration of the operators in PyTorch's dispatcher: schemas, and kernels by key.

There is `torch.ops.anybit.<operator>` and, for differentiable operators, `<operator>_backward`,
which returns the gradients of the inputs named in `requested`.
"""

from collections.abc import Callable
from typing import Any

import torch

from anybit.ops import Attribute, Operator
from anybit.torch.checks import check, check_backward, check_out
from anybit.torch.dispatch import autograd, cpu, gpu, reference, vmap
from anybit.torch.results import make_empty_gradients, make_empty_result

_LIBRARY = torch.library.Library("anybit", "DEF")
_SCHEMA_TYPES = {bool: "bool", int: "int", str: "str"}
# Devices without kernels of their own, and layouts, which are refused.
_FALLBACK = "CompositeExplicitAutograd"


def define(operator: Operator) -> tuple[Any, Any]:
    """Register an operator; return its overload and that of its gradient, or None."""
    overload = _declare(
        operator.name, f"{_declare_inputs(operator)}{_declare_attributes(operator)}", "Tensor"
    )
    _LIBRARY.impl(operator.name, reference.make_reference_forward(operator), _FALLBACK)
    _LIBRARY.impl(operator.name, cpu.make_forward_kernel(operator), "CPU")
    _LIBRARY.impl(operator.name, gpu.make_forward_kernel(operator), "CUDA")
    torch.library.register_fake(overload.name(), _make_fake(operator), lib=_LIBRARY)
    torch.library.register_vmap(
        overload.name(), vmap.make_forward_rule(operator, overload), lib=_LIBRARY
    )
    if not operator.differentiable:
        return overload, None
    backward = _define_backward(operator)
    autograd.register(operator, overload, backward, _LIBRARY)
    return overload, backward


def define_out(operator: Operator) -> Any:
    """Register the variant that writes to a tensor: `torch.ops.anybit.<operator>_out`."""
    name = f"{operator.name}_out"
    inputs = (
        f"{_declare_inputs(operator)}, *{_declare_attributes(operator, star=False)}, Tensor(a!) out"
    )
    overload = _declare(name, inputs, "()")
    _LIBRARY.impl(name, reference.make_reference_out(operator), _FALLBACK)
    _LIBRARY.impl(name, cpu.make_out_kernel(operator), "CPU")
    torch.library.register_fake(overload.name(), _make_fake_out(operator), lib=_LIBRARY)
    return overload


def _define_backward(operator: Operator) -> Any:
    name = f"{operator.name}_backward"
    inputs = f"Tensor gradient, {_declare_inputs(operator)}, *, str[] requested"
    overload = _declare(name, f"{inputs}{_declare_attributes(operator, star=False)}", "Tensor[]")
    _LIBRARY.impl(name, reference.make_partials_backward(operator), _FALLBACK)
    _LIBRARY.impl(name, cpu.make_backward_kernel(operator), "CPU")
    _LIBRARY.impl(name, gpu.make_backward_kernel(operator), "CUDA")
    _LIBRARY.impl(name, reference.make_batched_backward(operator), "Batched")
    torch.library.register_fake(overload.name(), _make_fake_backward(operator), lib=_LIBRARY)
    torch.library.register_vmap(
        overload.name(), vmap.make_backward_rule(operator, overload), lib=_LIBRARY
    )
    return overload


def _declare(name: str, inputs: str, result: str) -> Any:
    _LIBRARY.define(f"{name}({inputs}) -> {result}", tags=(torch.Tag.pt2_compliant_tag,))
    return getattr(torch.ops.anybit, name).default


def _declare_inputs(operator: Operator) -> str:
    return ", ".join(
        f"Tensor? {declared.name}=None" if declared.optional else f"Tensor {declared.name}"
        for declared in operator.inputs
    )


def _declare_attributes(operator: Operator, *, star: bool = True) -> str:
    declared = "".join(f", {_declare_attribute(item)}" for item in operator.attributes)
    return f", *{declared}" if star and declared else declared


def _declare_attribute(attribute: Attribute) -> str:
    default = attribute.default
    literal = f'"{default}"' if isinstance(default, str) else repr(default)
    return f"{_SCHEMA_TYPES[type(default)]} {attribute.name}={literal}"


def _make_fake(operator: Operator) -> Callable[..., torch.Tensor]:
    def fake(*inputs: Any, **attributes: Any) -> torch.Tensor:
        check(operator, inputs, attributes)
        return make_empty_result(operator, inputs[0], attributes)

    return fake


def _make_fake_out(operator: Operator) -> Callable[..., None]:
    def fake(*inputs: Any, out: torch.Tensor, **attributes: Any) -> None:
        check(operator, inputs, attributes)
        check_out(operator, inputs[0], out, attributes)

    return fake


def _make_fake_backward(operator: Operator) -> Callable[..., list[torch.Tensor]]:
    def fake(
        gradient: torch.Tensor, *inputs: Any, requested: list[str], **attributes: Any
    ) -> list[torch.Tensor]:
        check_backward(operator, gradient, inputs, requested, attributes)
        return make_empty_gradients(operator, inputs, requested)

    return fake
