# SPDX-License-Identifier: Apache-2.0
"""Errors of the PyTorch functions, with the value and the remedy."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_backend import tensor_as_x  # noqa: E402
from x_types import reads_codes, x_dtypes  # noqa: E402

import anybit.torch  # noqa: E402
from anybit.ops import OPERATORS  # noqa: E402

Tensor = torch.Tensor
X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
ONE = torch.ones(())


def sparse(tensor: Tensor) -> Tensor:
    return tensor.to_sparse()


def quantized(tensor: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8)


# What is wrong with a tensor, and how the message says it, for x and for a parameter.
WRONG_TENSORS: dict[str, tuple[Callable[[Tensor], Tensor], type[Exception], str, str]] = {
    "sparse": (sparse, TypeError, "dense.*to_dense", "dense.*to_dense"),
    "quantized": (quantized, TypeError, "qint8", "qint8"),
    "complex": (lambda t: t.to(torch.complex64), TypeError, "complex64", "complex64"),
    "float8": (lambda t: t.to(torch.float8_e4m3fn), TypeError, "float8_e4m3fn", "float8_e4m3fn"),
    "on_another_device": (
        lambda t: t.to("meta"),
        ValueError,
        "must be on x's device",
        "must be on x's device cpu, got meta; use .*to",
    ),
}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
@pytest.mark.parametrize("wrong", WRONG_TENSORS)
def test_functions_refuse_wrong_tensors(operator: Any, wrong: str) -> None:
    """Test all inputs of the function and of the operator in the dispatcher."""
    spoil, error, of_x, of_parameter = WRONG_TENSORS[wrong]
    if operator.required_inputs == 1 and error is ValueError:
        pytest.skip("x is its only input, so that no other is on another device")
    inputs = [tensor_as_x(operator, X), *[ONE.reshape(1)] * (operator.required_inputs - 1)]
    for place, declared in enumerate(operator.inputs[: operator.required_inputs]):
        bad = list(inputs)
        bad[place] = spoil(bad[place])
        # With x elsewhere, it is the others that are in the wrong place.
        named = declared.name if place or error is TypeError else ""
        pattern = f"{named}.*{of_parameter if place else of_x}"
        for function in (
            getattr(anybit.torch, operator.name),
            getattr(torch.ops.anybit, operator.name),
        ):
            with pytest.raises(error, match=pattern):
                function(*bad)


def test_functions_refuse_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([X[0], X[1, :1]], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"x must not be nested; .*values\(\)"):
        anybit.torch.int_quant(nested, 1.0, 0, 4)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.uint16], ids=str
)
def test_functions_refuse_integer_x(dtype: torch.dtype) -> None:
    """No operator takes them, but those that read codes of just that type."""
    name = str(dtype).removeprefix("torch.")
    for operator in OPERATORS:
        parameters = [1] * (operator.required_inputs - 1)
        for x in (X.to(dtype), X.to(dtype).to("meta")):
            if name in x_dtypes(operator):
                result = getattr(anybit.torch, operator.name)(x, *parameters)
                assert result.dtype == torch.float32
                continue
            with pytest.raises(TypeError, match=rf"{operator.inputs[0].name} must be .*{name}"):
                getattr(anybit.torch, operator.name)(x, *parameters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_dynamic_dequantize_refuses_float_codes(dtype: torch.dtype) -> None:
    readers = [operator for operator in OPERATORS if reads_codes(operator)]
    assert readers
    for operator in readers:
        parameters = [1] * (operator.required_inputs - 1)
        name = str(dtype).removeprefix("torch.")
        for x in (X.to(dtype), X.to(dtype).to("meta")):
            with pytest.raises(TypeError, match=f"src must be int8 or uint8, got dtype {name}"):
                getattr(anybit.torch, operator.name)(x, *parameters)


BAD_VALUES = {
    "fraction": (2.5, r"2\.5"),
    "nan": (float("nan"), "nan"),
    "infinity": (float("inf"), "inf"),
    "zero": (0, "0"),
    "negative": (-(2**70), "-1"),
}


def forms(value: float) -> Iterator[Any]:
    """Return a number in several containers. An integer may be too large for a tensor."""
    yield value
    yield np.float64(value)
    yield [[4.0, float(value)]]
    yield np.array([4.0, value], np.float64)
    yield torch.tensor(float(value))
    yield torch.tensor([4.0, float(value)], dtype=torch.float64)


@pytest.mark.parametrize("name", BAD_VALUES)
def test_functions_refuse_invalid_bitwidths(name: str) -> None:
    value, shown = BAD_VALUES[name]
    for width in forms(value):
        with pytest.raises(ValueError, match=rf"bitwidth must be an integer >= 1, got {shown}"):
            anybit.torch.int_quant(X, 1.0, 0, width)
    with pytest.raises(ValueError, match=rf"bitwidth must be an integer >= 1, got {shown}"):
        anybit.torch.int_quant(X.to("meta"), 1.0, 0, value)  # known without looking at a device


def test_functions_refuse_invalid_numbers() -> None:
    quantize = anybit.torch.float_quant
    for limit in (-1, -1.0, float("nan"), np.array(-1.0), torch.tensor(-1.0)):
        with pytest.raises(ValueError, match=r"max_val must be a number >= 0, got (-1|nan)"):
            quantize(X, 1.0, 4, 3, 7, limit)
    with pytest.raises(ValueError, match="zps must be int8, uint8 or int32"):
        anybit.torch.dynamic_quantize(X, 1.0, 2**31)
    with pytest.raises(ValueError, match="beyond every float"):
        anybit.torch.int_quant(X, 10**400, 0, 4)
    for text in ("0.5", np.array(["0.5"])):
        with pytest.raises(TypeError, match="scale must be a real number, got dtype"):
            anybit.torch.int_quant(X, text, 0, 4)
    with pytest.raises(TypeError, match="scale must be a real number, got dtype complex128"):
        anybit.torch.int_quant(X, 1j, 0, 4)
    with pytest.raises(TypeError, match="scale must be a real number, got dtype object"):
        anybit.torch.int_quant(X, None, 0, 4)


SHAPES = [(3,), (1, 2, 2), (2, 1, 2), (0,), (2, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_functions_refuse_shapes_that_do_not_broadcast(shape: tuple, device: str) -> None:
    """Compare messages with those of fake tensors, whose kernels check shapes themselves."""
    x = X.to(device)
    for operator in OPERATORS:
        if not operator.broadcasts:
            continue
        for place in range(1, operator.required_inputs):
            inputs = [x, *[torch.ones((), device=device)] * (operator.required_inputs - 1)]
            inputs[place] = torch.ones(shape, device=device)
            name = operator.inputs[place].name
            with pytest.raises(ValueError, match=f"{name} of shape .* does not broadcast to x of"):
                getattr(torch.ops.anybit, operator.name)(*inputs)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_functions_refuse_invalid_attributes(device: str) -> None:
    x = X.to(device)
    for mode in ("NEAREST", "", "ROUND_TO_ZERO"):
        with pytest.raises(ValueError, match=f"rounding_mode must be one of .*{mode}"):
            anybit.torch.int_quant(x, 1, 0, 4, rounding_mode=mode)
    for attribute, value in {"qtype": "per_group", "dtype": "s4", "arithmetic": "fma"}.items():
        with pytest.raises(ValueError, match=f"{attribute} must be .*{value}"):
            anybit.torch.dynamic_quantize(x, 1.0, **{attribute: value})
    with pytest.raises(ValueError, match=r"axis must be in \[-2, 1\] .* got 2"):
        anybit.torch.dynamic_quantize(x, [1.0, 2.0], qtype="per_channel", axis=2)
    with pytest.raises(TypeError, match="signed must be a bool, got 'yes'"):
        anybit.torch.int_quant(x, 1, 0, 4, signed="yes")
    with pytest.raises(TypeError, match="rounding_mode must be a string, got 3"):
        anybit.torch.int_quant(x, 1, 0, 4, rounding_mode=3)
    with pytest.raises(TypeError, match="float"):
        anybit.torch.dynamic_quantize(x, 1.0, axis=0.5)


def test_functions_refuse_missing_and_unknown_arguments() -> None:
    for arguments, keywords, pattern in (
        ((X, 1, 0), {}, "bitwidth"),
        ((), {}, "'x'"),
        ((X, 1, 0, 4, 5), {}, "too many"),
        ((X, 1, 0, 4), {"rounding": "UP"}, "rounding"),
        ((X, 1, 0, 4), {"scale": 1}, "scale"),
        ((np.ones(2), 1, 0, 4), {}, r"x must be a torch.Tensor, got ndarray; use anybit"),
        (([1.0], 1, 0, 4), {}, "x must be a torch.Tensor, got list"),
    ):
        with pytest.raises(TypeError, match=pattern):
            anybit.torch.int_quant(*arguments, **keywords)


def test_functions_refuse_invalid_out() -> None:
    for x in (X, X.clone().requires_grad_()):
        for out in (torch.empty(2), X.double(), X.to("meta")):
            with pytest.raises(ValueError, match="out must have shape"):
                anybit.torch.int_quant(x, 1, 0, 4, out=out)
        with pytest.raises(ValueError, match="must not overlap"):
            anybit.torch.int_quant(x, 1, 0, 4, out=torch.empty(()).expand(2, 2))
        with pytest.raises(ValueError, match=r"must not overlap.*strides \(1, 1\)"):
            anybit.torch.int_quant(x, 1, 0, 4, out=torch.empty(3).as_strided((2, 2), (1, 1)))
        with pytest.raises(ValueError, match="out must have shape"):
            anybit.torch.int_quant(x.to("meta"), 1, 0, 4, out=X.to("meta")[0])
        with pytest.raises(ValueError, match=r"out must have shape .*complex64"):
            anybit.torch.int_quant(x, 1, 0, 4, out=torch.zeros(2, 2, dtype=torch.complex64).conj())
    with pytest.raises(TypeError, match=r"out must be a torch\.Tensor, got ndarray"):
        anybit.torch.int_quant(X, 1, 0, 4, out=np.empty((2, 2)))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_backward_refuses_invalid_arguments(device: str) -> None:
    x, one = X.to(device), ONE.to(device)
    backward = torch.ops.anybit.int_quant_backward
    good = (x, x, one, one, one)
    for place, bad, error, pattern in (
        (0, x[0], ValueError, r"gradient must have the shape of x, \(2, 2\), got \(2,\)"),
        (0, x.int(), TypeError, "gradient must be .*int32"),
        (1, x.int(), TypeError, "x must be .*int32"),
        (2, torch.ones(3, device=device), ValueError, "scale of shape .* does not broadcast"),
    ):
        with pytest.raises(error, match=pattern):
            backward(*good[:place], bad, *good[place + 1 :], requested=["x"])
    for name in ("bits", "scal"):
        with pytest.raises(ValueError, match=f"{name}"):
            backward(*good, requested=[name])
    with pytest.raises(ValueError, match="NEAREST"):
        backward(*good, requested=["x"], rounding_mode="NEAREST")
    with pytest.raises(ValueError, match="max_val"):
        torch.ops.anybit.float_quant_backward(x, x, one, one, one, one, None, requested=["max_val"])


def test_backward_checks_values() -> None:
    with pytest.raises(ValueError, match="bitwidth must be an integer >= 1, got 0"):
        torch.ops.anybit.int_quant_backward(X, X, ONE, ONE, ONE * 0, requested=["x"])
