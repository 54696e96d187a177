# SPDX-License-Identifier: Apache-2.0
"""Tests of the native gradients: equality with the reference, exact sums, memory order, dtypes."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backends import OPERATORS
from cases import Case, assert_same_bits, every_case, shapes_within
from gradient_calls import backward, exact_arguments
from hypothesis import given
from hypothesis import strategies as st
from strategies import any_float, arrays, quantizers, x_arrays
from x_types import reads_codes

from anybit._native import _core
from anybit.ops import Operator
from anybit.ops.gradient import propagate_gradients

DIFFERENTIABLE = [operator for operator in OPERATORS.values() if operator.differentiable]
CASES = [
    (operator, case)
    for operator, case in every_case()
    if OPERATORS[operator].differentiable and case.raises is None
]
each_operator = pytest.mark.parametrize("operator", DIFFERENTIABLE, ids=lambda item: item.name)


def expected(
    operator: Operator, gradient: np.ndarray, inputs: tuple[Any, ...], name: str, **attributes: Any
) -> np.ndarray:
    """Return the gradient of an input of x's shape, from the reference's partial derivatives."""
    values = {
        declared.name: value for declared, value in zip(operator.inputs, inputs, strict=False)
    }
    partials = operator.partials(*inputs, **attributes)
    return np.asarray(propagate_gradients(gradient, values, partials, [name])[name])


def without_sums(
    operator: Operator,
    gradient: np.ndarray,
    inputs: tuple[Any, ...],
    attributes: dict[str, Any],
    name: str,
) -> tuple[np.ndarray, tuple[Any, ...], dict[str, Any]]:
    """Return the call with one input expanded to x's shape, so that its gradient is not a sum."""
    if name == operator.inputs[0].name:
        return gradient, inputs, attributes
    if operator.broadcasts:
        return gradient, full_sized(operator, inputs, name), attributes
    # Each element is a channel of its own.
    x, *parameters = (None if value is None else np.asarray(value) for value in inputs)
    placed = operator.broadcast_shapes((x, *parameters), attributes)
    spread = [
        None
        if value is None
        else np.broadcast_to(value.reshape(placed[declared.name]), x.shape).reshape(-1)
        for declared, value in zip(operator.inputs[1:], parameters, strict=False)
    ]
    per_element = {**attributes, "qtype": "per_channel", "axis": 0}
    return gradient.reshape(-1), (x.reshape(-1), *spread), per_element


