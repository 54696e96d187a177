# SPDX-License-Identifier: Apache-2.0
"""IntQuant: clamp to a width of bits, round, come back."""

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

OPERATOR = "int_quant"
WIDTHS = (1, 2, 3, 4, 8, 24, 25, 26, 31, 32, 64, 127, 128, 129, 200, 1023, 1024, 1025, 5000)
SCALES = (1, 0.25, 0.1, 3, 0.0, -0.0, -0.7, nan, inf, -inf, 1e-40, 5e-324, 1e-30, 1e30, 3e38)
ZERO_POINTS = (0.0, -0.0, 1, 3, -5, 128, 0.5, -0.25, 1e10, -1e30, nan, inf, -inf)

# The document's table of rounding modes.
TABLE = f32([5.5, 2.5, 1.6, 1.1, 1.0, -1.0, -1.1, -1.6, -2.5, -5.5])
ROUNDED = {
    "ROUND": [6, 2, 2, 1, 1, -1, -1, -2, -2, -6],
    "CEIL": [6, 3, 2, 2, 1, -1, -1, -1, -2, -5],
    "FLOOR": [5, 2, 1, 1, 1, -1, -2, -2, -3, -6],
    "UP": [6, 3, 2, 2, 1, -1, -2, -2, -3, -6],
    "DOWN": [5, 2, 1, 1, 1, -1, -1, -1, -2, -5],
    "HALF_UP": [6, 3, 2, 1, 1, -1, -1, -2, -3, -6],
    "HALF_DOWN": [5, 2, 2, 1, 1, -1, -1, -2, -2, -5],
}


def rounding() -> Iterator[Case]:
    for mode, expected in {**ROUNDED, "HALF_EVEN": ROUNDED["ROUND"]}.items():
        for name in (mode, mode.lower(), mode.title()):
            yield checked(f"table_{name}", (TABLE, 1.0, 0.0, 8), expected, rounding_mode=name)
    below_half = f32([0.49999997, -0.49999997])
    for mode in ("ROUND", "HALF_UP", "HALF_DOWN"):
        # floor(|y| + .5) gives 1: the sum rounds up to 1.
        yield checked(f"below_half_{mode}", (below_half, 1, 0, 8), [0.0, -0.0], rounding_mode=mode)
    odd = f32([8388609, -8388609, 12345679, 16777213, 16777215])
    for mode in MODES:
        # Here |y| + .5 is a tie that rounds an odd integer to its neighbour.
        yield checked(f"odd_integers_{mode}", (odd, 1, 0, 32), odd, rounding_mode=mode)
    signs = f32([-0.0, -0.25, -0.75])
    for mode, expected in {"CEIL": [0.0, -0.0, -0.0], "FLOOR": [0.0, -1, -1]}.items():
        yield checked(f"zero_sign_{mode}", (signs, 1, 0, 8), expected, rounding_mode=mode)


def zero_signs_and_special_values() -> Iterator[Case]:
    x = f32([-0.0, 0.0, -0.3])
    yield checked("minus_zero_plus_zero_point", (x, 1.0, 0.0, 8), [0.0, 0.0, -0.0])
    yield checked("minus_zero_minus_zero_point", (x, 1.0, -0.0, 8), [0.0, 0.0, 0.0])
    yield checked("unsigned_has_no_minus_zero", (x, 1.0, 0.0, 8), [0.0, 0.0, 0.0], signed=False)
    special = f32([nan, inf, -inf])
    yield checked("nan_and_infinities", (special, 0.5, 3.0, 4), [nan, 2.0, -5.5])
    yield checked("infinities_unsigned", (special, 0.5, 3.0, 4), [nan, 6.0, -1.5], signed=False)
    x = f32([0.0, -0.0, 1.0, -1.0, nan])
    yield checked("scale_zero", (x, 0.0, 0.0, 4), [nan, nan, 0.0, -0.0, nan])
    yield checked("scale_minus_zero", (x, -0.0, 0.0, 4), [nan, nan, 0.0, -0.0, nan])
    yield checked("scale_nan", (x, nan, 0.0, 4), [nan] * 5)
    yield checked("scale_inf", (x, inf, 0.0, 4), [nan] * 5)
    yield checked("zero_point_nan", (x, 1.0, nan, 4), [nan] * 5)
    yield checked("zero_point_inf", (x, 1.0, inf, 4), [-inf, -inf, -inf, -inf, nan])
    yield checked("scale_negative", (f32([1, -1, 9]), -1.0, 0.0, 2), [1.0, -1.0, 2.0])
    yield checked(
        "scale_negative_unsigned", (f32([1, -1, -9]), -1.0, 0.0, 2), [-0.0, -1, -3], signed=False
    )
    yield checked("quotient_overflows", (f32([3e38, -3e38]), 0.5, 0.0, 8), [63.5, -64.0])


