# SPDX-License-Identifier: Apache-2.0
"""Gradients in PyTorch: those of the formulas, differentiated with straight-through rounding.

Numbers are dyadic, so that all products are exact and equality does not need a tolerance.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_backend import compile_function  # noqa: E402
from torch_formulas import FORMULAS, ROUNDINGS  # noqa: E402
from x_types import moves_x  # noqa: E402

import anybit.torch  # noqa: E402
from anybit.ops import OPERATORS  # noqa: E402

Tensor = torch.Tensor
DIFFERENTIABLE = [operator for operator in OPERATORS if operator.differentiable]
BY_NAME = {operator.name: operator for operator in OPERATORS}
# The parameters of an operator, and which attributes to try.
LIMITS = [
    {"signed": signed, "narrow": narrow, "rounding_mode": mode}
    for signed, narrow, mode in itertools.product((True, False), (True, False), ROUNDINGS)
]
MODES = [{"rounding_mode": mode} for mode in ROUNDINGS]
CALLS: dict[str, tuple[tuple[float, ...], list[dict[str, Any]]]] = {
    "int_quant": ((0.5, 1.25, 3), LIMITS),
    "float_quant": (
        (0.5, 3, 2, 3, 10),
        [{"signed": signed, **mode} for signed in (True, False) for mode in MODES],
    ),
    "trunc": ((0.25, 2, 8, 1, 4), LIMITS),
    "trunc_v1": ((0.25, 2, 8, 6), MODES),
    "bipolar_quant": ((1.5,), [{}]),
}
EVERY_CALL = [
    pytest.param(name, parameters, attributes, id="-".join([name, *map(str, attributes.values())]))
    for name, (parameters, choices) in CALLS.items()
    for attributes in choices
]
SHAPES = {"scalar": (), "rows": (3, 1), "columns": (4,), "elements": (2, 3, 4)}


def leaves(name: str, parameters: tuple, shape: tuple, dtype: torch.dtype) -> list[Tensor]:
    """Return x and the parameters; those with a derivative require a gradient."""
    operator = next(item for item in OPERATORS if item.name == name)
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(-160, 160, (2, 3, 4), generator=generator).to(dtype) / 16
    factors = 2.0 ** torch.randint(-1, 2, shape, generator=generator)
    inputs = [x]
    for declared, value in zip(operator.inputs[1:], parameters, strict=True):
        varied = "scale" in declared.name  # by powers of two, which keep all products exact
        inputs.append((factors if varied else torch.ones(shape)).to(dtype) * value)
    for declared, tensor in zip(operator.inputs, inputs, strict=True):
        tensor.requires_grad_(declared.name in operator.differentiable)
    return inputs


def gradients(
    function: Callable[..., Tensor], inputs: list[Tensor], attributes: dict[str, Any]
) -> list[Tensor]:
    result = function(*inputs, **attributes)
    weights = torch.arange(1.0, result.numel() + 1).reshape(result.shape).to(result.dtype)
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    return torch.autograd.grad(result, leaves, weights, materialize_grads=True)


def test_gradient_cases_cover_every_operator() -> None:
    assert {operator.name for operator in DIFFERENTIABLE} == set(FORMULAS)
    assert {name for name in FORMULAS if moves_x(BY_NAME[name])} == {*CALLS, "block_quant"}


@pytest.mark.parametrize("block_size", [2, 4])
def test_block_gradients_equal_the_formula(block_size: int) -> None:
    x = torch.randint(-160, 160, (8, 4), generator=torch.Generator().manual_seed(5)) / 16
    attributes = {"format": "mxfp4", "block_size": block_size}
    leaf = x.requires_grad_()
    actual, expected = (
        gradients(function, [leaf], attributes)[0]
        for function in (anybit.torch.block_quant, FORMULAS["block_quant"])
    )
    assert torch.equal(actual, expected)
    assert (actual == 0).any()
    assert (actual != 0).any()


@pytest.mark.parametrize("with_zps", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_dequantize_gradients_equal_the_formula(
    dtype: torch.dtype, axis: int | None, with_zps: bool
) -> None:
    """Only the scales have a gradient; x and its zero-points are integers."""
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(-128, 256, (2, 3, 4), generator=generator).to(dtype)
    count = 1 if axis is None else codes.shape[axis]
    attributes = {} if axis is None else {"qtype": "per_channel", "axis": axis}
    scales = (2.0 ** torch.randint(-1, 2, (count,), generator=generator)).requires_grad_()
    zps = torch.arange(count, dtype=torch.int32) * 7 - 3 if with_zps else None
    function = anybit.torch.dynamic_dequantize
    for inputs in ([codes, scales, zps], [codes, scales, zps][: 2 + with_zps]):
        expected = FORMULAS["dynamic_dequantize"](*inputs, **attributes)
        result = function(*inputs, **attributes)
        assert torch.equal(result, expected)
        weights = torch.arange(1.0, 25).reshape(codes.shape)
        (actual,) = torch.autograd.grad(result, scales, weights)
        (by_formula,) = torch.autograd.grad(expected, scales, weights)
        assert torch.equal(actual, by_formula)
    with compile_function(lambda: function(*inputs, **attributes)) as program:
        (traced,) = torch.autograd.grad(program(), scales, weights)
    assert torch.equal(traced, actual)


@pytest.mark.parametrize(("name", "parameters", "attributes"), EVERY_CALL)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_equal_the_formulas(
    name: str, parameters: tuple, attributes: dict[str, Any], shape: tuple
) -> None:
    operator = next(item for item in OPERATORS if item.name == name)
    inputs = leaves(name, parameters, shape, torch.float64)
    expected = gradients(FORMULAS[name], inputs, attributes)
    actual = gradients(getattr(anybit.torch, name), inputs, attributes)
    for parameter, one, other in zip(operator.differentiable, actual, expected, strict=True):
        assert one.shape == other.shape
        if "bitwidth" in parameter:  # ln 2 is not a dyadic number, so that sums round
            torch.testing.assert_close(one, other, rtol=1e-14, atol=0)
        else:
            assert torch.equal(one, other), parameter


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_narrow_types_round_once(name: str, dtype: torch.dtype) -> None:
    """Computed in float32; each gradient has its input's dtype and is rounded once."""
    parameters, attributes = CALLS[name][0], {}
    inputs = leaves(name, parameters, (), torch.float32)
    narrow = [tensor.detach().to(dtype).requires_grad_(tensor.requires_grad) for tensor in inputs]
    wide = [tensor.detach().float().requires_grad_(tensor.requires_grad) for tensor in narrow]
    function = getattr(anybit.torch, name)
    ones = torch.ones_like(narrow[0])
    targets = [tensor for tensor in narrow if tensor.requires_grad]
    actual = torch.autograd.grad(function(*narrow, **attributes), targets, ones)
    expected = gradients_of_sum(function(*wide, **attributes), wide)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == dtype
        assert torch.equal(one, other.to(dtype))


