# SPDX-License-Identifier: Apache-2.0
"""Properties of a cleaned model that tests compare."""

from typing import Any

import numpy as np
import onnx_ir as ir

import anybit
from anybit.onnx import Source


def clean(source: Source, **options: Any) -> ir.Model:
    """Return the result of `anybit.clean`."""
    return anybit.clean(source, **options).model


def shapes(cleaned: ir.Model) -> list[str]:
    return [str(value.shape) for value in (*cleaned.graph.inputs, *cleaned.graph.outputs)]


def assert_array_bits(got: np.ndarray, expected: np.ndarray) -> None:
    assert (got.shape, got.tobytes()) == (expected.shape, expected.tobytes())