def full_sized(operator: Operator, inputs: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Return the inputs, one of them expanded to x's shape in the compute type."""
    x = np.asarray(inputs[0])
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    place = [declared.name for declared in operator.inputs].index(name)
    with np.errstate(all="ignore"):
        values = np.broadcast_to(np.asarray(inputs[place]), x.shape).astype(dtype)
    return (*inputs[:place], values, *inputs[place + 1 :])


def assert_same_gradients(
    operator: Operator,
    gradient: np.ndarray,
    inputs: tuple[Any, ...],
    isas: Iterable[str] = (),
    **attributes: Any,
) -> None:
    native = _core.descriptions[operator.name]["differentiable"]
    for declared, value in zip(operator.inputs, inputs, strict=False):
        name = declared.name
        if value is None or name not in native:
            continue
        arriving, whole, options = without_sums(operator, gradient, inputs, attributes, name)
        correct = expected(operator, arriving, whole, name, **options)
        case = Case(f"{operator.name} by {name} {inputs[1:]} {attributes}", inputs)
        for isa in isas or (_core.isa(),):
            _core.set_isa(isa)
            (got,) = backward(operator.name, arriving, *whole, requested=[name], **options)
            assert_same_bits(got, correct, case)


@each_operator
def test_gradient_declares_x_and_real_parameters(operator: Operator) -> None:
    """Check that bit widths, unlike x and the real parameters, are left to the reference.

    So is everything about blocks.
    """
    domains = {declared.name: declared.domain for declared in operator.inputs}
    names = operator.differentiable if operator.block_axis is None else ()
    real = tuple(name for name in names if not domains[name].integer)
    assert _core.descriptions[operator.name]["differentiable"] == real


def test_gradient_is_missing_for_other_operators() -> None:
    for operator in OPERATORS.values():
        if not operator.differentiable:
            assert _core.descriptions[operator.name]["differentiable"] == ()
            assert not hasattr(_core, f"{operator.name}_backward")


@pytest.mark.sample(7)
@pytest.mark.parametrize("wide", [False, True], ids=["as_is", "float64"])
@each_operator
def test_gradient_matches_reference_on_case_tables(
    operator: Operator, wide: bool, isas: list[str]
) -> None:
    """Include upstream gradients that are infinite, NaN and zero."""
    random = np.random.default_rng(0)
    for case in (case for name, case in CASES if name == operator.name):
        x = np.asarray(case.inputs[0])
        x = x.astype(np.float64) if wide and not reads_codes(operator) else x
        kind = np.float64 if wide else np.float32 if reads_codes(operator) else x.dtype
        gradient = random.standard_normal(x.shape).astype(kind)
        gradient.reshape(-1)[:4] = [np.inf, np.nan, 0, -0.0][: gradient.size]
        inputs = (x, *case.inputs[1:])
        assert_same_gradients(operator, gradient, inputs, isas, **case.attributes)


@each_operator
@given(data=st.data())
def test_gradient_matches_reference_on_any_numbers(operator: Operator, data: st.DataObject) -> None:
    quantize = data.draw(quantizers(operator.name))
    scale = data.draw(any_float)
    x = data.draw(x_arrays(operator.name, any_float))
    gradient = np.resize(data.draw(arrays(any_float)) if len(x) else np.float32(x), x.shape)
    parameters = (np.float32(scale), *quantize.inputs[1:])
    for dtype in (np.float32, np.float64):
        typed_x = x if reads_codes(operator) else x.astype(dtype)
        assert_same_gradients(
            operator, gradient.astype(dtype), (typed_x, *parameters), **quantize.attributes
        )


SHAPES = [(), (1,), (1000,), (7, 3), (5, 40, 3), (3, 70, 130), (200, 9), (64, 2, 33), (2, 3, 2, 5)]


def summed_in_order(products: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    aligned = (1,) * (products.ndim - len(shape)) + shape
    repeated = tuple(i for i, size in enumerate(aligned) if size != products.shape[i])
    return products.sum(axis=repeated, dtype=np.float64).reshape(shape)


def parameter_shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    if len(shape) == 3:
        return list(dict.fromkeys(shapes_within(shape).values()))
    last = (1,) * (len(shape) - 1) + shape[-1:]
    return list(dict.fromkeys([(), shape, shape[-1:], last, shape[:1] + (1,) * (len(shape) - 1)]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradient_sums_are_exact_if_products_are(shape: tuple[int, ...]) -> None:
    """Combine all pairs of parameter shapes with subsets of the gradients."""
    for scale_shape in parameter_shapes(shape):
        for zeropt_shape in parameter_shapes(shape):
            gradient, *inputs = exact_arguments(shape, scale_shape, zeropt_shape)
            partials = OPERATORS["int_quant"].partials(*inputs, 4)
            products = {name: partials[name] * gradient for name in ("x", "scale", "zeropt")}
            sums = {
                name: summed_in_order(np.asarray(products[name]), np.shape(value))
                for name, value in zip(products, inputs, strict=True)
            }
            case = Case(f"{shape} {scale_shape} {zeropt_shape}", tuple(inputs))
            for names in (["scale", "x", "zeropt"], ["scale"], ["zeropt", "x"], ["x"]):
                gradients = backward("int_quant", gradient, *inputs, 4, requested=names)
                for name, got in zip(names, gradients, strict=True):
                    assert (got.shape, got.dtype) == (sums[name].shape, np.float32)
                    assert np.array_equal(got, sums[name]), (case.name, name, names)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_gradient_of_scales_of_codes_is_an_exact_sum(
    axis: int | None, dtype: Any, isas: list[str]
) -> None:
    """Vary the granularity of the scale and the memory order of the codes."""
    random = np.random.default_rng(0)
    shape = (7, 30, 130)
    limits = np.iinfo(dtype)
    codes = random.integers(limits.min, limits.max + 1, shape).astype(dtype)
    gradient = random.integers(-8, 9, shape).astype(np.float32)
    count = 1 if axis is None else shape[axis]
    attributes = {} if axis is None else {"qtype": "per_channel", "axis": axis}
    zps = random.integers(-300, 300, count).astype(np.int32)
    sizes = [1, 1, 1]
    sizes[axis or 0] = count
    products = (codes.astype(np.int64) - zps.reshape(sizes)) * gradient.astype(np.int64)
    repeated = tuple(i for i in range(3) if axis is None or i != axis % 3)
    expected_ = products.sum(axis=repeated).reshape(count).astype(np.float32)
    scales = np.full(count, np.nan, np.float32)  # the gradient does not depend on them
    for x in (codes, np.asfortranarray(codes), np.repeat(codes, 2, axis=2)[..., ::2]):
        for isa in isas:
            _core.set_isa(isa)
            (got,) = backward(
                "dynamic_dequantize", gradient, x, scales, zps, requested=["scales"], **attributes
            )
            assert_same_bits(got, expected_, Case(f"{axis} {dtype.__name__}", (x,)))


def test_gradient_of_codes_is_rejected() -> None:
    codes, scales = np.int8([1, 2]), np.float32([0.5])
    with pytest.raises(ValueError, match="requested must be among scales, got 'src'"):
        backward("dynamic_dequantize", np.float32([1, 1]), codes, scales, requested=["src"])


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "fortran": np.asfortranarray,
    "reversed": lambda x: x[::-1, :, ::-1].copy()[::-1, :, ::-1],
    "strided": lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=2)[::2, :, ::3],
    "transposed": lambda x: x.transpose(2, 0, 1).copy().transpose(1, 2, 0),
    "float64": lambda x: x.astype(np.float64),
    "float16": lambda x: x.astype(np.float16),
    "bfloat16": lambda x: x.astype(ml_dtypes.bfloat16),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["x", "gradient"])
@pytest.mark.parametrize("scale_shape", [(), (1, 70, 1), (130,), (3, 1, 1), (3, 70, 130)], ids=str)
def test_gradient_does_not_depend_on_memory_order_and_dtype(
    layout: str, which: str, scale_shape: tuple[int, ...]
) -> None:
    gradient, x, scale, zeropt = exact_arguments((3, 70, 130), scale_shape, (70, 1))
    call = {"x": x, "gradient": gradient}
    changed = {**call, which: LAYOUTS[layout](call[which])}
    names = ("x", "scale", "zeropt")
    correct = backward("int_quant", gradient, x, scale, zeropt, 4, requested=names)
    changed_call = changed["gradient"], changed["x"], scale, zeropt, 4
    gradients = backward("int_quant", *changed_call, requested=names)
    assert gradients[0].dtype == changed["x"].dtype
    for name, got, expected_ in zip(names, gradients, correct, strict=True):
        assert_same_bits(got.astype(np.float32), expected_, Case(f"{layout} {name}", (x,)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 1), (1, 1, 130), (1, 70, 1)], ids=str)
@pytest.mark.parametrize("scale_shape", [(), (1, 70, 1), (130,), (3, 70, 130)], ids=str)
def test_gradient_takes_expanded_upstream_gradients(
    shape: tuple[int, ...], scale_shape: tuple[int, ...]
) -> None:
    """Pass arrays of stride 0, as the gradient of a sum has."""
    gradient, x, scale, zeropt = exact_arguments((3, 70, 130), scale_shape, ())
    narrow = gradient[tuple(slice(0, size) for size in shape)]
    expanded = np.broadcast_to(narrow, x.shape)
    names = ("x", "scale", "zeropt")
    gradients = backward("int_quant", expanded, x, scale, zeropt, 4, requested=names)
    correct = backward("int_quant", expanded.copy(), x, scale, zeropt, 4, requested=names)
    for got, expected_ in zip(gradients, correct, strict=True):
        assert_same_bits(got, expected_, Case("expanded", (x,)))


def test_gradient_of_expanded_parameter_is_per_element() -> None:
    gradient, x, _, zeropt = exact_arguments((6, 8), (), ())
    scale = np.broadcast_to(np.float32(0.5), (8,))
    (got,) = backward("int_quant", gradient, x, scale, zeropt, 4, requested=["scale"])
    (correct,) = backward("int_quant", gradient, x, scale.copy(), zeropt, 4, requested=["scale"])
    assert_same_bits(got, correct, Case("expanded scale", (x,)))
    assert len(set(got.tolist())) > 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradient_sums_are_as_accurate_as_float64(dtype: Any) -> None:
    """Compare sums of 3 million products, of one sign and of both, with the exact sum."""
    random = np.random.default_rng(0)
    x = random.normal(0, 3, 3_000_000).astype(dtype)
    scale = np.array(0.3, dtype)
    partial = OPERATORS["int_quant"].partials(x, scale, 0, 4)["scale"]
    for gradient in (np.sign(partial), random.normal(0, 1, x.shape).astype(dtype)):
        (got,) = backward("int_quant", gradient, x, scale, 0, 4, requested=["scale"])
        products = (gradient * partial).astype(np.float64)
        exact = math.fsum(products)
        inexact = abs(float(products.sum()) - exact) + math.ulp(math.fsum(np.abs(products)))
        rounding = float(np.spacing(np.abs(dtype(exact)))) / 2
        assert abs(float(got) - exact) <= rounding + 8 * inexact


def test_gradient_has_the_dtype_of_its_parameter() -> None:
    gradient, x, scale, _ = exact_arguments((40, 6), (6,), ())
    (wide,) = backward("int_quant", gradient, x, scale, 0, 4, requested=["scale"])
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float64):
        gradient_x, got = backward(
            "int_quant", gradient, x, scale.astype(dtype), 0, 4, requested=["x", "scale"]
        )
        assert gradient_x.dtype == np.float32
        assert_same_bits(got, wide.astype(dtype), Case(str(dtype), (x,)))


@pytest.mark.parametrize("value", [0.5, [0.5], np.float64(0.5), np.array(1), np.array([1])])
def test_gradient_of_number_has_its_shape(value: Any) -> None:
    gradient, x, _, _ = exact_arguments((4, 5), (), ())
    (got,) = backward("int_quant", gradient, x, value, 0, 4, requested=["scale"])
    assert got.shape == np.shape(value)
    floating = isinstance(value, np.generic)
    assert got.dtype == (np.float64 if floating else np.float32)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_gradient_of_empty_arrays_is_zero(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for scale in (np.ones((), np.float32), np.ones(shape[-1:], np.float32)):
        gradients = backward("int_quant", x, x, scale, 0, 4, requested=["x", "scale"])
        assert gradients[0].shape == shape
        assert_same_bits(gradients[1], np.zeros(scale.shape, np.float32), Case("empty", (x,)))
