# SPDX-License-Identifier: Apache-2.0
"""On a GPU: the public functions and networks give the bits that they give on a CPU.

The rows of the case tables run in test_cases.py, as the back-end `triton`.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cases import telling_values

torch = pytest.importorskip("torch")

from torch_backend import tensor_as_x  # noqa: E402
from x_types import reads_codes, x_dtypes  # noqa: E402

import anybit.torch  # noqa: E402
from anybit.ops import OPERATORS, Operator  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

Tensor = torch.Tensor
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DIFFERENTIABLE = [item for item in OPERATORS if item.differentiable]
# Of the parameters, beside an x of this shape.
SHAPE = (6, 5, 70)
SHAPES: dict[str, tuple[int, ...]] = {
    "per_tensor": (),
    "channels": (5, 1),
    "columns": (70,),
    "elements": SHAPE,
}


def named(operator: Operator) -> str:
    return operator.name


def x_of(dtype: Any, seed: int = 1) -> Tensor:
    """Random numbers of many magnitudes, and NaN, infinities and signs of 0."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(SHAPE) * 10.0 ** random.integers(-3, 3, SHAPE)
    special = telling_values(np.dtype(np.float32))
    values.reshape(-1)[: special.size] = special
    return torch.from_numpy(values).to(dtype)


def x_for(operator: Operator, dtype: Any, seed: int = 1) -> Tensor:
    """Random numbers in a type that x may have: that one, or codes."""
    x = x_of(dtype, seed)
    return tensor_as_x(operator, x.nan_to_num(0).clamp(-128, 127)) if reads_codes(operator) else x


def parameters_of(operator: Operator, shape: tuple[int, ...], seed: int = 2) -> list[Any]:
    random = np.random.default_rng(seed)
    result: list[Any] = []
    for declared in operator.inputs[1 : operator.required_inputs]:
        if "bitwidth" in declared.name or declared.domain.integer:
            values = random.integers(3, 9, shape)
        elif "scale" in declared.name:
            values = random.uniform(0.05, 2, shape)
        else:
            values = random.integers(-3, 4, shape)
        result.append(torch.as_tensor(values, dtype=torch.float32))
    if operator.name == "float_quant":
        result[1:4] = [4, 3, 7]
    if operator.name == "trunc":
        result[-2] = result[0] * 4
    if result and not operator.broadcasts:
        result = [torch.tensor([0.1]), *result[1:]]
    return result


def moved(values: Any, device: str) -> Any:
    return [value.to(device) if isinstance(value, Tensor) else value for value in values]


def same(actual: Tensor, expected: Tensor) -> None:
    """Equal dtype, shape and bits; NaN equals NaN."""
    assert actual.is_cuda
    actual = actual.detach().cpu()
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(actual, expected.detach(), rtol=0, atol=0, equal_nan=True)
    ordinary = ~expected.isnan()
    assert torch.equal(actual.signbit() & ordinary, expected.signbit() & ordinary)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_gpu_functions_equal_cpu(operator: Operator, shape: tuple[int, ...], dtype: Any) -> None:
    if dtype != torch.float32 and str(dtype).removeprefix("torch.") not in x_dtypes(operator):
        pytest.skip(f"{operator.name} takes other types")
    function = getattr(anybit.torch, operator.name)
    x, parameters = x_for(operator, dtype), parameters_of(operator, shape)
    same(function(x.cuda(), *moved(parameters, "cuda")), function(x, *parameters))
    turned = x.transpose(0, 2)
    if not shape:
        same(function(turned.cuda(), *moved(parameters, "cuda")), function(turned, *parameters))


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_gpu_functions_accept_numbers(operator: Operator) -> None:
    function = getattr(anybit.torch, operator.name)
    x = x_for(operator, torch.float32)
    inputs = [
        entry.tolist() if isinstance(entry, Tensor) else entry
        for entry in parameters_of(operator, ())
    ]
    same(function(x.cuda(), *inputs), function(x, *inputs))
    out = torch.empty_like(function(x.cuda(), *inputs))
    assert function(x.cuda(), *inputs, out=out) is out
    same(out, function(x, *inputs))


