# SPDX-License-Identifier: Apache-2.0
"""The operators in PyTorch: arguments, memory, types, and what dispatches to them."""

import inspect
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from strategies import any_float, quantizers  # noqa: E402
from torch_backend import as_array, as_tensor, assert_same_tensor, tensor_as_x  # noqa: E402
from x_types import reads_codes  # noqa: E402

import anybit.torch  # noqa: E402
from anybit.ops import OPERATORS, Operator  # noqa: E402

Tensor = torch.Tensor
any_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
BY_NAME = {operator.name: operator for operator in OPERATORS}
any_name = pytest.mark.parametrize("name", [item.name for item in OPERATORS])
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def usual_parameters(operator: Operator) -> list[Any]:
    """Numbers that every domain accepts."""
    return [1] * (operator.required_inputs - 1)


@any_operator
def test_schemas_match_operators(operator: Operator) -> None:
    """Compare schemas with the declarations."""
    function = getattr(anybit.torch, operator.name)
    assert inspect.signature(function) == inspect.signature(operator.function)
    assert function.__doc__ == operator.function.__doc__
    schema = getattr(torch.ops.anybit, operator.name).default._schema
    inputs = [argument for argument in schema.arguments if not argument.kwarg_only]
    attributes = [entry for entry in schema.arguments if entry.kwarg_only]
    assert [(value.name, str(value.type)) for value in inputs] == [
        (element.name, "Optional[Tensor]" if element.optional else "Tensor")
        for element in operator.inputs
    ]
    assert [(attribute.name, attribute.default_value) for attribute in attributes] == [
        (declared.name, declared.default) for declared in operator.attributes
    ]


