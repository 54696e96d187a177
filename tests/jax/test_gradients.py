# SPDX-License-Identifier: Apache-2.0
"""Gradients under JAX are those of the other back-ends: x's to the bit, sums to the last rounding.

Sums of parameters are those of the native kernels, which add in float64 and round once.
"""

from typing import Any

import numpy as np
import pytest
from cases import Case, every_case
from x_types import moves_x

from anybit._native import _core
from anybit.ops import OPERATORS
from anybit.ops.gradient import propagate_gradients

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

import anybit.jax  # noqa: E402

BY_NAME = {operator.name: operator for operator in OPERATORS}
X = (np.random.default_rng(0).standard_normal((3, 4, 5)) * 3).astype(np.float32)

# The function, and float parameters that all have a derivative.
SMOOTH = [
    ("int_quant", (0.5, 0.0, 3.0), {}),
    ("int_quant", (0.3, 2.0, 3.0), {"signed": False, "rounding_mode": "FLOOR"}),
    ("float_quant", (0.7, 2, 1, 1, 5.0), {}),
    ("trunc", (0.25, 0.0, 8, 1.0, 3.0), {}),
    ("trunc_v1", (0.25, 1.0, 8, 6), {}),
    ("bipolar_quant", (0.7,), {}),
]


def rows() -> list[Any]:
    """Rows of the case tables that have an answer, of operators whose x has a gradient.

    One in eleven of them: the kernels run on all in test_native_gradient.py, and what is new here
    is how they are computed; every row is a separate compilation. Gradients of blocks are XLA's own
    arithmetic, which takes subnormal scales for 0.
    """
    result = [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name, case in every_case()
        if case.raises is None and moves_x(BY_NAME[name])
        if BY_NAME[name].block_axis is None or not case.name.startswith(("limits", "tensor_scale"))
    ]
    return result[::11]


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    bits = f"u{expected.dtype.itemsize}"
    actual, expected = np.ascontiguousarray(actual), np.ascontiguousarray(expected)
    both_nan = (actual != actual) & (expected != expected)
    same = actual.view(bits) == expected.view(bits)
    assert (same | both_nan.reshape(same.shape)).all()


@pytest.mark.parametrize(("name", "case"), rows())
def test_gradient_of_x_equals_numpy(name: str, case: Case) -> None:
    """Also where XLA's own arithmetic would flush subnormals."""
    x = np.asarray(case.inputs[0])
    with jax.enable_x64(x.dtype == np.float64):
        gradient = np.random.default_rng(0).standard_normal(x.shape).astype(x.dtype)

        def function(x: Any) -> Any:
            return getattr(anybit.jax, name)(x, *case.inputs[1:], **case.attributes)

        _, back = jax.vjp(function, jnp.asarray(x))
        (result,) = back(jnp.asarray(gradient))
    partials = BY_NAME[name].partials(x, *case.inputs[1:], **case.attributes)
    by_numpy = propagate_gradients(gradient, {"x": x}, partials, ["x"])["x"]
    assert_same_bits(np.asarray(result), by_numpy)


@pytest.mark.parametrize(("name", "parameters", "attributes"), SMOOTH)
def test_gradients_of_parameters_equal_numpy(name: str, parameters: Any, attributes: Any) -> None:
    operator = BY_NAME[name]
    names = [declared.name for declared in operator.inputs]
    values = {names[0]: X, **dict(zip(names[1:], parameters, strict=False))}
    shapes = [(), (1,), (5,), (4, 1), (3, 1, 5), (3, 4, 5)]
    gradient = np.random.default_rng(2).standard_normal(X.shape).astype(np.float32)
    for shape in shapes:
        moving = {
            element: np.full(shape, values[element], np.float32)
            for element in operator.differentiable
            if element != names[0]
        }
        inputs = values | moving

        def function(moving: Any, inputs: Any = inputs) -> Any:
            return getattr(anybit.jax, name)(**(inputs | moving), **attributes)

        _, back = jax.vjp(function, moving)
        (result,) = back(gradient)
        fast = [item for item in moving if item in _core.descriptions[name]["differentiable"]]
        native = getattr(_core, f"{name}_backward")
        by_kernel = native(gradient, *inputs.values(), requested=fast, **attributes)
        for parameter, expected in zip(fast, by_kernel, strict=True):
            assert_same_bits(np.asarray(result[parameter]), expected)
        # Widths have no kernel: XLA adds in another order than NumPy, in float32.
        partials = operator.partials(*inputs.values(), **attributes)
        by_numpy = propagate_gradients(gradient, inputs, partials, list(moving))
        for entry in moving:
            terms = np.abs(gradient * partials[entry]).sum() * 2.0**-22
            assert np.abs(np.asarray(result[entry]) - by_numpy[entry]).max() <= terms, entry


