# SPDX-License-Identifier: Apache-2.0
"""Trunc of operator-set version 2: to fewer bits at a coarser output scale."""

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
    telling_values,
)

OPERATOR = "trunc"
WIDTHS = (1, 2, 3, 4, 8, 24, 25, 26, 31, 32, 64, 127, 128, 129, 200, 1025, 5000)
RATIOS = (1, 2, 4, 0.5, 3, 2.5, 1.4142135, 1.4142137, 0.70710677, 0.7071068, 1e-3, 2.0**20, 2.0**80)
ODD_RATIOS = (0.0, -0.0, -2, nan, inf, -inf, 3e38, 2.5e38, 2.0**127, 1e-40, 2.0**-149, 5e-324)

# x / 2 meets 5.5, 2.5, 1.0 and their negatives: the document's table.
HALVES = f32([11, 5, 2, -2, -5, -11])
ROUNDED = {
    "ROUND": [6, 2, 1, -1, -2, -6],
    "CEIL": [6, 3, 1, -1, -2, -5],
    "FLOOR": [5, 2, 1, -1, -3, -6],
    "UP": [6, 3, 1, -1, -3, -6],
    "DOWN": [5, 2, 1, -1, -2, -5],
    "HALF_UP": [6, 3, 1, -1, -3, -6],
    "HALF_DOWN": [5, 2, 1, -1, -2, -5],
}


def meaning() -> Iterator[Case]:
    for mode, rounded in {**ROUNDED, "HALF_EVEN": ROUNDED["ROUND"]}.items():
        expected = f32(rounded) * 2
        for name in (mode, mode.lower()):
            inputs = (HALVES, 1.0, 0.0, 8, 2.0, 7)
            yield checked(f"halves_{name}", inputs, expected, rounding_mode=name)
    yield checked("default_mode_is_floor", (f32([-5]), 1.0, 0.0, 8, 2.0, 7), [-6])
    # The value survives: dropping two bits makes the scale four times as large.
    x = f32([100, 103, -101])
    yield checked("value_survives", (x, 1.0, 0.0, 10, 4.0, 8), [100, 100, -104])
    yield checked("in_bitwidth_is_idle", (x, 1.0, 0.0, 1, 4.0, 8), [100, 100, -104])
    # Rounding first: 3.9999998 is the integer 4 with some float noise, not 0 * 4.
    x = f32([3.9999998, 7.9999995])
    yield checked("float_noise_is_cleaned_first", (x, 1.0, 0.0, 8, 4.0, 8), [4, 8])
    x = f32([1000, -1000])
    yield checked("clamps", (x, 1.0, 0.0, 16, 4.0, 4), [28, -32])
    yield checked("clamps_narrow", (x, 1.0, 0.0, 16, 4.0, 4), [28, -28], narrow=True)
    yield checked("clamps_unsigned", (x, 1.0, 0.0, 16, 4.0, 4), [60, 0], signed=False)
    unsigned_narrow = {"signed": False, "narrow": True}
    yield checked("clamps_unsigned_narrow", (x, 1.0, 0.0, 16, 4.0, 4), [56, 0], **unsigned_narrow)
    # (8 + 1) / 4 -> 2; the zero-point becomes 1 / 4.
    yield checked("zero_point_is_rescaled", (f32([8]), 1.0, 1.0, 8, 4.0, 6), [7.0])
    yield checked("scale_of_a_half", (f32([3.7]), 0.5, 0.0, 8, 1.0, 6), [3.0])


