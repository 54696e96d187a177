# SPDX-License-Identifier: Apache-2.0
"""Operators on JAX's arrays: the back-ends `jax` and `jax-jit`."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from cases import Case

import anybit.jax

ERROR = getattr(jax.errors, "JaxRuntimeError", RuntimeError)


def evaluate(operator: str, *inputs: Any, **attributes: Any) -> np.ndarray:
    """Compute one call with JAX's default of 32 bits and concrete parameters."""
    if np.asarray(inputs[0]).dtype == np.float64:
        pytest.skip("JAX makes float32 of float64 unless 64 bits are switched on")
    with jax.enable_x64(False):
        return np.asarray(getattr(anybit.jax, operator)(*inputs, **attributes))


def evaluate_jitted(operator: str, *inputs: Any, **attributes: Any) -> np.ndarray:
    """Compute one call with 64 bits in a jitted program with traced inputs.

    Faults of their values are found when it runs, and are errors of JAX's then; on CPUs only.
    """
    function = getattr(anybit.jax, operator)
    with jax.enable_x64(True):
        program = jax.jit(lambda *arrays: function(*arrays, **attributes))
        try:
            result = np.asarray(program(*map(as_argument, inputs)))
            if jax.default_backend() != "cpu":
                pytest.skip("faults of values that are not known are found on CPUs only")
            return result
        except ERROR as error:
            fault = re.fullmatch(r"INVALID_ARGUMENT: (.*)", str(error), re.DOTALL)
            if fault is None:
                raise
            raise ValueError(fault[1]) from error


def evaluate_all_jitted(operator: str, calls: Sequence[Case]) -> list[np.ndarray]:
    """Compute calls in one jitted program with 64 bits and traced inputs."""
    function = getattr(anybit.jax, operator)
    with jax.enable_x64(True):
        inputs = [tuple(map(as_argument, case.inputs)) for case in calls]

        def run(rows: list[Any]) -> list[Any]:
            pairs = zip(rows, calls, strict=True)
            return [function(*arrays, **case.attributes) for arrays, case in pairs]

        return [np.asarray(result) for result in jax.jit(run)(inputs)]


def as_argument(value: Any) -> Any:
    """Convert lists to arrays: JAX reads lists as trees of numbers."""
    return np.asarray(value) if isinstance(value, list | tuple) else value
