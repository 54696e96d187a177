# SPDX-License-Identifier: Apache-2.0
"""FloatQuant: round to a minifloat grid of any exponent, mantissa and bias."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from . import (
    FLOAT_DTYPES,
    MODES,
    Case,
    across_layouts,
    bfloat16,
    cast,
    checked,
    computed,
    f32,
    in_column,
    in_rows,
    inf,
    nan,
    refused,
    refused_by_all,
    refused_modes,
    refused_widths,
    shapes_within,
    telling_values,
    with_input,
)

OPERATOR = "float_quant"
E4M3 = (4, 3, 7)
E2M1 = (2, 1, 1)
# exponent_bitwidth, mantissa_bitwidth, exponent_bias, max_val
FORMATS = {
    "e4m3fn": (*E4M3, 448.0),
    "e4m3_closed_form": (*E4M3, None),
    "e5m2": (5, 2, 15, 57344.0),
    "e3m2": (3, 2, 3, None),
    "e2m3": (2, 3, 1, None),
    "e2m1": (*E2M1, None),
    "e1m0": (1, 0, 0, None),
    "e5m0": (5, 0, 15, None),
    "e8m0": (8, 0, 127, None),
    "e8m24_bias_140": (8, 24, 140, None),
    "e8m23": (8, 23, 127, None),
    "e8m7": (8, 7, 127, None),
    "e5m10": (5, 10, 15, 65504.0),
    "e11m52": (11, 52, 1023, None),
    "e4m4_bias_0": (4, 4, 0, None),
    "e4m3_bias_minus_3": (4, 3, -3, inf),
    "e4m3_bias_minus_120": (4, 3, -120, None),
    "e4m3_bias_150": (4, 3, 150, None),
    "e8m1_bias_150": (8, 1, 150, None),
    "e4m3_bias_2000": (4, 3, 2000, None),
    "e4m3_bias_minus_2000": (4, 3, -2000, None),
    "e40m60": (40, 60, 2**39, None),
    "e4m3_max_100": (*E4M3, 100.0),
    "e4m3_max_0": (*E4M3, 0.0),
}


def grid() -> Iterator[Case]:
    # Spacing 2**(1 - 0 - 4): 0.3125 is 2.5 steps.
    yield checked("e4m4_bias_0_tie", (f32([0.3125]), 1, 4, 4, 0), [0.25])
    x = f32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0])
    expected = f32([0, 1, 1, 2, 2, 4, 4, 6])
    yield checked("e2m1_ties", (x, 1, *E2M1), expected)
    yield checked("e2m1_ties_negative", (-x, 1, *E2M1), -expected)
    yield checked("e2m1_scaled", (f32([3.0, -9.0]), 0.7, *E2M1), [2.8, f32(-6) * f32(0.7)])
    x = f32([0.9, 1.0, 1.5, 3.0, -1.0])
    yield checked("no_mantissa_bit", (x, 1, 1, 0, 0), [0.0, 0.0, 2.0, 2.0, -0.0])
    # floor(log2) in float32 takes these for 32 and 1: one binade too coarse.
    x = f32([31.999996, -31.999996, 0.99999994])
    below = {
        "ROUND": [32, -32, 1],
        "FLOOR": [30, -32, 0.9375],
        "CEIL": [32, -30, 1],
        "DOWN": [30, -30, 0.9375],
        "UP": [32, -32, 1],
        "HALF_UP": [32, -32, 1],
        "HALF_DOWN": [32, -32, 1],
    }
    for mode, expected in below.items():
        yield checked(f"below_power_of_two_{mode}", (x, 1, *E4M3), expected, rounding_mode=mode)
    x = f32([2.0**-10, 3 * 2.0**-10, -(2.0**-10), 2.0**-7])
    yield checked("e4m3_subnormals", (x, 1, *E4M3), [0.0, 2.0**-8, -0.0, 2.0**-7])
    # has_subnormal=0 only informs back-ends.
    yield checked(
        "no_effect_has_subnormal", (x, 1, *E4M3), [0, 2**-8, -0.0, 2**-7], has_subnormal=False
    )


def maximum() -> Iterator[Case]:
    x = f32([1000.0, -1000.0, 470.0])
    yield checked("closed_form_reserves_nothing", (x, 1, *E4M3), [480, -480, 480])
    yield checked("max_val_reserves", (x, 1, *E4M3, 448.0), [448, -448, 448])
    yield checked("max_val_above_the_closed_form", (x, 1, *E4M3, 500.0), [480, -480, 480])
    yield checked("max_val_infinite", (x, 1, *E4M3, inf), [480, -480, 480])
    yield checked("unsigned", (f32([-5, 5, 1e9]), 1, *E4M3), [0.0, 5.0, 480.0], signed=False)
    # 103 rounds to 104 and is clipped after that; 100 is off the grid.
    x = f32([99, 103, -1000])
    yield checked("max_val_off_the_grid", (x, 1, *E4M3, 100.0), [96, 100, -100])
    x = f32([1.0, -1.0, 0.0, -0.0, nan])
    yield checked("max_val_zero", (x, 1, *E4M3, 0.0), [0.0, -0.0, 0.0, -0.0, nan])
    # A bias of 0 is not "the default bias".
    yield checked("bias_0_is_a_bias", (f32([1e6]), 1, 4, 3, 0), [61440.0])
    for name in ("has_infinity", "has_nan"):
        x = f32([1000.0, -1000.0])
        attributes = {name: True, "saturation": False}
        yield checked(f"no_effect_{name}", (x, 1, *E4M3), [480, -480], **attributes)
    yield checked("no_effect_saturation", (x, 1, *E4M3), [480, -480], saturation=False)
    top = float(np.finfo(np.float32).max)
    yield checked("infinite_maximum", (f32([top, -top]), 1, 8, 3, 127), [inf, -inf])
    yield checked(
        "finite_maximum", (f32([top]), 1, 8, 3, 127, 1.875 * 2.0**127), [1.875 * 2.0**127]
    )
    # The step before `* scale` is itself a float32: it overflows although the product would fit.
    x = f32([0.9999 * 2.0**127])
    yield checked("overflows_before_scale", (x, 0.5, 8, 3, 127), [inf])
    # float32 does not represent 2 - 2**-24: the maximum rounds to 2 * 2**115.
    x = f32([1e38, -1e38, 1.0000001, 2.0**-149, -0.1])
    yield checked("e8m24_bias_140", (x, 1, 8, 24, 140), [2.0**116, -(2.0**116), *x[2:]])
    # 2**(15 - 300) underflows: nothing but zero is left.
    yield checked("maximum_underflows", (f32([1.0, -1.0]), 1, 4, 0, 300), [0.0, -0.0])


def special_values() -> Iterator[Case]:
    x = f32([nan, inf, -inf])
    yield checked("nan_and_infinities", (x, 1, *E4M3), [nan, nan, nan])
    yield checked("infinities_unsigned", (x, 1, *E4M3, 448.0), [nan, nan, nan], signed=False)
    yield checked("quotient_overflows", (f32([3e38]), 0.5, *E4M3), [nan])
    x = f32([-0.0, 0.0, -1e-6, 1e-6])
    for signed in (True, False):
        name = f"zero_signs_signed_{signed:d}"
        yield checked(name, (x, 1, *E4M3), [-0.0, 0.0, -0.0, 0.0], signed=signed)
    x = f32([0.0, 1.0, -1.0])
    yield checked("scale_zero", (x, 0.0, *E4M3), [nan, nan, nan])
    yield checked("scale_inf", (x, inf, *E4M3), [nan, nan, nan])
    yield checked("scale_nan", (x, nan, *E4M3), [nan, nan, nan])
    yield checked("scale_negative", (x, -1.0, *E4M3), [0.0, 1.0, -1.0])
    yield checked("scale_negative_unsigned", (x, -1.0, *E4M3), [0.0, -0.0, -1.0], signed=False)
    # Scaling by 2**-k is exact: y * 2**-118 is below every float32, yet UP sees it.
    x = f32([1e-30, -1e-30])
    inputs = (x, 1, 4, 3, -120)
    yield checked("tiny_goes_up", inputs, [2.0**118, -(2.0**118)], rounding_mode="UP")
    yield checked("tiny_goes_to_zero", inputs, [0.0, -0.0])
    yield checked("tiny_goes_to_ceiling", inputs, [2.0**118, -0.0], rounding_mode="CEIL")
    tiny = 2.0**-149
    x = f32([3 * tiny, -5 * tiny])
    yield checked("subnormal_step", (x, 1, 8, 1, 149), [3 * tiny, -4 * tiny])


def types() -> Iterator[Case]:
    x = f32([[1.3, 100.0], [1.3, 100.0]])
    channels = tuple(np.array([[first], [second]]) for first, second in ((2, 4), (1, 3), (1, 7)))
    expected = [[1.5, 6.0], [1.25, 96.0]]
    yield checked("formats_per_channel", (x, 1, *channels), expected)
    yield checked("formats_per_channel_int8", (x, 1, *map(np.int8, channels)), expected)
    yield checked("formats_per_channel_float32", (x, 1, *map(np.float32, channels)), expected)
    limits = f32([[1, 50], [100, 1]])
    yield checked("max_val_for_each_element", (x, 1, *E4M3, limits), [[1, 50], [1.25, 1]])
    x = np.array([1.3, 1e300])
    yield checked("float64", (x, 1, 11, 2, 1023), [1.25, 1.5 * 2.0**996])
    x = np.array([65504.0, 0.33], np.float16)
    # 1e5 exceeds float16: the scale stays float32. 0.625 * 1e5 = 62500 is rounded to float16.
    yield checked("float16_scale_beyond_float16", (x, 1e5, *E4M3), [62496.0, 0.0])
    x = np.array([1.0, -3.0], bfloat16)
    yield checked("bfloat16", (x, 0.3, *E2M1), [0.8984375, -1.796875])


def near_every_step(dtype: Any) -> np.ndarray:
    """Grid points, midpoints and their neighbours over twenty binades, and random values."""
    exponents = np.arange(-10.0, 10.0).reshape(-1, 1)
    significands = np.array([1, 1.0625, 1.125, 1.25, 1.5, 1.75, 1.9375, 1.96875])
    points = cast((2.0**exponents * significands).ravel(), dtype)
    upward = np.nextafter(points, cast([inf], dtype))
    downward = np.nextafter(points, cast([0], dtype))
    random = np.random.default_rng(20).standard_normal((2, 100))
    spread = cast(random[0] * 10.0 ** random[1], dtype)
    return np.concatenate([points, upward, -downward, spread, telling_values(dtype)])


def sweeps() -> Iterator[Case]:
    for (name, parameters), mode in product(FORMATS.items(), MODES):
        x = near_every_step(np.float32)
        yield computed(f"{name}_{mode}", x, 1.0, *parameters, rounding_mode=mode)
    for (name, parameters), dtype in product(FORMATS.items(), FLOAT_DTYPES):
        x = near_every_step(dtype)
        yield computed(f"{name}_{dtype}_scaled", x, 0.3, *parameters)
        yield computed(f"{name}_{dtype}_unsigned", x, 1.0, *parameters, signed=False)
    scales = (1, 0.25, 0.1, 0.0, -0.0, -0.7, nan, inf, -inf, 1e-40, 5e-324, 1e-30, 1e30, 3e38)
    for dtype, mode in product(FLOAT_DTYPES, ("ROUND", "UP")):
        x = in_rows(dtype, len(scales))
        name = f"all_scales_{dtype}_{mode}"
        yield computed(name, x, in_column(scales), *E4M3, 448.0, rounding_mode=mode)


def shapes() -> Iterator[Case]:
    shape = (2, 3, 4)
    x = near_every_step(np.float32)[100:220:5].reshape(shape)
    every = np.arange(24).reshape(shape)
    full = {
        "scale": f32(every - 7) / 8,
        "exponent": every % 5 + 1,
        "mantissa": every % 4,
        "bias": every % 9 - 2,
        "max_val": f32(every) * 3,
    }
    plain = {"scale": 0.3, "exponent": 4, "mantissa": 3, "bias": 7, "max_val": 448.0}
    for name, small in shapes_within(shape).items():
        cut = tuple(slice(0, length) for length in (1,) * (3 - len(small)) + small)
        parts = {parameter: array[cut].reshape(small) for parameter, array in full.items()}
        for parameter, part in parts.items():
            yield computed(f"{parameter}_{name}", x, *{**plain, parameter: part}.values())
        yield computed(f"all_{name}", x, *parts.values())
        mixed = {**full, "scale": parts["scale"], "mantissa": np.int8(parts["mantissa"])}
        yield computed(f"mixed_{name}", x, *mixed.values(), signed=False)
    backward = [array[:, ::-1, ::-1] for array in full.values()]
    yield computed("strided_parameters", x, *backward)
    yield computed("fortran_parameters", x, *map(np.asfortranarray, full.values()))


VALID = (f32([1.0, 2.0]), 1.0, *E4M3, 448.0)
NAMES = ("scale", "exponent_bitwidth", "mantissa_bitwidth", "exponent_bias", "max_val")
CASES: tuple[Case, ...] = (
    *grid(),
    *maximum(),
    *special_values(),
    *types(),
    *sweeps(),
    *shapes(),
    *across_layouts(0.1, *E4M3, 448.0),
    computed("exponent_of_55_bits", np.array([1e9, -1.0]), 1.0, 55, 3, 2**55 - 4),
    *refused_by_all(VALID, NAMES),
    *refused_widths(VALID, 2, "exponent_bitwidth"),
    *refused_widths(VALID, 3, "mantissa_bitwidth", least=0),
    *refused_widths(VALID, 4, "exponent_bias", least=None),
    refused("max_val_negative", with_input(VALID, 5, -1.5), ValueError, r"-1\.5"),
    refused("max_val_nan", with_input(VALID, 5, nan), ValueError, "(?i)nan"),
    refused("max_val_nan_in_array", with_input(VALID, 5, f32([1, nan])), ValueError, "(?i)nan"),
    *refused_modes(VALID),
)
