# SPDX-License-Identifier: Apache-2.0
"""DynamicQuantize: to 8-bit integers with scales and zero-points that are inputs."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from . import Case, checked, computed, f32, inf, layouts, nan, refused, telling_values

OPERATOR = "dynamic_quantize"
ONE = f32([1.0])
ZERO_POINT_TYPES = (np.int8, np.uint8, np.int32)
SCALES = (1, 0.25, 0.1, 3, 7, 0.0, -0.0, -0.7, nan, inf, -inf, 1e-40, 1.4e-45, 1e-30, 1e30, 3e38)


def signed(values: Any) -> np.ndarray:
    return np.array(values, np.int8)


def unsigned(values: Any) -> np.ndarray:
    return np.array(values, np.uint8)


def meaning() -> Iterator[Case]:
    x = f32([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997])
    yield checked("ties_to_even", (x, ONE), signed([0, 2, 2, 0, -2, 0]))
    # Rounding first would give 1, 3.
    inputs = (f32([0.5, 1.5]), ONE, np.int32([1]))
    yield checked("zero_point_before_rounding", inputs, signed([2, 2]))
    # The float32 sum 1.4999999 + 100 is already 101.5.
    inputs = (f32([1.4999999]), ONE, np.uint8([100]))
    yield checked("zero_point_sum_rounds", inputs, unsigned([102]), dtype="u8")
    x = f32([nan, inf, -inf, 3e38, 127.5, -128.5, 255.5, -0.6])
    yield checked("saturates_s8", (x, ONE), signed([-128, 127, -128, 127, 127, -128, 127, -1]))
    yield checked("saturates_u8", (x, ONE), unsigned([0, 255, 0, 255, 128, 0, 255, 0]), dtype="u8")
    x = f32([0.0, 100.0, -300.0])
    yield checked("zps_u8", (x, ONE, np.uint8([200])), unsigned([200, 255, 0]), dtype="u8")
    yield checked("zps_u8_to_s8", (x, ONE, np.uint8([200])), signed([127, 127, -100]))
    yield checked("zps_s8", (x, ONE, np.int8([-128])), signed([-128, -28, -128]))
    yield checked("zps_s8_to_u8", (x, ONE, np.int8([-20])), unsigned([0, 80, 0]), dtype="u8")
    # float32 does not represent 2**24 + 1.
    x = f32([-16777216.0])
    yield checked("zps_s32_become_float32", (x, ONE, np.int32([16777217])), signed([0]))
    x = f32([0.0, -0.0, 1.0, -1.0, nan])
    for arithmetic in ("divide", "reciprocal"):
        expected = signed([-128, -128, 127, -128, -128])
        name = f"scale_zero_{arithmetic}"
        yield checked(name, (x, f32([0.0])), expected, arithmetic=arithmetic)
        yield checked(
            f"scale_nan_{arithmetic}", (x, f32([nan])), signed([-128] * 5), arithmetic=arithmetic
        )
        yield checked(
            f"scale_inf_{arithmetic}",
            (x, f32([inf]), np.int32([3])),
            signed([3, 3, 3, 3, -128]),
            arithmetic=arithmetic,
        )
    yield checked("scale_negative", (f32([3.0]), f32([-1.0])), signed([-3]))


def arithmetics() -> Iterator[Case]:
    # 45.5 / 7 is exactly 6.5; 45.5 * (1/7) rounds to above it.
    inputs = (f32([45.5]), f32([7.0]))
    yield checked("default_divides", inputs, signed([6]))
    yield checked("divide", inputs, signed([6]), arithmetic="divide")
    yield checked("reciprocal", inputs, signed([7]), arithmetic="reciprocal")
    # The product 2.4999998 + 3 ties to 5.5; fused, the sum is 5.4999995.
    inputs = (f32([7.499999]), f32([3.0]), np.int32([3]))
    yield checked("reciprocal_is_not_fused", inputs, signed([6]), arithmetic="reciprocal")
    # 1 / 1e-40 is infinite.
    inputs = (f32([2e-40, 0.0]), f32([1e-40]))
    yield checked("subnormal_scale_divide", inputs, signed([2, 0]))
    yield checked(
        "subnormal_scale_reciprocal", inputs, signed([127, -128]), arithmetic="reciprocal"
    )


def channels() -> Iterator[Case]:
    x = f32([[1, 2, 3], [4, 5, 6]])
    by_channel = {"qtype": "per_channel"}
    inputs = (x, f32([1, 2, 0.5]), np.int8([0, 1, -1]))
    for axis in (1, -1):
        expected = signed([[1, 2, 5], [4, 4, 11]])
        yield checked(f"axis_{axis}", inputs, expected, **by_channel, axis=axis)
    yield checked("default_axis_is_1", inputs, signed([[1, 2, 5], [4, 4, 11]]), **by_channel)
    inputs = (x, f32([1, 2]), np.uint8([10, 20]))
    for axis in (0, -2):
        expected = unsigned([[11, 12, 13], [22, 22, 23]])
        yield checked(f"axis_{axis}", inputs, expected, **by_channel, axis=axis, dtype="u8")
    yield checked(
        "without_zero_points", (x, f32([1, 2, 0.5])), signed([[1, 1, 6], [4, 2, 12]]), **by_channel
    )
    shape = (2, 3, 4, 5)
    x = f32(np.resize(telling_values(np.float32), shape))
    for axis, dtype, arithmetic in product(range(-4, 4), ("s8", "u8"), ("divide", "reciprocal")):
        count = shape[axis]
        scales = f32(np.linspace(-0.3, 2, count))
        zps = np.arange(count, dtype=np.int32) * 7 - 9
        name = f"four_axes_{axis}_{dtype}_{arithmetic}"
        attributes = {**by_channel, "axis": axis, "dtype": dtype, "arithmetic": arithmetic}
        yield computed(name, x, scales, zps, **attributes)
        yield computed(
            f"{name}_transposed",
            x.transpose(),
            scales[::-1],
            **{**attributes, "axis": 3 - axis % 4},
        )
    yield checked("one_channel", (f32([[4.0]]), f32([2.0])), signed([[2]]), **by_channel)
    yield checked("one_axis", (f32([4, 5]), f32([2, 1])), signed([2, 5]), **by_channel, axis=0)


def degenerate_shapes() -> Iterator[Case]:
    empty = {"empty": (0,), "empty_rows": (0, 3), "empty_columns": (3, 0)}
    for name, shape in empty.items():
        expected = signed(np.zeros(shape))
        yield checked(name, (np.zeros(shape, np.float32), ONE), expected)
        yield checked(
            f"{name}_with_zps", (np.zeros(shape, np.float32), ONE, np.int8([1])), expected
        )
    x = np.zeros((3, 0), np.float32)
    inputs = (x, f32([]), np.int32([]))
    yield checked("no_channel", inputs, signed(np.zeros((3, 0))), qtype="per_channel")
    inputs = (x, f32([1, 2, 3]))
    yield checked("empty_channels", inputs, signed(np.zeros((3, 0))), qtype="per_channel", axis=0)
    yield checked("zero_dimensions", (f32(2.5), ONE), signed(2))
    yield checked("default_axis_beyond_rank_is_unused", (f32([2.5]), ONE), signed([2]))


def sweeps() -> Iterator[Case]:
    x = telling_values(np.float32)
    spread = np.random.default_rng(6).standard_normal((2, 400))
    for dtype, arithmetic, scale in product(("s8", "u8"), ("divide", "reciprocal"), SCALES):
        attributes = {"dtype": dtype, "arithmetic": arithmetic}
        scales = f32([scale])
        yield computed(f"scale_{scale}_{dtype}_{arithmetic}", x, scales, **attributes)
        zps = np.int32([17])
        yield computed(f"scale_{scale}_zp_17_{dtype}_{arithmetic}", x, scales, zps, **attributes)
    for dtype, kind in product(("s8", "u8"), ZERO_POINT_TYPES):
        limits = np.iinfo(kind)
        for zp in (limits.min, 1, 3, 100, limits.max):
            zps = np.array([zp], kind)
            yield computed(f"zp_{zps.dtype}_{zp}_{dtype}", x, f32([0.3]), zps, dtype=dtype)
    for arithmetic, scale in product(("divide", "reciprocal"), (0.1, 0.7, 3, 7, 11)):
        ties = f32((np.arange(-120, 120) + 0.5) * scale)
        inputs = (ties, f32([scale]), np.int8([3]))
        yield computed(f"near_ties_{scale}_{arithmetic}", *inputs, arithmetic=arithmetic)
        random = f32(30 * spread[0] * np.exp(spread[1]))
        yield computed(f"random_{scale}_{arithmetic}", random, *inputs[1:], arithmetic=arithmetic)
    for layout, values in layouts(x).items():
        yield computed(f"layout_{layout}", values, f32([0.1]), np.uint8([3]), dtype="u8")


def refusals() -> Iterator[Case]:
    x, two = f32([[1, 2, 3], [4, 5, 6]]), f32([1, 2])
    three, zps = f32([1, 2, 3]), np.int32([0])
    by_channel = {"qtype": "per_channel"}
    for axis in (2, -3, 100):
        yield refused(f"axis_{axis}", (x, three), ValueError, f"{axis}", **by_channel, axis=axis)
    yield refused("axis_7_per_tensor", (x, ONE), ValueError, "7", axis=7)
    yield refused("default_axis_on_rank_1", (three, three), ValueError, "axis.*1", **by_channel)
    yield refused("axis_of_rank_0", (f32(1), ONE), ValueError, "axis.*0", **by_channel, axis=0)
    for attribute, value in (("qtype", "per_group"), ("dtype", "s4"), ("arithmetic", "fma")):
        yield refused(f"{attribute}_{value}", (x, ONE), ValueError, value, **{attribute: value})
    counts = {"two": two, "none": f32([]), "plane": x}
    for name, scales in counts.items():
        pattern = rf"scales.*{scales.size}|scales.*\({scales.shape[0]},"
        yield refused(f"{name}_scales_per_tensor", (x, scales), ValueError, pattern)
        zero_points = scales.astype(np.int32)
        pattern = pattern.replace("scales", "zps")
        yield refused(f"{name}_zps_per_tensor", (x, ONE, zero_points), ValueError, pattern)
    inputs = (x, two)
    yield refused("too_few_scales", inputs, ValueError, "scales.*2", **by_channel)
    yield refused("too_many_scales", (x, three), ValueError, "scales.*3", **by_channel, axis=0)
    yield refused("one_scale_per_channel", (x, ONE), ValueError, "scales.*1", **by_channel)
    yield refused("one_zp_per_channel", (x, three, zps), ValueError, "zps.*1", **by_channel)
    for dtype in ("float64", "float16", "int32", "complex64"):
        inputs = (x.astype(dtype), ONE)
        yield refused(f"src_of_{dtype}", inputs, TypeError, dtype)
        yield refused(f"scales_of_{dtype}", (x, ONE.astype(dtype)), TypeError, dtype)
    for dtype in ("float32", "int64", "int16", "uint32"):
        yield refused(f"zps_of_{dtype}", (x, ONE, zps.astype(dtype)), TypeError, dtype)


CASES: tuple[Case, ...] = (
    *meaning(),
    *arithmetics(),
    *channels(),
    *degenerate_shapes(),
    *sweeps(),
    *refusals(),
)
