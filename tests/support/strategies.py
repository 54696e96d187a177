# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies: arrays, and operators whose parameters are given."""

from typing import Any

import numpy as np
from cases import MODES
from hypothesis import settings
from hypothesis import strategies as st

import anybit

settings.register_profile("quick", max_examples=25, deadline=None)
settings.load_profile("quick")

NEAREST = ("ROUND", "HALF_UP", "HALF_DOWN")
SYMMETRIC = (*NEAREST, "UP", "DOWN")

modes = st.sampled_from(MODES)
flags = st.booleans()
widths = st.integers(1, 12)
exact_scales = st.integers(-8, 8).map(lambda exponent: 2.0**exponent)
positive_scales = exact_scales | st.floats(2.0**-10, 2.0**10, width=32)
zero_points = st.integers(-20, 20) | st.floats(-20, 20, width=32)
any_float = st.floats(width=32)
moderate = st.floats(-4096, 4096, width=32) | st.integers(-2000, 2000).map(lambda n: n / 2)


def arrays(elements: st.SearchStrategy[float], most: int = 20) -> st.SearchStrategy[np.ndarray]:
    return st.lists(elements, max_size=most).map(lambda values: np.array(values, np.float32))


def codes(dtype: type[np.integer], lowest: int | None = None) -> st.SearchStrategy[np.ndarray]:
    """Arrays of all integers of a type, from `lowest` on."""
    limits = np.iinfo(dtype)
    elements = st.integers(limits.min if lowest is None else lowest, limits.max)
    return st.lists(elements, max_size=20).map(lambda values: np.array(values, dtype))


def x_arrays(name: str, elements: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    """x for an operator: floats, or any codes for one that reads codes."""
    if name == "dynamic_dequantize":
        return codes(np.int8) | codes(np.uint8)
    return arrays(elements)


class Quantizer:
    """An operator whose parameters are given; its repr is the call, for failing examples."""

    def __init__(self, function: Any, inputs: tuple, attributes: dict[str, Any]):
        self.function, self.inputs, self.attributes = function, inputs, attributes

    def __call__(self, x: Any, **options: Any) -> np.ndarray:
        return self.function(x, *self.inputs, **self.attributes, **options)

    def __repr__(self) -> str:
        return f"{self.function.__name__}(x, *{self.inputs}, **{self.attributes})"


@st.composite
def quantizers(
    draw: st.DrawFn,
    name: str,
    *,
    scales: st.SearchStrategy[float] = positive_scales,
    zeros: st.SearchStrategy[float] = zero_points,
    modes: st.SearchStrategy[str] = modes,
    **fixed: Any,
) -> Quantizer:
    """Draw per-tensor parameters, and return the operator as a function of x and out."""
    scale, zero, mode = draw(scales), draw(zeros), draw(modes)
    limits = {"signed": draw(flags), "narrow": draw(flags)}
    wide, narrow = sorted((draw(widths), draw(widths)), reverse=True)
    attributes: dict[str, Any]
    match name:
        case "int_quant":
            inputs, attributes = (scale, zero, wide), {**limits, "rounding_mode": mode}
        case "float_quant":
            e, m = draw(st.integers(1, 6)), draw(st.integers(0, 6))
            bias = draw(st.integers(-3, 20))
            inputs, attributes = (scale, e, m, bias), {"rounding_mode": mode}
            attributes["signed"] = limits["signed"]
        case "trunc":
            ratio = 2.0 ** draw(st.integers(0, 4))
            inputs = (scale, zero, wide, scale * ratio, narrow)
            attributes = {**limits, "rounding_mode": mode}
        case "trunc_v1":
            inputs, attributes = (scale, zero, wide, narrow), {"rounding_mode": mode}
        case "bipolar_quant":
            inputs, attributes = (scale,), {}
        case "dynamic_quantize":
            zps = np.array([int(zero)], np.int32)
            inputs = (np.array([scale], np.float32), zps)
            attributes = {"dtype": draw(st.sampled_from(["s8", "u8"]))}
        case "dynamic_dequantize":
            zps = np.array([int(zero)], np.int32)
            inputs, attributes = (np.array([scale], np.float32), zps), {}
        case "block_quant":  # of one element, which is elementwise
            form = draw(st.sampled_from(["mxfp8", "mxfp6_e3m2", "mxfp4", "mxint8"]))
            inputs, attributes = (None,), {"format": form, "block_size": 1}
    allowed = {key: value for key, value in fixed.items() if key in attributes}
    return Quantizer(getattr(anybit, name), inputs, {**attributes, **allowed})