def codes_call(axis: int | None, dtype: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return codes, scales and zero-points whose sums over 60 codes are exact in float32."""
    random = np.random.default_rng(3)
    limits = np.iinfo(dtype)
    codes = random.integers(limits.min, limits.max + 1, (3, 4, 5)).astype(dtype)
    count = 1 if axis is None else codes.shape[axis]
    scales = (2.0 ** random.integers(-2, 3, count)).astype(np.float32)
    zps = random.integers(-300, 300, count).astype(np.int32)
    return codes, scales, zps, {} if axis is None else {"qtype": "per_channel", "axis": axis}


@pytest.mark.parametrize("wide", [False, True], ids=["32_bits", "64_bits"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_gradients_of_dequantize_scales_equal_numpy(
    dtype: Any, axis: int | None, wide: bool
) -> None:
    """Compare kernel and reference, with constant and with traced codes."""
    codes, scales, zps, attributes = codes_call(axis, dtype)
    gradient = np.random.default_rng(4).integers(-8, 9, codes.shape).astype(np.float32)
    operator = BY_NAME["dynamic_dequantize"]
    partials = operator.partials(codes, scales, zps, **attributes)
    shapes = operator.broadcast_shapes((codes, scales, zps), attributes)
    expected = propagate_gradients(gradient, {"scales": scales}, partials, ["scales"], shapes)[
        "scales"
    ]

    def total(scales: Any, codes: Any, zps: Any) -> Any:
        result = anybit.jax.dynamic_dequantize(codes, scales, zps, **attributes)
        return (result * gradient).sum()

    with jax.enable_x64(wide):
        assert_same_bits(np.asarray(jax.grad(total)(scales, codes, zps)), expected)
        for transformed in (jax.jit(total), jax.checkpoint(total), jax.jit(jax.checkpoint(total))):
            actual = jax.grad(transformed)(scales, codes, zps)
            assert_same_bits(np.asarray(actual), expected)
        _, back = jax.vjp(total, scales, codes, zps)
        actual, *none = back(np.float32(1))
        assert_same_bits(np.asarray(actual), expected)
        assert all(item.dtype == jax.dtypes.float0 for item in none)


def test_gradients_of_scales_under_vmap_equal_loop() -> None:
    codes, scales, zps, attributes = codes_call(1, np.int8)

    def total(scales: Any, codes: Any) -> Any:
        result = anybit.jax.dynamic_dequantize(codes, scales, zps, **attributes)
        return (result**2).sum()

    batch = np.stack([codes, codes[::-1] // 2])
    batched = jax.vmap(jax.grad(total), (None, 0))(scales, batch)
    expected = np.array([jax.grad(total)(scales, codes) for codes in batch])
    assert_same_bits(np.asarray(batched), expected)
    many = np.stack([scales, 2 * scales])
    batched = jax.vmap(jax.grad(total), (0, None))(many, codes)
    expected = np.array([jax.grad(total)(scales, codes) for scales in many])
    assert_same_bits(np.asarray(batched), expected)


def test_second_derivatives_of_scales_equal_the_formula() -> None:
    """Compare with sums of squares, for the square of the product."""
    codes, scales, zps, attributes = codes_call(None, np.uint8)

    def total(scale: Any) -> Any:
        result = anybit.jax.dynamic_dequantize(codes, scale[None], zps, **attributes)
        return (result**2).sum() / 2

    square = ((codes.astype(np.int64) - zps) ** 2).sum()
    assert jax.grad(jax.grad(total))(scales[0]) == pytest.approx(square, rel=1e-6)


def loss(x: Any, scale: Any) -> Any:
    return (anybit.jax.int_quant(x, scale, 0, 4) ** 2).sum()


def test_value_and_grad_under_jit_and_checkpoint_are_equal() -> None:
    value, gradient = jax.value_and_grad(loss)(X, 0.5)
    assert value == (anybit.int_quant(X, 0.5, 0, 4) ** 2).sum()
    for transformed in (jax.jit(loss), jax.checkpoint(loss), jax.jit(jax.checkpoint(loss))):
        assert_same_bits(np.asarray(jax.grad(transformed)(X, 0.5)), np.asarray(gradient))


def test_gradients_under_vmap_equal_loop() -> None:
    scales = np.float32([0.2, 0.5, 0.9])
    batched = jax.vmap(jax.grad(loss, 1))(X, scales)
    expected = [jax.grad(loss, 1)(x, scale) for x, scale in zip(X, scales, strict=True)]
    assert_same_bits(np.asarray(batched), np.array(expected))
    shared = jax.vmap(jax.grad(loss, 1), in_axes=(0, None))(X, 0.5)
    assert_same_bits(np.asarray(shared), np.array([jax.grad(loss, 1)(x, 0.5) for x in X]))
    over_scales = jax.vmap(jax.grad(loss), in_axes=(None, 0))(X, scales)
    assert_same_bits(np.asarray(over_scales), np.array([jax.grad(loss)(X, s) for s in scales]))


def test_gradients_through_scan_and_jacobian_are_equal() -> None:
    def last(scale: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            return anybit.jax.int_quant(state + x, scale, 0, 5), None

        return jax.lax.scan(step, jnp.zeros((4, 5)), X)[0]

    rows = jax.jacrev(last)(0.25)
    assert rows.shape == (4, 5)
    assert float(rows.sum()) == pytest.approx(float(jax.grad(lambda s: last(s).sum())(0.25)))


def test_second_derivatives_equal_the_formula() -> None:
    """Inside, y = round(x / s) * s has dy/ds = round(x / s) - x / s, and that has x / s^2."""
    x, scale = jnp.float32(0.7), jnp.float32(0.5)
    second = jax.grad(jax.grad(lambda s: anybit.jax.int_quant(x, s, 0, 4)))(scale)
    assert float(second) == pytest.approx(0.7 / 0.25)


def test_gradients_keep_half_precision() -> None:
    for dtype in (jnp.bfloat16, jnp.float16):
        x, scale = jnp.asarray(X, dtype), jnp.asarray(0.5, dtype)
        of_x, of_scale = jax.grad(loss, (0, 1))(x, scale)
        assert (of_x.dtype, of_scale.dtype) == (dtype, dtype)


def test_gradients_of_integer_results_are_zero() -> None:
    def through(x: Any) -> Any:
        return anybit.jax.dynamic_quantize(x, np.float32([0.5])).astype(jnp.float32).sum()

    assert not np.asarray(jax.grad(through)(X)).any()


def test_gradients_refuse_inputs_without_derivative() -> None:
    def by_mantissa(mantissa: Any) -> Any:
        return anybit.jax.float_quant(X, 1.0, 4, mantissa, 7).sum()

    with pytest.raises(TypeError, match="no derivative with respect to mantissa_bitwidth"):
        jax.grad(by_mantissa)(3.0)
    assert jax.grad(lambda m: by_mantissa(jax.lax.stop_gradient(m)))(3.0) == 0
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: anybit.jax.int_quant(x, 1.0, 0, 4), (X,), (X,))