def arithmetic() -> Iterator[Case]:
    # 45.5 / 7 is exactly 6.5; 45.5 * (1/7) rounds to above it.
    yield checked("divide_not_reciprocal", (f32([45.5]), 7.0, 0.0, 8), [42.0])
    yield checked("divide_not_reciprocal_short_scale", (f32([2.25]), 0.3, 0.0, 8), [2.1000001])
    # 0.35f / 0.1f is 3.5 in float32 (to 4), but 0.35f / 0.1 is 3.49999994 in binary64 (to 3).
    for name, scale in {
        "python": 0.1,
        "zero_rank": np.array(0.1),
        "array": np.array([0.1]),
    }.items():
        yield checked(f"double_scale_becomes_float_{name}", (f32([0.35]), scale, 0.0, 8), [0.4])
    # ONNX rounds before it adds the zero-point: QuantizeLinear gives 0, 2.
    yield checked("odd_zero_point_at_ties", (f32([0.5, 1.5]), 1.0, 1.0, 8), [1.0, 1.0])
    # The float32 sum 1.4999999 + 128 is already 129.5.
    x = f32([1.4999999])
    yield checked("zero_point_sum_rounds", (x, 1.0, 128.0, 8), [2.0], signed=False)
    x = f32([100, 7.2, 0.25, -100])
    yield checked("fractional_zero_point", (x, 1.0, 0.5, 4), [6.5, 6.5, 0.5, -8.5])
    tiny = 2.0**-149
    x = f32([3 * tiny, -200 * tiny])
    yield checked("subnormals_are_not_flushed", (x, tiny, 0.0, 8), [3 * tiny, -128 * tiny])
    x = np.array([16777217.0, 0.1])
    yield checked("float64_is_kept", (x, 1.0, 0.0, 32), [16777217.0, 0.0])
    # bfloat16(0.3) is 0.30078125: rounding the scale to x's type first gives 0.90234375.
    x = np.array([1.0], bfloat16)
    yield checked("bfloat16_computes_in_float32", (x, 0.3, 0.0, 8), [0.8984375])
    # 70000 exceeds float16: the scale stays float32, only the result overflows.
    x = np.array([65504.0, 1.0], np.float16)
    yield checked("float16_overflows_last", (x, 70000.0, 0.0, 8), [inf, 0.0])


def widths() -> Iterator[Case]:
    x = f32([-2.0, -0.4, 0.4, 2.0])
    yield checked("one_bit_signed", (x, 1.0, 0.0, 1), [-1.0, -0.0, 0.0, 0.0])
    yield checked("one_bit_narrow", (x, 1.0, 0.0, 1), [0.0, 0.0, 0.0, 0.0], narrow=True)
    yield checked("one_bit_unsigned", (x, 1.0, 0.0, 1), [0.0, 0.0, 0.0, 1.0], signed=False)
    x = f32([-300, 300])
    unsigned_narrow = {"signed": False, "narrow": True}
    yield checked("narrow_signed", (x, 1.0, 0.0, 8), [-127, 127], narrow=True)
    yield checked("narrow_unsigned", (x, 1.0, 0.0, 8), [0, 254], **unsigned_narrow)
    yield checked("attributes_as_integers", (x, 1.0, 0.0, 8), [0, 254], signed=0, narrow=1)
    for dtype in ("int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"):
        # 2**8 does not fit an int8 and 255 not a signed byte.
        inputs = (x, 1.0, 0.0, np.array(8, dtype))
        yield checked(f"eight_bits_as_{dtype}", inputs, [0, 255], signed=False)
    yield checked("eight_bits_as_bfloat16", (x, 1.0, 0.0, np.array([8], bfloat16)), [-128, 127])
    mixed = f32([[100, -100], [100, -100]])
    per_channel = np.array([[4], [8]], np.int8)
    yield checked("widths_per_channel", (mixed, 1.0, 0.0, per_channel), [[7, -8], [100, -100]])
    per_element = f32([[4, 8], [8, 4]])
    yield checked("widths_per_element", (mixed, 1.0, 0.0, per_element), [[7, -100], [100, -8]])
    large = np.array([1e9, -1e9])
    yield checked("25_bits_float64", (large, 1, 0, 25), [33554431, 0], signed=False)
    # float32 does not represent 2**25 - 1: the bound itself rounds to 2**25.
    yield checked("25_bits_float32", (f32(large), 1, 0, 25), [33554432, 0], signed=False)
    yield checked("26_bits_narrow", (f32(large), 1, 0, 26), [33554432, -33554432], narrow=True)
    huge = f32([3e38, -3e38])
    yield checked("128_bits_signed_still_clamp", (huge, 1, 0, 128), [2.0**127, -(2.0**127)])
    yield checked("128_bits_unsigned", (huge, 1, 0, 128), [f32(3e38), 0], signed=False)
    for width in (129, 5000, 1e30):
        yield checked(f"{width:g}_bits_do_not_clamp", (huge, 1, 0, width), huge)
    special = f32([inf, -inf])
    yield checked("200_bits_keep_infinity", (special, 1, 0, 200), special)