def nearest_power_of_two() -> Iterator[Case]:
    x = f32([103])
    yield checked("ratio_3_divides_by_4", (x, 1.0, 0.0, 8, 3.0, 8), [75])
    yield checked("ratio_2.5_divides_by_2", (x, 1.0, 0.0, 8, 2.5, 8), [127.5])
    x = f32([5])
    for ratio, units in ((1.4142135, 5), (1.4142137, 2), (0.70710677, 10), (0.7071068, 5)):
        # The neighbours of the square root of two, and of its half.
        inputs = (x, 1.0, 0.0, 8, ratio, 8)
        yield checked(f"ratio_{ratio}", inputs, f32([units]) * f32(ratio))
    x = np.array([5.0])
    for ratio, units in ((1.414213562373095, 5), (1.4142135623730951, 2)):
        inputs = (x, 1.0, 0.0, 8, ratio, 8)
        yield checked(f"ratio_{ratio}_float64", inputs, np.array([units * ratio]))
    # 2**128 is infinite in float32.
    x = f32([5, -5, inf])
    yield checked("step_overflows", (x, 1.0, 0.0, 8, 3e38, 8), [0.0, -0.0, nan])
    tiny = 2.0**-149
    yield checked("step_is_subnormal", (x, 1.0, 0.0, 8, tiny, 4), [7 * tiny, -8 * tiny, 7 * tiny])


def special_values() -> Iterator[Case]:
    x = f32([-0.0, -0.3, 0.3, -5])
    yield checked("zero_signs", (x, 1.0, 0.0, 8, 4.0, 8), [0.0, -0.0, 0.0, -8])
    yield checked(
        "zero_signs_unsigned", (x, 1.0, 0.0, 8, 4.0, 8), [0.0, -0.0, 0.0, 0.0], signed=False
    )
    x = f32([-1.0])
    yield checked("ceiling_of_minus_half", (x, 1, 0, 8, 2, 8), [-0.0], rounding_mode="CEIL")
    yield checked("nan_and_infinities", (f32([nan, inf, -inf]), 1, 0, 8, 4, 4), [nan, 28, -32])
    x = f32([0.0, 100.0])
    bad_scales = {"zero": (0, 4), "inf": (inf, 4), "nan": (nan, 4), "negative": (-1, 4)}
    bad_out_scales = {"zero": (1, 0), "inf": (1, inf), "nan": (1, nan), "negative": (1, -4)}
    for name, (scale, out_scale) in bad_scales.items():
        yield checked(f"scale_{name}", (x, scale, 0, 8, out_scale, 8), [nan, nan])
    for name, (scale, out_scale) in bad_out_scales.items():
        yield checked(f"out_scale_{name}", (x, scale, 0, 8, out_scale, 8), [nan, nan])
    yield checked("both_scales_zero", (x, 0.0, 0, 8, 0.0, 8), [nan, nan])
    yield checked("both_scales_negative", (x, -1.0, 0, 8, -4.0, 8), [-0.0, 100.0])
    yield checked("ratio_underflows", (x, 1e30, 0, 8, 1e-30, 8), [nan, nan])
    yield checked("ratio_overflows", (x, 1e-30, 0, 8, 1e30, 8), [nan, nan])


def types() -> Iterator[Case]:
    x = f32([[100, -100], [100, -100]])
    widths = np.array([[4], [6]], np.int8)
    yield checked("out_widths_per_channel", (x, 1, 0, 8, 4, widths), [[28, -32], [100, -100]])
    yield checked("out_scales_per_channel", (x, 1, 0, 8, f32([4, 16]), 8), [[100, -112]] * 2)
    large = np.array([1e9])
    unsigned = {"signed": False}
    yield checked("25_bits_float64", (large, 1, 0, 32, 1, 25), [33554431], **unsigned)
    yield checked("25_bits_float32", (f32(large), 1, 0, 32, 1, 25), [33554432], **unsigned)
    yield checked("python_floats", (f32([0.35]), 0.1, 0.0, 8, 0.1, 8), [0.4])
    # 1.2 in bfloat16; the grid of 0.3 is met in float32.
    x = np.array([1.0, -2.0], bfloat16)
    yield checked("bfloat16", (x, 0.3, 0.0, 8, 0.6, 8), [0.6015625, -2.40625])
    # 65504 / 65536 rounds to one unit of 70000, which only float16 cannot hold.
    x = np.array([65504.0, 1.0], np.float16)
    inputs = (x, 1.0, 0.0, 16, 7e4, 8)
    yield checked("float16_overflows_last", inputs, [inf, 0.0], rounding_mode="ROUND")


