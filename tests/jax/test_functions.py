# SPDX-License-Identifier: Apache-2.0
"""The operators as JAX functions: transformations, parameters of every kind, faults, export."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT
from strategies import any_float, quantizers, x_arrays

import anybit

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

import anybit.jax  # noqa: E402

X = (np.random.default_rng(0).standard_normal((3, 4, 5)) * 3).astype(np.float32)
SCALES = np.float32([0.1, 0.3, 0.7])
PER_COLUMN = np.random.default_rng(1).uniform(0.1, 1, (3, 5)).astype(np.float32)

needs_kernels = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="asks for the kernels, which run on CPUs"
)


def assert_same(actual: Any, expected: np.ndarray) -> None:
    actual = np.asarray(actual)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("name", [operator.name for operator in anybit.ops.OPERATORS])
@given(data=st.data())
def test_functions_equal_numpy_on_random_calls(name: str, data: st.DataObject) -> None:
    quantizer = data.draw(quantizers(name))
    x = data.draw(x_arrays(name, any_float))
    expected = quantizer(x)
    actual = np.asarray(getattr(anybit.jax, name)(x, *quantizer.inputs, **quantizer.attributes))
    nan = np.isnan(actual) & np.isnan(expected)
    assert_same(np.where(nan, 0, actual), np.where(nan, 0, expected))


@pytest.mark.parametrize(
    "convert", [float, np.float32, np.float64, np.asarray, jnp.asarray, lambda value: [value] * 5]
)
def test_functions_accept_numbers_lists_and_arrays(convert: Any) -> None:
    expected = anybit.int_quant(X, np.float32(0.3), 1, 4)
    assert_same(anybit.jax.int_quant(X, convert(0.3), 1, 4), expected)
    assert_same(anybit.jax.int_quant(X, 0.3, np.int64(1), np.uint8(4)), expected)
    program = jax.jit(lambda x: anybit.jax.int_quant(x, convert(0.3), 1, 4))
    assert_same(program(X), expected)


def test_functions_convert_attributes() -> None:
    scales = np.float32([0.5])
    expected = anybit.dynamic_quantize(X, scales, dtype="u8")
    for dtype in ("u8", "uint8", np.uint8, np.dtype(np.uint8), jnp.uint8):
        assert_same(anybit.jax.dynamic_quantize(X, scales, dtype=dtype), expected)
    mode = anybit.ops.RoundingMode.UP
    expected = anybit.int_quant(X, 0.5, 0, 4, rounding_mode="UP")
    assert_same(anybit.jax.int_quant(X, 0.5, 0, 4, rounding_mode=mode), expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap_over_each_axis_equals_loop(axis: int) -> None:
    count = X.shape[axis]
    scales = np.linspace(0.1, 0.9, count, dtype=np.float32)
    both = jax.vmap(lambda x, scale: anybit.jax.int_quant(x, scale, 0, 4), in_axes=(axis, 0))
    slices = [anybit.int_quant(X.take(i, axis), scales[i], 0, 4) for i in range(count)]
    assert_same(both(X, scales), np.stack(slices))
    x_only = jax.vmap(lambda x: anybit.jax.int_quant(x, 0.3, 0, 4), in_axes=axis, out_axes=axis)
    assert_same(x_only(X), anybit.int_quant(X, np.float32(0.3), 0, 4))


def test_vmap_over_parameters_only_equals_loop() -> None:
    over_scale = jax.vmap(lambda scale: anybit.jax.int_quant(X, scale, 0, 4))
    assert_same(over_scale(SCALES), np.stack([anybit.int_quant(X, s, 0, 4) for s in SCALES]))
    assert_same(
        over_scale(PER_COLUMN), np.stack([anybit.int_quant(X, row, 0, 4) for row in PER_COLUMN])
    )
    over_width = jax.jit(jax.vmap(lambda bits: anybit.jax.int_quant(X, 0.5, 0, bits)))
    widths = np.int32([2, 3, 4])
    assert_same(over_width(widths), np.stack([anybit.int_quant(X, 0.5, 0, b) for b in widths]))


def test_vmap_nested_equals_loop() -> None:
    inner = jax.vmap(lambda x, scale: anybit.jax.int_quant(x, scale, 0, 4), in_axes=(None, 0))
    expected = [[anybit.int_quant(x, scale, 0, 4) for scale in SCALES] for x in X]
    assert_same(jax.vmap(inner, in_axes=(0, None))(X, SCALES), np.array(expected))
    by_column = jax.vmap(lambda x: anybit.jax.int_quant(x, SCALES.reshape(3, 1), 0, 4), in_axes=1)
    expected = [anybit.int_quant(X[:, i], SCALES.reshape(3, 1), 0, 4) for i in range(4)]
    assert_same(by_column(X), np.stack(expected))


def test_vmap_keeps_the_channel_axis() -> None:
    options = {"qtype": "per_channel", "axis": -1}
    zps = np.int32([1, 2, 3, 4, 5])
    both = jax.vmap(lambda x, row: anybit.jax.dynamic_quantize(x, row, zps, **options))
    expected = [
        anybit.dynamic_quantize(x, row, zps, **options)
        for x, row in zip(X, PER_COLUMN, strict=True)
    ]
    assert_same(both(X, PER_COLUMN), np.stack(expected))


def test_scan_equals_loop() -> None:
    def step(state: Any, x: Any) -> Any:
        state = anybit.jax.int_quant(state + x, 0.25, 0, 5)
        return state, state

    _, result = jax.lax.scan(step, jnp.zeros((4, 5)), X)
    state = np.zeros((4, 5), np.float32)
    for x, row in zip(X, result, strict=True):
        state = anybit.int_quant(state + x, 0.25, 0, 5)
        assert_same(row, state)


def test_jit_accepts_donated_arrays() -> None:
    program = jax.jit(lambda x: anybit.jax.int_quant(x, 0.5, 0, 4), donate_argnums=0)
    assert_same(program(jnp.asarray(X)), anybit.int_quant(X, 0.5, 0, 4))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("parameters", "attributes", "error", "pattern"),
    [
        ((1.0, 0, float("nan")), {}, ValueError, "bitwidth must be an integer >= 1, got nan"),
        ((1.0, 0, jnp.float32(2.5)), {}, ValueError, "got 2.5"),
        ((1.0, 0, None), {}, TypeError, "bitwidth is missing"),
        ((SCALES, 0, 4), {}, ValueError, r"scale of shape \(3,\) does not broadcast to x"),
        ((1j, 0, 4), {}, TypeError, "scale must be a real number, got dtype complex128"),
        ((1.0, 0, 4), {"rounding_mode": "NEAREST"}, ValueError, "rounding_mode.*NEAREST"),
        ((1.0, 0, 4), {"rounding_mode": 3}, TypeError, "rounding_mode must be a string, got 3"),
        ((1.0, 0, 4), {"signed": "no"}, TypeError, "signed must be a bool, got 'no'"),
        ((1.0, 0, 4), {"out": X}, TypeError, "out must be None"),
    ],
)
def test_functions_check_arguments_while_tracing(
    transform: Any, parameters: Any, attributes: Any, error: Any, pattern: str
) -> None:
    program = transform(lambda x: anybit.jax.int_quant(x, *parameters, **attributes))
    with pytest.raises(error, match=pattern):
        program(X)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("scale", "bits"),
    [("float8_e4m3fn", "int4"), ("float8_e5m2", "uint4"), ("float8_e4m3b11fnuz", "float8_e4m3fn")],
)
def test_functions_accept_narrow_parameter_types(transform: Any, scale: str, bits: str) -> None:
    scales, width = jnp.asarray([0.25, 0.375, 1, 1.5, 3], scale), jnp.asarray(4, bits)
    expected = anybit.int_quant(X, np.float32([0.25, 0.375, 1, 1.5, 3]), 0, 4)

    def closed(x: Any) -> Any:
        return anybit.jax.int_quant(x, scales, 0, width)

    assert_same(transform(closed)(X), expected)
    assert_same(transform(anybit.jax.int_quant)(X, scales, 0, width), expected)
    assert_same(transform(anybit.jax.int_quant)(X, np.asarray(scales), 0, width), expected)
    zero = jnp.asarray(0, bits)
    with pytest.raises(ValueError, match="bitwidth must be an integer >= 1, got 0"):
        transform(lambda x: anybit.jax.int_quant(x, scales, 0, zero))(X)
    with pytest.raises(TypeError, match=f"scale.* must be float32, got dtype {scale}"):
        transform(lambda x: anybit.jax.dynamic_quantize(x, scales[:1], dtype="u8"))(X)


@needs_kernels
def test_functions_check_traced_values_at_run_time() -> None:
    program = jax.jit(lambda bits: anybit.jax.int_quant(X, 1.0, 0, bits))
    with pytest.raises(RuntimeError, match=r"bitwidth must be an integer >= 1, got 2\.5"):
        program(2.5).block_until_ready()


def test_functions_refuse_integers_beyond_32_bits_without_x64() -> None:
    bias = 2**54 - 20
    with jax.enable_x64(False), pytest.raises(ValueError, match=rf"exponent_bias.*x64.*{bias}"):
        anybit.jax.float_quant(X, 1.0, 55, 3, bias)
    with jax.enable_x64(True):
        expected = anybit.float_quant(X, 1.0, 55, 3, bias)
        assert_same(anybit.jax.float_quant(X, 1.0, 55, 3, bias), expected)


@pytest.mark.parametrize("wide", [False, True], ids=["32-bit", "64-bit"])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("int_quant", (0.1, 0.3, 24)),
        ("float_quant", (0.1, 4, 3, 7, 448)),
        ("trunc", (0.1, 1, 24, 0.4, 20)),
        ("trunc_v1", (0.1, 1, 24, 20)),
        ("bipolar_quant", (0.1,)),
    ],
)
def test_reference_program_equals_numpy(name: str, parameters: Any, wide: bool) -> None:
    """Run the reference program on the CPU, without subnormal values."""
    from anybit.jax import _programs
    from anybit.jax._rounded_once import round_once

    operator = getattr(anybit, name).operator
    dtype = np.float64 if wide else np.float32
    with jax.enable_x64(wide):
        x = (np.random.default_rng(0).standard_normal(100_000) * 100).astype(dtype)
        arguments = [value if isinstance(value, int) else dtype(value) for value in parameters]

        @round_once
        def reference(x: Any, *arguments: Any) -> Any:
            return operator.reference(*_programs._hide_repeats(operator, (x, *arguments)))

        result = jax.jit(reference)(x, *map(jnp.asarray, arguments))
    assert_same(result, operator.function(x, *arguments))


def test_rounded_once_divides_and_sums_in_float64() -> None:
    """Include functions inside of the function, derivatives, and 32-bit integers."""
    from anybit.jax._rounded_once import round_once

    def function(x: Any, y: Any) -> Any:
        return {"quotient": jnp.where(x > 0, x / y, jax.jit(jnp.divide)(y, x)), "sum": x.sum()}

    with jax.enable_x64(False):
        program = jax.make_jaxpr(round_once(function))(X, X)
        result = jax.jit(round_once(function))(X, X + 1)
    widened = [
        eqn for eqn in program.eqns if eqn.primitive in (jax.lax.div_p, jax.lax.reduce_sum_p)
    ]
    assert len(widened) == 3
    assert {item.outvars[0].aval.dtype for item in widened} == {np.dtype(np.float64)}
    assert_same(result["quotient"], np.where(X > 0, X / (X + 1), (X + 1) / X))
    assert_same(result["sum"], X.astype(np.float64).sum().astype(np.float32))


def test_anybit_functions_accept_jax_arrays() -> None:
    """Use values that are exact in XLA; there are no warnings about 64 bits."""
    x = jnp.asarray(X)
    for name, parameters in {
        "int_quant": (0.5, 0, 4),
        "float_quant": (1.0, 4, 3, 7),
        "trunc": (0.5, 0, 8, 1.0, 4),
        "trunc_v1": (0.5, 0, 8, 6),
        "bipolar_quant": (0.5,),
        "dynamic_quantize": (np.float32([0.5]), np.int32([3])),
    }.items():
        function = getattr(anybit, name)
        assert_same(function(x, *parameters), function(X, *parameters))
    codes = X.astype(np.int8)
    for parameters in ((np.float32([0.5]),), (np.float32([0.5]), np.int32([2**24 + 5]))):
        expected = anybit.dynamic_dequantize(codes, *parameters)
        assert_same(anybit.dynamic_dequantize(jnp.asarray(codes), *parameters), expected)


@needs_kernels
def test_export_requires_permission_for_custom_calls() -> None:
    from jax import export

    program = jax.jit(lambda x: anybit.jax.int_quant(x, 0.5, 0, 4))
    with pytest.raises(ValueError, match="anybit_int_quant"):
        export.export(program)(X)
    allowed = [export.DisabledSafetyCheck.custom_call("anybit_int_quant")]
    (rows,) = export.symbolic_shape("rows")
    shape = jax.ShapeDtypeStruct((rows, 4, 5), np.float32)
    for platforms in (["cpu"], ["cpu", "cuda"]):
        exported = export.export(program, platforms=platforms, disabled_checks=allowed)(shape)
        loaded = export.deserialize(exported.serialize())
        assert_same(loaded.call(X), anybit.int_quant(X, 0.5, 0, 4))
    # Other platforms run the reference, which is nothing but XLA's own operations.
    assert "@anybit" not in export.export(program, platforms=["cuda"])(X).mlir_module()


def test_shard_map_on_two_devices_equals_numpy() -> None:
    """Use a process of its own, because JAX fixes the number of devices at its start."""
    script = ROOT / "tests" / "programs" / "jax_two_devices.py"
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "error", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