PARAMETERS: dict[str, tuple[Any, ...]] = {
    "numbers": (0.1, 1, 4),
    "floats": (0.1, 1.0, 4.0),
    "bools": (True, False, True),
    "huge_integers": (2**70, -(2**62) - 1, 2**70),
    "integers_that_round": (2**53 + 1, 2**24 + 1, 30),
    "beyond_float32": (3.4028235e38, -1e39, 300),
    "lists": ([0.1, 0.2, 0.3], [[1], [2]], [4]),
    "scalars_of_numpy": (np.float64(0.1), np.int8(1), np.uint64(4)),
    "arrays": (np.array([0.1, 0.2, 0.3]), np.float16(0.5), np.array([[4.0], [8.0]], np.float32)),
    "read_only": (np.broadcast_to(np.float32(0.1), (2, 3)), 0, np.broadcast_to(np.int64(4), 3)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS)
def test_functions_accept_parameters_of_every_kind(parameters: tuple, dtype: torch.dtype) -> None:
    """Converted as the NumPy function converts them; as tensors they mean the same."""
    x = torch.linspace(-3, 3, 6).reshape(2, 3).to(dtype)
    expected = anybit.int_quant(as_array(x), *parameters)
    assert_same_tensor(anybit.torch.int_quant(x, *parameters), expected)
    if all(isinstance(value, np.ndarray | np.generic) for value in parameters):
        assert_same_tensor(anybit.torch.int_quant(x, *map(as_tensor, parameters)), expected)


def test_functions_accept_arguments_by_name() -> None:
    x = torch.linspace(-3, 3, 7)
    expected = anybit.torch.int_quant(x, 0.5, 0, 4, rounding_mode="FLOOR")
    for mode in ("floor", anybit.RoundingMode.FLOOR):
        call = {"bitwidth": 4, "zeropt": 0, "scale": 0.5, "x": x, "rounding_mode": mode}
        assert torch.equal(anybit.torch.int_quant(**call), expected)
    assert torch.equal(anybit.torch.float_quant(x, 1, 2, 1, 1, max_val=None), x.round().clip(-3, 3))
    for dtype in ("u8", "uint8", np.uint8, np.dtype("uint8"), torch.uint8):
        result = anybit.torch.dynamic_quantize(x, 1.0, dtype=dtype)
        assert result.dtype == torch.uint8


def test_functions_write_out() -> None:
    x = torch.linspace(-3, 3, 12).reshape(3, 4)
    expected = anybit.torch.int_quant(x, 0.5, 0, 3)
    out = torch.empty(4, 3).t()
    assert anybit.torch.int_quant(x, 0.5, 0, 3, out=out) is out
    assert torch.equal(out, expected)
    shifted = torch.cat([x.flatten(), torch.zeros(1)])
    anybit.torch.int_quant(shifted[:-1], 0.5, 0, 3, out=shifted[1:])
    assert torch.equal(shifted[1:], expected.flatten())
    half = x.bfloat16()
    assert anybit.torch.int_quant(half, 0.5, 0, 3, out=half) is half
    assert torch.equal(half, expected.bfloat16())
    assert anybit.torch.int_quant(x, 0.5, 0, 3, out=x) is x
    assert torch.equal(x, expected)
    codes = torch.empty(3, 4, dtype=torch.uint8)
    anybit.torch.dynamic_quantize(x, 0.5, dtype="u8", out=codes)
    assert torch.equal(codes, anybit.torch.dynamic_quantize(x, 0.5, dtype="u8"))


def test_functions_write_out_with_lazy_negation() -> None:
    x = torch.tensor([-3.0, 0.25, 1.5])
    for values in (x, x.clone().requires_grad_()):
        memory = torch.zeros(3, dtype=torch.complex64)
        out = memory.conj().imag
        assert out.is_neg()
        assert anybit.torch.int_quant(values, 0.5, 0, 3, out=out) is out
        assert torch.equal(out, anybit.torch.int_quant(x, 0.5, 0, 3))
        assert torch.equal(memory.imag, -out)


def test_functions_write_out_of_any_strides() -> None:
    """Write to slices, transposes and diagonals, whose elements do not overlap."""
    x = torch.arange(6.0).reshape(2, 3)
    memory = torch.zeros(4, 9, 4)
    for out in (
        memory[::2, ::3, 1],
        memory[1:3, :3, 0].t().t(),
        memory.permute(2, 0, 1)[2:, 1:, 5].narrow(1, 0, 3),
        memory.diagonal(0, 0, 2)[::5, 1:],
        memory.as_strided((2, 3), (1, 2)),
    ):
        anybit.torch.int_quant(x, 1.0, 0, 4, out=out)
        assert torch.equal(out, x)


def test_functions_pass_gradients_through_out() -> None:
    x, out = torch.linspace(-3, 3, 7).requires_grad_(), torch.zeros(7)
    anybit.torch.int_quant(x, 1.0, 0, 2, out=out).sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 0, 0]
    # What autograd has kept must not be overwritten unnoticed.
    kept = torch.ones(7)
    result = x * kept
    anybit.torch.int_quant(kept, 1.0, 0, 2, out=kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        anybit.torch.int_quant(kept, 1.0, 0, 2, out=x)


@any_operator
def test_functions_of_meta_tensors(operator: Operator) -> None:
    x = tensor_as_x(operator, torch.empty(2, 3, 4, device="meta"))
    result = getattr(anybit.torch, operator.name)(x, *usual_parameters(operator))
    assert result.is_meta
    assert result.shape == x.shape


@pytest.mark.parametrize(
    "operator",
    [
        entry
        for entry in OPERATORS
        if "bfloat16" in entry.inputs[0].domain.dtypes and entry.required_inputs > 1
    ],
    ids=lambda operator: operator.name,
)
def test_functions_ignore_autocast(operator: Operator) -> None:
    """Half precision is computed in float32 and rounded once, under autocast as without."""
    function, parameters = getattr(anybit.torch, operator.name), usual_parameters(operator)
    for dtype, inside in ((torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)):
        x = torch.linspace(-9, 9, 50).to(dtype)
        scale = torch.tensor(0.3, dtype=inside)
        expected = function(x, scale, *parameters[1:])
        with torch.autocast("cpu", dtype=inside):
            result = function(x, scale, *parameters[1:])
        assert result.dtype == dtype
        assert torch.equal(result, expected)


def test_functions_of_tensor_subclasses() -> None:
    class Named(torch.Tensor):
        pass

    x = torch.linspace(-3, 3, 7)
    expected = anybit.torch.int_quant(x, 0.5, 0, 4)
    named = anybit.torch.int_quant(x.as_subclass(Named), 0.5, 0, 4)
    assert type(named) is Named
    assert torch.equal(named.as_subclass(Tensor), expected)
    learned = anybit.torch.int_quant(torch.nn.Parameter(x), torch.nn.Parameter(x[0].abs()), 0, 4)
    assert type(learned) is Tensor
    assert learned.requires_grad
    with torch.inference_mode():
        assert torch.equal(anybit.torch.int_quant(x.clone(), 0.5, 0, 4), expected)


@any_name
@given(data=st.data())
def test_functions_equal_numpy_on_random_calls(name: str, data: st.DataObject) -> None:
    """Random shapes and strides, and the NumPy function with the same parameters."""
    quantize = data.draw(quantizers(name))
    least = 0 if BY_NAME[name].block_axis is None else 1
    shape = data.draw(st.lists(st.integers(0, 4), min_size=least, max_size=4))
    size = int(np.prod(shape, dtype=int))
    if reads_codes(BY_NAME[name]):
        dtype = data.draw(st.sampled_from([torch.int8, torch.uint8]))
        limits = torch.iinfo(dtype)
        elements: Any = st.integers(limits.min, limits.max)
    else:
        dtype, elements = torch.float32, any_float
    values = data.draw(st.lists(elements, min_size=size, max_size=size))
    x = torch.tensor(values, dtype=dtype).reshape(shape)
    x = x.permute(data.draw(st.permutations(range(len(shape)))))
    if shape and data.draw(st.booleans()):
        x = x[::2]
    parameters = [as_tensor(v) if isinstance(v, np.ndarray) else v for v in quantize.inputs]
    actual = getattr(anybit.torch, name)(x, *parameters, **quantize.attributes)
    assert_same_tensor(
        actual.contiguous(), np.ascontiguousarray(quantize(as_array(x))).reshape(x.shape)
    )


@given(data=st.data())
def test_functions_equal_numpy_on_random_broadcasts(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    x = torch.linspace(-9, 9, int(np.prod(shape))).reshape(shape)
    parameters = []
    for low, high in ((0.1, 2.0), (-3.0, 3.0)):
        rank = data.draw(st.integers(0, len(shape)))
        own = [data.draw(st.sampled_from([1, size])) for size in shape[len(shape) - rank :]]
        parameters.append(torch.linspace(low, high, int(np.prod(own, dtype=int))).reshape(own))
    actual = anybit.torch.int_quant(x, *parameters, 4)
    assert_same_tensor(actual, anybit.int_quant(as_array(x), *map(as_array, parameters), 4))