def sweeps() -> Iterator[Case]:
    every_width, every_ratio = in_column(WIDTHS, np.float32), in_column(RATIOS)
    for mode, signed, narrow in product(MODES, (True, False), (False, True)):
        kind = f"{mode}_signed_{signed:d}_narrow_{narrow:d}"
        attributes = {"rounding_mode": mode, "signed": signed, "narrow": narrow}
        x = in_rows(np.float32, len(RATIOS))
        yield computed(f"all_ratios_{kind}", x, 1.0, 0.0, 8, every_ratio, 8, **attributes)
        x = in_rows(np.float32, len(WIDTHS))
        yield computed(f"all_widths_{kind}", x, 0.1, 3.0, 8, 0.4, every_width, **attributes)
    for width, signed, narrow in product(WIDTHS, (True, False), (False, True)):
        name = f"width_{width}_signed_{signed:d}_narrow_{narrow:d}"
        inputs = (telling_values(np.float32), 0.25, 1.0, width, 0.5, width)
        yield computed(name, *inputs, signed=signed, narrow=narrow)
    zero_points = in_column((0.0, -0.0, 1, 3, -5, 128, 0.5, 1e10, nan, inf, -inf), np.float32)
    for mode, dtype in product(MODES, FLOAT_DTYPES):
        x = in_rows(dtype, len(zero_points))
        name = f"all_zero_points_{mode}_{dtype}"
        yield computed(name, x, 0.3, zero_points, 8, 1.2, 8, rounding_mode=mode)
    for dtype, scale in product(FLOAT_DTYPES, (1.0, 0.7, -0.5, 0.0, 1e-38)):
        x = in_rows(dtype, len(ODD_RATIOS))
        name = f"odd_ratios_{dtype}_scale_{scale}"
        yield computed(name, x, scale, 1.0, 8, in_column(ODD_RATIOS), 8)
    random = np.random.default_rng(4).standard_normal((3, 500))
    out_scales = f32(np.exp(4 * random[1]))
    yield computed("random_ratios", f32(100 * random[0]), 1.0, 0.0, 8, out_scales, 8)
    close = f32(1.4142135 + np.arange(-40, 40) * 2.0**-23)
    yield computed("ratios_near_root_two", f32(np.full(80, 37)), 1.0, 0.0, 8, close, 8)


def shapes() -> Iterator[Case]:
    shape = (2, 3, 4)
    x = telling_values(np.float32)[20:44].reshape(shape) * np.float32(20)
    every = np.arange(24).reshape(shape)
    full = {
        "scale": f32(every + 1) / 8,
        "zeropt": f32(every % 5) - 1.5,
        "in_bitwidth": every % 9 + 1,
        "out_scale": f32(every % 6 + 1),
        "out_bitwidth": every % 8 + 1,
    }
    plain = {"scale": 0.3, "zeropt": 1, "in_bitwidth": 8, "out_scale": 1.2, "out_bitwidth": 5}
    for name, small in shapes_within(shape).items():
        cut = tuple(slice(0, length) for length in (1,) * (3 - len(small)) + small)
        parts = {parameter: array[cut].reshape(small) for parameter, array in full.items()}
        for parameter, part in parts.items():
            yield computed(f"{parameter}_{name}", x, *{**plain, parameter: part}.values())
        yield computed(f"all_{name}", x, *parts.values(), rounding_mode="ROUND")
        mixed = {**full, "scale": parts["scale"], "out_bitwidth": np.int8(parts["out_bitwidth"])}
        yield computed(f"mixed_{name}", x, *mixed.values(), signed=False)
    yield computed("strided_parameters", x, *(array[::-1, :, ::-1] for array in full.values()))


VALID = (f32([1.0, 2.0]), 1.0, 0.0, 8, 4.0, 6)
CASES: tuple[Case, ...] = (
    *meaning(),
    *nearest_power_of_two(),
    *special_values(),
    *types(),
    *sweeps(),
    *shapes(),
    *across_layouts(0.1, 1.0, 8, 0.4, 5),
    *refused_by_all(VALID, ("scale", "zeropt", "in_bitwidth", "out_scale", "out_bitwidth")),
    *refused_widths(VALID, 3, "in_bitwidth"),
    *refused_widths(VALID, 5, "out_bitwidth"),
    *refused_modes(VALID),
)