def gradients_of_sum(result: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    return torch.autograd.grad(result, leaves, torch.ones_like(result))


def test_float_quant_gradient_below_the_grid_is_one() -> None:
    x = torch.tensor([1e-6, -3e-20, 1e-40, 0.0], requires_grad=True)
    anybit.torch.float_quant(x, 1.0, 4, 3, 7).sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 1]


def test_gradients_of_clipped_values_equal_finite_differences() -> None:
    """Test where the result is smooth in the parameters and independent of x."""
    x = torch.tensor([[90.0, -80.0], [100.0, -100.0]], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([[0.3], [0.7]], dtype=torch.float64, requires_grad=True)
    zeropt = torch.tensor([0.25, -1.5], dtype=torch.float64, requires_grad=True)
    limit = torch.tensor(5.3, dtype=torch.float64, requires_grad=True)
    out_scale = torch.tensor(1.1, dtype=torch.float64, requires_grad=True)
    check = torch.autograd.gradcheck
    assert check(lambda *p: anybit.torch.int_quant(*p, 4, narrow=True), (x, scale, zeropt))
    assert check(
        lambda x, s, limit: anybit.torch.float_quant(x, s, 4, 3, 7, limit), (x, scale, limit)
    )
    assert check(lambda x, z, s: anybit.torch.trunc(x, 0.3, z, 8, s, 4), (x, zeropt, out_scale))
    assert check(anybit.torch.bipolar_quant, (x, scale))


def test_gradients_of_zero_slope_ignore_nonfinite_upstream() -> None:
    x = torch.tensor([99.0, 99.0, 0.0], requires_grad=True)
    result = anybit.torch.int_quant(x, 1.0, 0, 3)
    (gradient,) = torch.autograd.grad(result, x, torch.tensor([np.inf, np.nan, 2.0]))
    assert gradient.tolist() == [0, 0, 2]


def test_gradients_of_expanded_and_strided_tensors() -> None:
    base = torch.arange(24.0).reshape(4, 6) - 10
    for view in (base, base.t(), base[::2, 1::2], base[:1].expand(3, 6), base[0]):
        x = view.detach().requires_grad_()
        anybit.torch.int_quant(x, 1.0, 0, 4).sum().backward()  # a gradient of stride 0
        inside = (view <= 7) & (view >= -8)
        assert torch.equal(x.grad, inside.float())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", CALLS)
def test_gradients_with_is_grads_batched(name: str, shape: tuple) -> None:
    """Compute a Jacobian with vectorize=True."""
    parameters, choices = CALLS[name]
    inputs = leaves(name, parameters, shape, torch.float32)
    result = getattr(anybit.torch, name)(*inputs, **choices[0])
    targets = [tensor for tensor in inputs if tensor.requires_grad]
    batch = torch.randint(-8, 8, (3, *result.shape), generator=torch.Generator().manual_seed(6))
    batch = batch.to(result.dtype)
    together = torch.autograd.grad(result, targets, batch, is_grads_batched=True, retain_graph=True)
    for place, upstream in enumerate(batch):
        alone = torch.autograd.grad(result, targets, upstream, retain_graph=True)
        for one, other in zip(together, alone, strict=True):
            assert torch.equal(one[place], other)


def test_gradients_in_vectorized_jacobian() -> None:
    inputs = (torch.tensor([-9.0, 0.25, 1.0, 99.0]), torch.tensor(0.5))

    def call(x: Tensor, scale: Tensor) -> Tensor:
        return anybit.torch.int_quant(x, scale, 0, 4)

    fast = torch.autograd.functional.jacobian(call, inputs, vectorize=True)
    slow = torch.autograd.functional.jacobian(call, inputs)
    assert slow[0].any()
    assert slow[1].any()
    for one, other in zip(fast, slow, strict=True):
        assert torch.equal(one, other)


def test_gradients_are_computed_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen inputs cost nothing, and integers never have a gradient."""
    requested = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            if function is torch.ops.anybit.int_quant_backward.default:
                requested.append(kwargs["requested"])
            return function(*args, **(kwargs or {}))

    x, bitwidth = torch.ones(3), torch.tensor(4)
    for names in (["x"], ["scale"], ["x", "zeropt"], ["zeropt", "bitwidth"]):
        inputs = {"x": x, "scale": torch.tensor(0.5), "zeropt": torch.tensor(0.0)}
        inputs["bitwidth"] = bitwidth.float() if "bitwidth" in names else bitwidth
        inputs = {name: v.detach().requires_grad_(name in names) for name, v in inputs.items()}
        result = anybit.torch.int_quant(**inputs)
        with Recorder():
            result.sum().backward()
        assert requested.pop() == names
        assert not requested
        assert {name for name, v in inputs.items() if v.grad is not None} == set(names)


def test_functions_save_nothing_without_gradients() -> None:
    kept = []
    x, scale = torch.ones(1000), torch.tensor(0.5)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        anybit.torch.int_quant(x, scale, 0, 4)
        with torch.no_grad():
            anybit.torch.int_quant(x, scale.requires_grad_(), 0, 4)
        assert not kept
        anybit.torch.int_quant(x, scale, 0, 4)
    # Inputs as they are: neither masks nor copies.
    assert kept[0].data_ptr() == x.data_ptr()
    assert [tensor.data_ptr() for tensor in kept[1:]] == [scale.data_ptr()]


def test_gradients_refuse_second_derivatives() -> None:
    x = torch.ones(3, requires_grad=True)
    for function in (anybit.torch.int_quant, torch.ops.anybit.int_quant):
        parameters = (torch.tensor(0.5), torch.tensor(0.0), torch.tensor(4))
        result = (function(x, *parameters) ** 2).sum()
        (gradient,) = torch.autograd.grad(result, x, create_graph=True)
        assert torch.equal(gradient, torch.full((3,), 2.0))
        with pytest.raises(NotImplementedError, match="int_quant has no second derivatives"):
            gradient.sum().backward()
    first = torch.func.grad(lambda x: (anybit.torch.int_quant(x, 0.5, 0, 4) ** 2).sum())
    twice = torch.func.grad(lambda x: first(x).sum())
    with pytest.raises(NotImplementedError, match="second derivatives"):
        twice(x)


@pytest.mark.parametrize("name", CALLS)
def test_gradients_refuse_inputs_without_gradient(name: str) -> None:
    operator = next(item for item in OPERATORS if item.name == name)
    for declared in operator.inputs:
        if declared.name in operator.differentiable:
            continue
        inputs = leaves(name, CALLS[name][0], (), torch.float32)
        place = operator.inputs.index(declared)
        inputs[place] = inputs[place].detach().requires_grad_()
        for function in (getattr(anybit.torch, name), getattr(torch.ops.anybit, name)):
            with pytest.raises(ValueError, match=f"{declared.name}.*detach"):
                function(*inputs)
            with torch.no_grad():
                function(*inputs)
