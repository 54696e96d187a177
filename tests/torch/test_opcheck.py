# SPDX-License-Identifier: Apache-2.0
"""PyTorch's checks of registrations: schema, autograd, fake tensors, tracing."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from x_types import reads_codes, x_dtypes  # noqa: E402

import anybit.torch  # noqa: E402, F401  registers the operators
from anybit.ops import OPERATORS, Operator  # noqa: E402

Tensor = torch.Tensor
SELDOM = (torch.float64, torch.float16)
DIFFERENTIABLE = [item for item in OPERATORS if item.differentiable]
WITH_DTYPES = [
    pytest.param(operator, dtype, marks=[pytest.mark.slow] * (dtype in SELDOM))
    for operator in DIFFERENTIABLE
    for dtype in (torch.float32, torch.bfloat16, *SELDOM)
    if str(dtype).removeprefix("torch.") in x_dtypes(operator)
] + [
    (operator, getattr(torch, dtype))
    for operator in DIFFERENTIABLE
    if reads_codes(operator)
    for dtype in x_dtypes(operator)
]
SHAPES: dict[str, tuple[int, ...]] = {"scalar": (), "rows": (3, 1), "elements": (2, 3, 4)}

# PyTorch's checks use parts of PyTorch that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def named(operator: Operator) -> str:
    return operator.name


def named_or_typed(value: Any) -> str:
    return value.name if isinstance(value, Operator) else str(value)


def x_for(operator: Operator) -> Tensor:
    """Return a strided x of the first dtype that the operator supports."""
    return x_of(getattr(torch, x_dtypes(operator)[0]), True)


def x_of(dtype: torch.dtype, strided: bool) -> Tensor:
    x = torch.linspace(-9, 9, 24).reshape(2, 3, 4).to(dtype)
    return x.transpose(0, 2).contiguous().transpose(0, 2) if strided else x


def parameters_of(operator: Operator, shape: tuple[int, ...]) -> list[Tensor | None]:
    """1 lies in every domain. Optional inputs are given, unless an attribute refuses them."""
    if operator.block_axis is not None:
        return [None]
    if not operator.broadcasts:
        return [torch.ones(1), torch.ones(1, dtype=torch.int32)]
    return [torch.ones(shape) for _ in operator.inputs[1:]]


def all_succeed(overload: Any, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    result = torch.library.opcheck(overload, inputs, attributes)
    assert len(result) == 4
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_opcheck_of_forward(operator: Operator, shape: tuple[int, ...]) -> None:
    inputs = [x_for(operator), *parameters_of(operator, shape)]
    overload = getattr(torch.ops.anybit, operator.name).default
    all_succeed(overload, tuple(inputs), {})
    changed = {
        attribute.name: not attribute.default
        for attribute in operator.attributes
        if isinstance(attribute.default, bool)
    }
    all_succeed(overload, tuple(inputs[: operator.required_inputs]), changed)


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize(("operator", "dtype"), WITH_DTYPES, ids=named_or_typed)
def test_opcheck_with_gradients(operator: Operator, dtype: torch.dtype, strided: bool) -> None:
    """Require all gradients, so that tracing includes the backward pass."""
    inputs = [x_of(dtype, strided), *parameters_of(operator, (3, 1) if strided else ())]
    for declared, tensor in zip(operator.inputs, inputs, strict=True):
        if tensor is not None:
            tensor.requires_grad_(declared.name in operator.differentiable)
    all_succeed(getattr(torch.ops.anybit, operator.name).default, tuple(inputs), {})


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("operator", DIFFERENTIABLE, ids=named)
def test_opcheck_of_backward(operator: Operator, shape: tuple[int, ...]) -> None:
    x = x_for(operator)
    inputs = (torch.ones(()).expand(x.shape), x, *parameters_of(operator, shape))
    first, *others = operator.differentiable
    overload = getattr(torch.ops.anybit, f"{operator.name}_backward").default
    for names in ([first, *others], [first], others[::-1]):
        all_succeed(overload, inputs, {"requested": names})


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_opcheck_of_out(operator: Operator) -> None:
    inputs = [x_for(operator), *parameters_of(operator, (3, 1))]
    out = getattr(torch.ops.anybit, operator.name)(*inputs)
    overload = getattr(torch.ops.anybit, f"{operator.name}_out").default
    all_succeed(overload, tuple(inputs), {"out": torch.zeros_like(out)})


def test_operators_are_pt2_compliant() -> None:
    for name in (entry.name for entry in OPERATORS):
        overload = getattr(torch.ops.anybit, name).default
        assert torch.Tag.pt2_compliant_tag in overload.tags