def gradients(
    function: Callable[..., Tensor], x: Tensor, parameters: list[Any], device: str
) -> tuple[Tensor | None, list[Tensor]]:
    """Return the gradient of x, unless x has codes, and those of scales."""
    x = x.to(device).requires_grad_(x.is_floating_point())
    inputs = [
        value.to(device).requires_grad_() if isinstance(value, Tensor) and place == 0 else value
        for place, value in enumerate(moved(parameters, device))
    ]
    result = function(x, *inputs)
    arriving = torch.linspace(-1, 1, x.numel()).reshape(x.shape).to(result.dtype)
    result.backward(arriving.to(device))
    return x.grad, [
        entry.grad for entry in inputs if isinstance(entry, Tensor) and entry.requires_grad
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("operator", DIFFERENTIABLE, ids=named)
def test_gpu_gradients_equal_cpu(operator: Operator, shape: tuple[int, ...], dtype: Any) -> None:
    """Compare gradients of x exactly, and sums for scales approximately, but reproducibly."""
    function = getattr(anybit.torch, operator.name)
    x, parameters = x_for(operator, dtype), parameters_of(operator, shape)
    x = x.nan_to_num(0).clamp(-1e3, 1e3) if x.is_floating_point() else x
    by_x, by_scale = gradients(function, x, parameters, "cuda")
    again = gradients(function, x, parameters, "cuda")
    reference, sums = gradients(function, x, parameters, "cpu")
    if by_x is not None and reference is not None:
        same(by_x, reference)
    assert (by_x is None) == (reference is None) == reads_codes(operator)
    for first, second, expected in zip(by_scale, again[1], sums, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first.cpu(), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_gpu_compiled_functions_equal_eager(operator: Operator) -> None:
    function = getattr(anybit.torch, operator.name)
    x, parameters = x_for(operator, torch.float32), parameters_of(operator, ())
    inputs = moved(parameters, "cuda")

    def program(x: Tensor) -> Tensor:
        return function(-x, *inputs) * 2

    run = torch.compile(program, fullgraph=True)
    same(run(x.cuda()), function(-x, *parameters) * 2)


def test_gpu_captured_graph_equals_eager() -> None:
    x, scale = x_of(torch.float32).cuda(), torch.tensor(0.1, device="cuda")
    anybit.torch.int_quant(x, scale, 0, 4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = anybit.torch.int_quant(x, scale, 0, 4)
    other = x_of(torch.float32, seed=9)
    x.copy_(other)
    graph.replay()
    same(y, anybit.torch.int_quant(other, scale.cpu(), 0, 4))


def test_gpu_vmap_equals_loop() -> None:
    x = x_of(torch.float32)
    scales = torch.linspace(0.1, 1, len(x))

    def quantize(x: Tensor, scale: Tensor) -> Tensor:
        return anybit.torch.int_quant(x, scale, 0, 4)

    same(torch.vmap(quantize)(x.cuda(), scales.cuda()), torch.vmap(quantize)(x, scales))


def test_gpu_functions_of_more_than_2_31_elements() -> None:
    count = 2**31 + 4099
    if torch.cuda.mem_get_info()[0] < 10 * count:
        pytest.skip("the GPU has too little memory for arrays of more than 2^31 elements")
    x = torch.zeros(count, dtype=torch.bfloat16, device="cuda")
    tail = torch.linspace(-3, 3, 4099).to(torch.bfloat16)
    x[-4099:] = tail.cuda()
    y = anybit.torch.int_quant(x, 0.25, 0, 4)
    same(y[-4099:], anybit.torch.int_quant(tail, 0.25, 0, 4))
    assert not y[:-4099].any()


def test_gpu_functions_refuse_invalid_values() -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(ValueError, match=r"scale must be on x's device cuda:0, got cpu"):
        anybit.torch.int_quant(x, torch.ones(3), 0, 4)
    with pytest.raises(ValueError, match=r"bitwidth must be an integer >= 1, got 2.5"):
        anybit.torch.int_quant(x, 1.0, 0, torch.tensor(2.5, device="cuda"))
    same(anybit.torch.int_quant(x, 1.0, 0, 4), torch.ones(3))


@pytest.fixture
def network() -> Any:
    """Return a network whose sums are exact in every order."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, bias=False),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 5, bias=False),
    )
    specification = {"weight": "int4 power-of-two", "activation": "uint4 power-of-two"}
    return anybit.torch.quantize_model(model, specification)


def batches() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(3)
    for _ in range(4):
        yield torch.randn(8, 2, 6, 6, generator=generator)


def test_gpu_training_equals_cpu(network: Any) -> None:
    """Calibrated, trained and exported on a GPU."""
    twin = copy.deepcopy(network).cuda()
    anybit.torch.calibrate(network, batches())
    anybit.torch.calibrate(twin, batches())
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        same(theirs, ours)
    x = next(batches())
    same(twin.eval()(x.cuda()), network.eval()(x))
    optimizer = torch.optim.SGD(twin.train().parameters(), lr=0.01)
    before = [parameter.detach().clone() for parameter in twin.parameters()]
    for batch in batches():
        optimizer.zero_grad()
        twin(batch.cuda()).square().mean().backward()
        optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, twin.parameters(), strict=True))
    assert anybit.torch.export(twin, x.cuda()).equal


def test_gpu_mixed_precision_training(network: Any) -> None:
    anybit.torch.calibrate(network, batches())
    twin = copy.deepcopy(network).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        twin(next(batches()).cuda()).float().sum().backward()
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all() for parameter in twin.parameters()
    )