def sweeps() -> Iterator[Case]:
    every_width = in_column(WIDTHS, np.float32)
    for mode, signed, narrow in product(MODES, (True, False), (False, True)):
        kind = f"{mode}_signed_{signed:d}_narrow_{narrow:d}"
        attributes = {"rounding_mode": mode, "signed": signed, "narrow": narrow}
        x = in_rows(np.float32, len(WIDTHS))
        yield computed(f"all_widths_{kind}", x, 1.0, 0.0, every_width, **attributes)
    for width, signed, narrow in product(WIDTHS, (True, False), (False, True)):
        name = f"width_{width}_signed_{signed:d}_narrow_{narrow:d}"
        x = telling_values(np.float32)
        yield computed(name, x, 0.1, 1.0, width, signed=signed, narrow=narrow)
    for mode, dtype in product(MODES, FLOAT_DTYPES):
        x = in_rows(dtype, len(SCALES))
        yield computed(f"all_scales_{mode}_{dtype}", x, in_column(SCALES), 0, 8, rounding_mode=mode)
        x = in_rows(dtype, len(ZERO_POINTS))
        zero_points = in_column(ZERO_POINTS, np.float32)
        name = f"all_zero_points_{mode}_{dtype}"
        yield computed(name, x, 0.3, zero_points, 4, rounding_mode=mode, signed=False)
    for dtype in FLOAT_DTYPES:
        x = in_rows(dtype, len(WIDTHS))
        yield computed(f"all_widths_{dtype}", x, 0.7, 0, np.int64(every_width), narrow=True)


def shapes() -> Iterator[Case]:
    shape = (2, 3, 4)
    x = telling_values(np.float32)[-48:].reshape(4, 3, 4)[::2] * np.float32(1)
    scales = f32(np.linspace(-1, 2, 24)).reshape(shape)
    zero_points = f32(np.arange(24) % 5 - 1.5).reshape(shape)
    bit_widths = (np.arange(24) % 7 + 1).reshape(shape)
    for name, small in shapes_within(shape).items():
        cut = tuple(slice(0, length) for length in (1,) * (3 - len(small)) + small)
        scale, zero_point, width = (
            array[cut].reshape(small) for array in (scales, zero_points, bit_widths)
        )
        yield computed(f"scale_{name}", x, scale, 1.0, 4)
        yield computed(f"zero_point_{name}", x, 0.1, np.int64(zero_point), 4)
        yield computed(f"bit_width_{name}", x, 0.1, 0.0, np.int8(width))
        yield computed(f"all_{name}", x, scale, zero_point, f32(width))
        yield computed(f"mixed_{name}", x, scale, zero_points[:, :1], bit_widths[0], signed=False)
    yield computed(
        "strided_parameters", x, scales[:, ::-1], zero_points[::-1], bit_widths[..., ::-1]
    )
    fortran = np.asfortranarray(scales)
    yield computed("fortran_parameters", x, fortran, np.asfortranarray(zero_points), 4)
    yield computed("half_parameters", x, np.float16(scales), np.array(zero_points, bfloat16), 4)
    yield checked("python_list", ([0.4, 1.6], [1.0, 1.0], [0, 0], [8, 8]), np.array([0.0, 2.0]))


VALID = (f32([1.0, 2.0]), 1.0, 0.0, 8)
CASES: tuple[Case, ...] = (
    *rounding(),
    *zero_signs_and_special_values(),
    *arithmetic(),
    *widths(),
    *sweeps(),
    *shapes(),
    *across_layouts(0.1, 3.0, 5, narrow=True),
    *refused_by_all(VALID, ("scale", "zeropt", "bitwidth")),
    *refused_widths(VALID, 3, "bitwidth"),
    *refused_modes(VALID),
)
