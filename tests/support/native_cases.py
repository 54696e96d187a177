# SPDX-License-Identifier: Apache-2.0
"""Further cases for conversions: quantizers that native types of ONNX hold, every type of them.

The case tables ask for the meaning of the operators, mostly where native types end. These ask
every width of integers that has a type, and every float8 type, at ties, limits and beyond.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
from cases import Case, bfloat16, computed, f32, nan, telling_values
from qdq_models import telling

from anybit import formats
from anybit.formats import FloatFormat

Call = tuple[str, Case]
FLOAT8 = {
    "e4m3fn": formats.float8_e4m3fn,
    "e5m2": formats.float8_e5m2,
    "e4m3fnuz": FloatFormat(4, 3, 8),
    "e5m2fnuz": FloatFormat(5, 2, 16),
}
CHANNELS = f32([[0.25], [0.1], [3]])


@cache
def native_cases() -> tuple[Call, ...]:
    return (*integers(), *zero_points(), *floats(), *signs())


def integers() -> Iterator[Call]:
    for width, signed, narrow in product(range(1, 17), (True, False), (False, True)):
        name = f"native_{width}_signed_{signed:d}_narrow_{narrow:d}"
        limits = {"signed": signed, "narrow": narrow}
        for scale in (0.25, 0.1):
            x = np.append(telling(scale), f32(nan))
            yield "int_quant", computed(f"{name}_scale_{scale}", x, scale, 0.0, width, **limits)
        x = np.stack([telling(scale) for scale in CHANNELS.ravel()])
        yield "int_quant", computed(f"{name}_rows", x, CHANNELS, 0, width, **limits)
        yield "int_quant", computed(f"{name}_columns", x.T, CHANNELS.ravel(), 0, width, **limits)
    for width, dtype in product((2, 3, 4, 7, 8, 16), (np.float16, bfloat16)):
        x = telling_values(dtype)
        yield "int_quant", computed(f"native_{width}_{np.dtype(dtype)}", x, 0.1, 0.0, width)


def zero_points() -> Iterator[Call]:
    """Native where x is a constant; the codes of other roundings are known there, too."""
    x = np.clip(telling(0.1), -20, 20)
    for width, zeropt in product((2, 3, 4, 6, 8, 12), (1.0, 3.0)):
        name = f"native_{width}_zero_point_{zeropt:g}"
        yield "int_quant", computed(name, x, 0.1, zeropt, width, signed=False)
        yield "int_quant", computed(f"{name}_up", x, 0.1, zeropt, width, rounding_mode="UP")
    yield "int_quant", computed("native_bias", x, 2.0**-12, 0.0, 24)


def floats() -> Iterator[Call]:
    for name, format_ in FLOAT8.items():
        for scale in (1.0, 0.1):
            x = np.append(telling(scale), f32(nan))
            yield "float_quant", computed(f"native_{name}_scale_{scale}", x, scale, *format_)
        x = np.stack([telling(scale) for scale in CHANNELS.ravel()])
        yield "float_quant", computed(f"native_{name}_rows", x, CHANNELS, *format_)
        for dtype in (np.float16, bfloat16):
            x = telling_values(dtype)
            yield "float_quant", computed(f"native_{name}_{np.dtype(dtype)}", x, 0.1, *format_)


def signs() -> Iterator[Call]:
    x = np.append(telling(1.0), f32(nan))
    yield "bipolar_quant", computed("native_signs", x, 0.3)
    yield "bipolar_quant", computed("native_signs_rows", np.stack([x, -x, x]), CHANNELS)
