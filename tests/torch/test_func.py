# SPDX-License-Identifier: Apache-2.0
"""`torch.func` over the operators: batches and derivatives equal those of a loop."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch_backend import tensor_as_x  # noqa: E402

import anybit.torch  # noqa: E402
from anybit.ops import OPERATORS  # noqa: E402

# Forward mode uses parts of PyTorch that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

Tensor = torch.Tensor
SIZE = 3
x = torch.linspace(-9, 9, 4 * SIZE * 5).reshape(4, SIZE, 5)


def looped(function: Callable[..., Tensor], in_dims: tuple, inputs: tuple) -> Tensor:
    return torch.stack(
        [
            function(
                *(
                    value if dim is None else value.select(dim, place)
                    for value, dim in zip(inputs, in_dims, strict=True)
                )
            )
            for place in range(SIZE)
        ]
    )


def quantize(x: Tensor, scale: Any, zeropt: Any, bitwidth: Any = 4) -> Tensor:
    return anybit.torch.int_quant(x, scale, zeropt, bitwidth)


SCALES = {
    "scalar": (torch.tensor(0.7), None),
    "columns": (torch.rand(5) + 0.2, None),
    "scalars": (torch.rand(SIZE) + 0.2, 0),
    "batched_columns": (torch.rand(5, SIZE) + 0.2, 1),
    "batched_rows": (torch.rand(SIZE, 4, 1) + 0.2, 0),
    "batched_elements": (torch.rand(4, 5, SIZE) + 0.2, -1),
}


@pytest.mark.parametrize(
    ("x_dim", "scale"),
    [(dim, name) for dim in (1, -2) for name in SCALES]
    + [(None, name) for name, (_, dim) in SCALES.items() if dim is not None],
)
def test_vmap_equals_loop(x_dim: int | None, scale: str) -> None:
    """x has shape (4, 5) in every element of the batch."""
    scales, scale_dim = SCALES[scale]
    values = x if x_dim is not None else x[:, 0]
    inputs, in_dims = (values, scales, torch.tensor(1.0)), (x_dim, scale_dim, None)
    expected = looped(quantize, in_dims, inputs)
    assert torch.equal(torch.func.vmap(quantize, in_dims)(*inputs), expected)
    moved = torch.func.vmap(quantize, in_dims, out_dims=2)(*inputs)
    assert torch.equal(moved, expected.movedim(0, 2))


def test_vmap_nested_equals_loop() -> None:
    scales = torch.rand(SIZE, 2) + 0.2

    def inner(row: Tensor, pair: Tensor) -> Tensor:
        return torch.func.vmap(quantize, (None, 0, None))(row, pair, 0)

    actual = torch.func.vmap(inner, (1, 0))(x, scales)
    expected = torch.stack(
        [
            torch.stack([quantize(x[:, i], scale, 0) for scale in pair])
            for i, pair in enumerate(scales)
        ]
    )
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_vmap_of_every_operator_equals_loop(operator: Any) -> None:
    """Also where parameters have a place of their own, along an axis."""
    function = getattr(anybit.torch, operator.name)
    # 1.0 lies in every domain; zero-points of small integers have a dtype of their own.
    parameters = [1.0] * (operator.required_inputs - 1)

    def call(x: Tensor) -> Tensor:
        return function(x, *parameters)

    inputs = tensor_as_x(operator, x)
    assert torch.equal(torch.func.vmap(call, 1)(inputs), looped(call, (1,), (inputs,)))


def test_vmap_of_dynamic_operators_equals_loop() -> None:
    def call(x: Tensor, scales: Tensor) -> Tensor:
        return anybit.torch.dynamic_quantize(x, scales, qtype="per_channel", axis=0)

    scales = torch.rand(SIZE, 4) + 0.1
    actual = torch.func.vmap(call, (1, 0))(x, scales)
    assert torch.equal(actual, looped(call, (1, 0), (x, scales)))


def test_vmap_refuses_parameters_that_broadcast_to_the_batch() -> None:
    """Refuse a shared scale that would broadcast to the batch axis."""
    values, scale = torch.ones(SIZE, 5), torch.ones(SIZE, 1)
    with pytest.raises(ValueError, match=r"scale of shape \(3, 1\) does not .* x of shape \(5,\)"):
        torch.func.vmap(lambda x: quantize(x, scale, 0))(values)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
@pytest.mark.parametrize("dim", [0, 1])
def test_vmap_of_an_empty_batch(operator: Any, dim: int) -> None:
    function = getattr(anybit.torch, operator.name)
    parameters = [1.0] * (operator.required_inputs - 1)
    empty = tensor_as_x(operator, torch.empty((0, 5) if dim == 0 else (5, 0)))
    actual = torch.func.vmap(lambda x: function(x, *parameters), dim)(empty)
    assert actual.shape == (0, 5)
    assert actual.dtype == function(tensor_as_x(operator, torch.ones(5)), *parameters).dtype


def test_vmap_of_an_empty_batch_checks_shapes() -> None:
    def call(x: Tensor, scales: Tensor) -> Tensor:
        return anybit.torch.dynamic_quantize(x, scales, qtype="per_channel", axis=0)

    assert torch.func.vmap(call)(torch.empty(0, 5), torch.empty(0, 5)).shape == (0, 5)
    with pytest.raises(ValueError, match="scale"):
        torch.func.vmap(call)(torch.empty(0, 5), torch.empty(0, 4))


def dequantized_loss(codes: Tensor, scales: Tensor, zps: Tensor) -> Tensor:
    result = anybit.torch.dynamic_dequantize(codes, scales, zps, qtype="per_channel", axis=0)
    return (result * torch.arange(20.0).reshape(4, 5)).sum()


@pytest.mark.parametrize("in_dims", [(1, None, None), (1, 0, None), (None, 1, 0), (1, 0, 0)])
def test_vmap_gradients_of_scales_equal_loop(in_dims: tuple) -> None:
    """Parameters that lie along an axis have no place for a batch: samples go one by one."""
    codes = tensor_as_x(anybit.dynamic_dequantize.operator, x * 9)
    codes = codes if in_dims[0] is not None else codes[:, 0]
    scales = {None: torch.ones(4), 0: torch.rand(SIZE, 4), 1: torch.rand(4, SIZE)}[in_dims[1]]
    zps = torch.tensor([3, -100, 0, 2**24 + 2], dtype=torch.int32)
    zps = zps if in_dims[2] is None else torch.stack([zps, zps + 1, zps - 1])
    inputs = (codes, scales, zps)
    result = torch.func.vmap(torch.func.grad(dequantized_loss, argnums=1), in_dims)(*inputs)
    for place in range(SIZE):
        sample = [
            value if dim is None else value.select(dim, place)
            for value, dim in zip(inputs, in_dims, strict=True)
        ]
        leaf = sample[1].detach().clone().requires_grad_()
        (expected,) = torch.autograd.grad(dequantized_loss(sample[0], leaf, sample[2]), leaf)
        assert torch.equal(result[place], expected)


def test_vmap_gradients_of_scales_of_an_empty_batch() -> None:
    grad = torch.func.vmap(torch.func.grad(dequantized_loss, argnums=1), (0, None, None))
    none = torch.empty((0, 4, 5), dtype=torch.int8)
    assert grad(none, torch.ones(4), torch.zeros(4, dtype=torch.int32)).shape == (0, 4)


def loss(x: Tensor, scale: Tensor, zeropt: Tensor) -> Tensor:
    return (quantize(x, scale, zeropt) * torch.arange(20.0).reshape(4, 5)).sum()


def eager_gradients(x: Tensor, scale: Tensor, zeropt: Tensor) -> tuple[Tensor, ...]:
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (x, scale, zeropt)]
    return torch.autograd.grad(loss(*inputs), inputs)


@pytest.mark.parametrize("in_dims", [(1, None, None), (1, 0, None), (None, 0, 1), (1, 0, 1)])
def test_vmap_gradients_equal_loop(in_dims: tuple) -> None:
    values = x if in_dims[0] is not None else x[:, 0]
    # Powers of two, so that sums are exact in any order.
    scale = torch.tensor([0.5, 1.0, 2.0]) if in_dims[1] is not None else torch.tensor(0.5)
    zeropt = torch.ones(5, SIZE) if in_dims[2] is not None else torch.ones(4, 1)
    values = values.mul(16).round().div(16)
    inputs = (values, scale, zeropt)
    per_sample = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), in_dims)(*inputs)
    for place in range(SIZE):
        sample = [
            value if dim is None else value.select(dim, place)
            for value, dim in zip(inputs, in_dims, strict=True)
        ]
        for one, other in zip(per_sample, eager_gradients(*sample), strict=True):
            assert torch.equal(one[place], other)


def test_func_gradient_of_vmap_equals_autograd() -> None:
    """Compute grad over vmap, which sums over the batch."""
    values = x.mul(16).round().div(16).movedim(1, 0)

    def total(x: Tensor, scale: Tensor) -> Tensor:
        return torch.func.vmap(lambda x: loss(x, scale, torch.tensor(1.0)))(x).sum()

    actual = torch.func.grad(total, (0, 1))(values, torch.tensor(0.5))
    rows = [eager_gradients(row, torch.tensor(0.5), torch.tensor(1.0)) for row in values]
    assert torch.equal(actual[0], torch.stack([gradients[0] for gradients in rows]))
    assert torch.equal(actual[1], sum(gradients[1] for gradients in rows))


@pytest.mark.parametrize("batched", ["x", "scale"])
def test_func_gradient_of_a_batched_tensor(batched: str) -> None:
    """Inside of vmap nothing says that what is batched requires a gradient further out."""
    row, scale, zero = torch.tensor([-9.0, 0.375, 1.0, 99.0]), torch.tensor(0.5), torch.tensor(0.0)
    rows, scales = torch.stack([row, row / 2]), torch.tensor([0.5, 0.25])

    def results(moving: Tensor) -> Tensor:
        if batched == "x":
            return torch.func.vmap(lambda x: quantize(x, scale, zero))(moving)
        return torch.func.vmap(lambda scale: quantize(row, scale, zero))(moving)

    moving = rows if batched == "x" else scales
    leaf = moving.clone().requires_grad_()
    (expected,) = torch.autograd.grad(results(leaf).sum(), leaf)
    assert expected.any()
    assert torch.equal(torch.func.grad(lambda values: results(values).sum())(moving), expected)
    jacobian = torch.func.jacrev(results)(moving)
    assert torch.equal(jacobian.sum((0, 1)), expected)


def test_func_gradient_through_a_dependent_batch() -> None:
    weight, values = torch.tensor(0.5), torch.tensor([0.3, 1.0, 99.0])

    def total(weight: Tensor) -> Tensor:
        return torch.func.vmap(lambda x: quantize(x * weight, 1.0, 0))(values).sum()

    assert torch.func.grad(total)(weight) == 0.3 + torch.tensor(1.0)


def test_jacrev_equals_autograd() -> None:
    row = torch.tensor([-9.0, 0.3, 1.0, 99.0])
    jacobian = torch.func.jacrev(lambda x: quantize(x, 1.0, 0))(row)
    assert torch.equal(jacobian, torch.diag(torch.tensor([0.0, 1.0, 1.0, 0.0])))
    by_scale = torch.func.jacrev(lambda s: quantize(row, s, 0))(torch.tensor(1.0))
    assert by_scale.tolist() == [-8, torch.tensor(0.0).sub(torch.tensor(0.3)).item(), 0, 7]


def test_functional_call_of_a_module_equals_call() -> None:
    class Quantizer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return quantize(x, self.scale, 0)

    module = Quantizer()
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    values = torch.tensor([0.25, 0.5, 99.0])

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, parameters, (values,)).sum()

    # Ties go to even: 0.5 becomes 0, which is 0.5 below.
    assert torch.func.grad(loss)(parameters)["scale"].item() == -0.5 + 0 + 7


def test_forward_mode_is_refused() -> None:
    """PyTorch would take the derivative that it does not find for 0."""
    ones = torch.ones(3)
    with pytest.raises(NotImplementedError, match="int_quant has no derivatives in forward mode"):
        torch.func.jvp(lambda x: quantize(x, 0.5, 0), (ones,), (ones,))
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jacfwd(lambda scale: quantize(ones, scale, 0))(torch.tensor(0.5))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(ones, ones)
        with pytest.raises(NotImplementedError, match="forward mode"):
            quantize(dual, 0.5, 0)
        assert torch.equal(quantize(ones, 0.5, 0), ones)
