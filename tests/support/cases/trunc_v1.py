# SPDX-License-Identifier: Apache-2.0
"""Trunc of operator-set version 1: the scale stays, so the value shrinks; nothing clamps."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from . import (
    FLOAT_DTYPES,
    MODES,
    Case,
    across_layouts,
    bfloat16,
    checked,
    computed,
    f32,
    in_column,
    in_rows,
    inf,
    nan,
    refused_by_all,
    refused_modes,
    refused_widths,
    shapes_within,
)
from .trunc import HALVES, ROUNDED

OPERATOR = "trunc_v1"
WIDTHS = (1, 2, 3, 4, 8, 24, 25, 31, 32, 64, 127)
SCALES = (1, 0.25, 0.1, 3, 0.0, -0.0, -0.7, nan, inf, -inf, 1e-40, 1e-30, 1e30, 3e38)


def meaning() -> Iterator[Case]:
    for mode, expected in {**ROUNDED, "HALF_EVEN": ROUNDED["ROUND"]}.items():
        for name in (mode, mode.lower()):
            inputs = (HALVES, 1.0, 0.0, 8, 7)
            yield checked(f"halves_{name}", inputs, expected, rounding_mode=name)
    yield checked("default_mode_is_floor", (f32([-5]), 1.0, 0.0, 8, 7), [-3])
    yield checked("value_shrinks", (f32([100, 103, -101]), 1.0, 0.0, 10, 8), [25, 25, -26])
    # (8 + 1) / 4 -> 2; the zero-point is subtracted as it came in.
    yield checked("zero_point_is_not_rescaled", (f32([8]), 1.0, 1.0, 4, 2), [1])
    yield checked("nothing_clamps", (f32([1000, -1000]), 1.0, 0.0, 8, 4), [62, -63])
    yield checked("more_bits_out_than_in", (f32([3]), 1.0, 0.0, 4, 6), [12])
    x = f32([3.9999998, 7.9999995])
    yield checked("float_noise_is_cleaned_first", (x, 1.0, 0.0, 8, 6), [1, 2])
    yield checked("python_floats", (f32([0.35]), 0.1, 0.0, 8, 8), [0.4])
    x = f32([[100, -100], [100, -100]])
    yield checked(
        "in_widths_per_channel", (x, 1, 0, np.int8([[8], [9]]), 8), [[100, -100], [50, -50]]
    )
    yield checked(
        "out_widths_per_element", (x, 1, 0, 9, f32([[8, 7], [6, 5]])), [[50, -25], [12, -7]]
    )


def special_values() -> Iterator[Case]:
    x = f32([-0.0, -0.3, 0.3])
    yield checked("zero_signs", (x, 1.0, 0.0, 8, 6), [0.0, -0.0, 0.0])
    x = f32([-1.0])
    yield checked("ceiling_of_minus_half", (x, 1, 0, 8, 7), [-0.0], rounding_mode="CEIL")
    x = f32([nan, inf, -inf])
    yield checked("nan_and_infinities", (x, 1, 0, 8, 6), [nan, inf, -inf])
    x = f32([0.0, 1.0, -1.0])
    yield checked("scale_zero", (x, 0.0, 0, 8, 6), [nan, nan, nan])
    yield checked("scale_inf", (x, inf, 0, 8, 6), [nan, nan, nan])
    yield checked("scale_negative", (f32([8.0]), -1.0, 0, 8, 6), [2.0])
    # 2**200 is infinite in float32, 2**-200 is zero.
    x = f32([5.0, -5.0, inf])
    yield checked("divisor_overflows", (x, 1.0, 0, 201, 1), [0.0, -0.0, nan])
    x = f32([0.0, 1.0, -1.0])
    yield checked("divisor_underflows", (x, 1.0, 0, 1, 201), [nan, inf, -inf])
    x = np.array([5.0, 2.0**100])
    yield checked("divisor_fits_float64", (x, 1.0, 0, 201, 1), [1, 1], rounding_mode="CEIL")
    x = np.array([1.0, -2.0], bfloat16)
    # 3 and -7 units of 0.3 lose one bit: 1 and -4 units; float32 until the end.
    yield checked("bfloat16", (x, 0.3, 0.0, 8, 7), [0.30078125, -1.203125])


def sweeps() -> Iterator[Case]:
    out_widths = in_column(WIDTHS, np.float32)
    for mode, in_width in product(MODES, (1, 8, 24, 33, 127)):
        x = in_rows(np.float32, len(WIDTHS))
        name = f"all_out_widths_{mode}_from_{in_width}"
        yield computed(name, x, 0.1, 1.0, in_width, out_widths, rounding_mode=mode)
    zero_points = in_column((0.0, -0.0, 1, 3, -5, 128, 0.5, 1e10, nan, inf, -inf), np.float32)
    for mode, dtype in product(MODES, FLOAT_DTYPES):
        x = in_rows(dtype, len(SCALES))
        name = f"all_scales_{mode}_{dtype}"
        yield computed(name, x, in_column(SCALES), 0, 8, 6, rounding_mode=mode)
        x = in_rows(dtype, len(zero_points))
        name = f"all_zero_points_{mode}_{dtype}"
        yield computed(name, x, 0.3, zero_points, 8, 6, rounding_mode=mode)
    for dtype in FLOAT_DTYPES:
        for width_type in ("int8", "int32", "int64", "uint8", "float32", "float64"):
            x = in_rows(dtype, len(WIDTHS))
            name = f"widths_{width_type}_{dtype}"
            widths = out_widths.astype(width_type)
            yield computed(name, x, 0.5, 0, np.array(8, width_type), widths)


def shapes() -> Iterator[Case]:
    shape = (2, 3, 4)
    every = np.arange(24).reshape(shape)
    x = f32(every * 7.3 - 60)
    full = {
        "scale": f32(every + 1) / 8,
        "zeropt": f32(every % 5) - 1.5,
        "in_bitwidth": every % 9 + 1,
        "out_bitwidth": every % 8 + 1,
    }
    plain = {"scale": 0.3, "zeropt": 1, "in_bitwidth": 8, "out_bitwidth": 5}
    for name, small in shapes_within(shape).items():
        cut = tuple(slice(0, length) for length in (1,) * (3 - len(small)) + small)
        parts = {parameter: array[cut].reshape(small) for parameter, array in full.items()}
        for parameter, part in parts.items():
            yield computed(f"{parameter}_{name}", x, *{**plain, parameter: part}.values())
        yield computed(f"all_{name}", x, *parts.values(), rounding_mode="ROUND")
    yield computed("strided_parameters", x, *(array[::-1, :, ::-1] for array in full.values()))


VALID = (f32([1.0, 2.0]), 1.0, 0.0, 8, 6)
CASES: tuple[Case, ...] = (
    *meaning(),
    *special_values(),
    *sweeps(),
    *shapes(),
    *across_layouts(0.1, 1.0, 8, 6),
    *refused_by_all(VALID, ("scale", "zeropt", "in_bitwidth", "out_bitwidth")),
    *refused_widths(VALID, 3, "in_bitwidth"),
    *refused_widths(VALID, 4, "out_bitwidth"),
    *refused_modes(VALID),
)
