# SPDX-License-Identifier: Apache-2.0
"""The back-ends that every case table runs on."""

import enum
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import array_api_strict
import numpy as np
import ort_backend
import pytest
from cases import Case

import anybit.ops

OPERATORS = {operator.name: operator for operator in anybit.ops.OPERATORS}
STRICT_DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


def strict(x: Any) -> Any:
    """x as an array of array_api_strict, which has no half precision and copies everything."""
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
        """Many calls in one compiled program: tracing and compiling cost more than the calls."""
        if self is Backend.TORCH_COMPILE:
            import torch_backend

            return torch_backend.evaluate_all_compiled(operator, calls)
        import jax_backend

        return jax_backend.evaluate_all_jitted(operator, calls)


# What a back-end needs beside the packages of the tests. Where it is missing nothing is skipped:
# thousands of skipped rows would hide others.
PACKAGES = {
    Backend.TORCH: "torch",
    Backend.TORCH_COMPILE: "torch",
    Backend.TRITON: "triton",
    Backend.JAX: "jax",
    Backend.JAX_JIT: "jax",
}
# Their compilers take a good part of a second for each row, so that rows share programs.
COMPILED = {Backend.TORCH_COMPILE, Backend.JAX_JIT}
SLOW = {Backend.TORCH_COMPILE}


def installed_backends() -> list[Backend]:
    """Those that ANYBIT_BACKENDS names, or all: rows of others are not even collected."""
    asked = os.environ.get("ANYBIT_BACKENDS", " ".join(Backend)).split()
    return [Backend(each) for each in asked if each not in PACKAGES or find_spec(PACKAGES[each])]


def marks(backend: Backend) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if backend in SLOW else []
