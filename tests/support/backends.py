# SPDX-License-Identifier: Apache-2.0
"""The back-ends that every case table runs on."""

import enum
import os
import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import array_api_strict
import numpy as np
import ort_backend
import pytest
from cases import Case, assert_same_bits, expected_result

import anybit.ops

OPERATORS = {operator.name: operator for operator in anybit.ops.OPERATORS}
STRICT_DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


def strict(x: Any) -> Any:
    """Return x as an array of array_api_strict, which has no half precision and copies all data."""
    x = np.asarray(x)
    if x.dtype.name not in STRICT_DTYPES:
        pytest.skip(f"array_api_strict has no {x.dtype}")
    return array_api_strict.asarray(x.copy())


class Backend(enum.StrEnum):
    """One way to compute an operator."""

    REFERENCE = "reference"
    REFERENCE_STRICT = "reference-strict"
    BASELINE = "native-baseline"
    AVX2 = "native-avx2"
    AVX512 = "native-avx512"
    ORT = "ort"
    ORT_INPUTS = "ort-inputs"
    TORCH = "torch"
    TORCH_COMPILE = "torch-compile"
    TRITON = "triton"
    JAX = "jax"
    JAX_JIT = "jax-jit"

    def apply(self, operator: str, *inputs: Any, **attributes: Any) -> Any:
        """Compute one call."""
        match self:
            case Backend.REFERENCE:
                return OPERATORS[operator].reference(*inputs, **attributes)
            case Backend.REFERENCE_STRICT:
                x, *parameters = inputs
                result = OPERATORS[operator].function(strict(x), *parameters, **attributes)
                return np.asarray(result)
            case Backend.ORT:
                return ort_backend.evaluate(operator, *inputs, **attributes)
            case Backend.ORT_INPUTS:
                return ort_backend.evaluate(operator, *inputs, constant=False, **attributes)
            case Backend.TORCH:
                import torch_backend

                return torch_backend.evaluate(operator, *inputs, **attributes)
            case Backend.TORCH_COMPILE:
                import torch_backend

                return torch_backend.evaluate_compiled(operator, *inputs, **attributes)
            case Backend.TRITON:
                import triton_backend

                return triton_backend.evaluate(operator, *inputs, **attributes)
            case Backend.JAX:
                import jax_backend

                return jax_backend.evaluate(operator, *inputs, **attributes)
            case Backend.JAX_JIT:
                import jax_backend

                return jax_backend.evaluate_jitted(operator, *inputs, **attributes)
            case _:
                return OPERATORS[operator].function(*inputs, **attributes)

    def apply_all(self, operator: str, calls: Sequence[Case]) -> list[Any]:
        """Compute many calls in one program: tracing and compiling cost more than the calls."""
        if self is Backend.TORCH_COMPILE:
            import torch_backend

            return torch_backend.evaluate_all_compiled(operator, calls)
        import jax_backend

        return jax_backend.evaluate_all_jitted(operator, calls)


# Packages of back-ends. Rows of missing ones are not collected: thousands of skipped rows would
# hide others.
PACKAGES = {
    Backend.TORCH: "torch",
    Backend.TORCH_COMPILE: "torch",
    Backend.TRITON: "triton",
    Backend.JAX: "jax",
    Backend.JAX_JIT: "jax",
}
# Back-ends that compile for half a second per call: their rows share programs.
COMPILED = {Backend.TORCH_COMPILE, Backend.JAX_JIT}
SLOW = {Backend.TORCH_COMPILE}


def installed_backends() -> list[Backend]:
    """Return the installed back-ends among those that ANYBIT_BACKENDS names (default: all)."""
    names = os.environ.get("ANYBIT_BACKENDS", " ".join(Backend)).split()
    return [Backend(name) for name in names if name not in PACKAGES or find_spec(PACKAGES[name])]


def supports(backend: Backend, operator: str) -> bool:
    """Return whether a back-end has the operator: Triton has kernels of elementwise ones only."""
    return backend is not Backend.TRITON or OPERATORS[operator].block_axis is None


def marks(backend: Backend) -> list[pytest.MarkDecorator]:
    """Return the marks of tests on a back-end."""
    return [pytest.mark.slow] if backend in SLOW else []


def row_fault(backend: Backend, operator: str, case: Case) -> str | None:
    """Return what is wrong with a back-end's result or error, None if it is right."""
    try:
        actual = backend.apply(operator, *case.inputs, **case.attributes)
    except Exception as error:
        if case.raises is None or not isinstance(error, case.raises[0]):
            return f"{type(error).__name__}: {error}"
        return None if re.search(case.raises[1], str(error)) else f"wrong message: {error}"
    if case.raises is not None:
        return f"returned {actual!r} instead of raising {case.raises[0].__name__}"
    try:
        assert_same_bits(actual, expected_result(operator, case), case)
    except AssertionError as error:
        return str(error)
    return None


def row_faults(backend: Backend, operator: str, cases: Iterable[Case]) -> list[str]:
    """Return the faults of all rows that a back-end supports, which must not be none."""
    faults, supported = [], 0
    for case in cases:
        try:
            fault = row_fault(backend, operator, case)
        except pytest.skip.Exception:
            continue
        supported += 1
        if fault is not None:
            faults.append(f"{case.name}: {fault}")
    assert supported, f"{backend} supports no row of {operator}"
    return faults
