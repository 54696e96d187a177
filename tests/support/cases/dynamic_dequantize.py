# SPDX-License-Identifier: Apache-2.0
"""DynamicDequantize: from 8-bit integers with scales and zero-points that are inputs."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from . import Case, checked, computed, f32, inf, layouts, nan, refused
from .dynamic_quantize import ONE, SCALES, ZERO_POINT_TYPES, signed, unsigned

OPERATOR = "dynamic_dequantize"
EVERY_SIGNED = np.arange(-128, 128).astype(np.int8)
EVERY_UNSIGNED = np.arange(256).astype(np.uint8)


def meaning() -> Iterator[Case]:
    yield checked("int8", (signed([-128, 0, 127]), f32([0.5])), f32([-64, 0, 63.5]))
    yield checked("uint8", (unsigned([0, 128, 255]), f32([0.5])), f32([0, 64, 127.5]))
    # In the types of src these differences would wrap.
    x = signed([-128, 127])
    yield checked("zps_s8", (x, ONE, np.int8([127])), f32([-255, 0]))
    yield checked("zps_u8_of_s8", (x, ONE, np.uint8([255])), f32([-383, -128]))
    yield checked("zps_u8", (unsigned([0, 255]), ONE, np.uint8([255])), f32([-255, 0]))
    yield checked("zps_s8_of_u8", (unsigned([0, 255]), ONE, np.int8([-128])), f32([128, 383]))
    # float32 represents 2**24, but not 2**24 + 1.
    inputs = (signed([1, 0]), ONE, np.int32([16777217]))
    yield checked("difference_is_exact", inputs, f32([-16777216, -16777216]))
    # 1 - (2**24 + 5) = -(2**24 + 4); from the float32 nearest to the zero-point, -(2**24 + 3).
    inputs = (signed([1, 3, -128]), ONE, np.int32([16777221]))
    yield checked("difference_rounds_once", inputs, f32([-16777220, -16777218, -16777348]))
    inputs = (signed([0, 127]), ONE, np.int32([-(2**31)]))
    yield checked("least_zero_point", inputs, f32([2**31, 2**31]))
    inputs = (signed([0, 64, 127]), ONE, np.int32([2**31 - 1]))
    yield checked("largest_zero_point", inputs, f32([-(2**31), 128 - 2**31, 128 - 2**31]))
    yield checked("zero_times_negative", (signed([3, 4]), f32([-1]), np.int8([3])), f32([-0.0, -1]))


def strange_scales() -> Iterator[Case]:
    x = signed([-1, 0, 2])
    yield checked("scale_nan", (x, f32([nan])), f32([nan] * 3))
    yield checked("scale_inf", (x, f32([inf])), f32([-inf, nan, inf]))
    yield checked("scale_minus_inf", (x, f32([-inf])), f32([inf, nan, -inf]))
    yield checked("scale_zero", (x, f32([0.0])), f32([-0.0, 0.0, 0.0]))
    yield checked("scale_minus_zero", (x, f32([-0.0])), f32([0.0, -0.0, -0.0]))
    yield checked("overflow", (x, f32([3e38])), f32([-3e38, 0, inf]))
    yield checked("subnormal", (x, f32([1.4e-45])), f32([-1.4e-45, 0, 2.8e-45]))


def channels() -> Iterator[Case]:
    x = signed([[1, 2, 3], [4, 5, 6]])
    by_channel = {"qtype": "per_channel"}
    inputs = (x, f32([1, 2, 0.5]), np.int8([0, 1, -1]))
    expected = f32([[1, 2, 2], [4, 8, 3.5]])
    for axis in (1, -1):
        yield checked(f"axis_{axis}", inputs, expected, **by_channel, axis=axis)
    yield checked("default_axis_is_1", inputs, expected, **by_channel)
    inputs = (x, f32([1, 2]), np.uint8([10, 20]))
    for axis in (0, -2):
        expected = f32([[-9, -8, -7], [-32, -30, -28]])
        yield checked(f"axis_{axis}", inputs, expected, **by_channel, axis=axis)
    inputs = (x, f32([1, 2, 0.5]))
    yield checked("without_zero_points", inputs, f32([[1, 4, 1.5], [4, 10, 3]]), **by_channel)
    shape = (2, 3, 4, 5)
    for axis, every in product(range(-4, 4), (EVERY_SIGNED, EVERY_UNSIGNED)):
        x = np.resize(every[::7], shape)
        scales = f32(np.linspace(-0.3, 2, shape[axis]))
        zps = np.arange(shape[axis], dtype=np.int32) * 7 - 9
        name = f"four_axes_{axis}_{x.dtype}"
        yield computed(name, x, scales, zps, **by_channel, axis=axis)
        turned = 3 - axis % 4
        yield computed(f"{name}_transposed", x.T, scales[::-1], **by_channel, axis=turned)


def degenerate_shapes() -> Iterator[Case]:
    for name, shape in {"empty": (0,), "empty_rows": (0, 3), "empty_columns": (3, 0)}.items():
        x, expected = signed(np.zeros(shape)), f32(np.zeros(shape))
        yield checked(name, (x, ONE), expected)
        yield checked(f"{name}_with_zps", (x, ONE, np.int8([1])), expected)
    x, expected = signed(np.zeros((3, 0))), f32(np.zeros((3, 0)))
    yield checked("no_channel", (x, f32([]), np.int32([])), expected, qtype="per_channel")
    yield checked("empty_channels", (x, f32([1, 2, 3])), expected, qtype="per_channel", axis=0)
    yield checked("zero_dimensions", (signed(3), ONE), f32(3))
    yield checked("default_axis_beyond_rank_is_unused", (signed([3]), ONE), f32([3]))


def sweeps() -> Iterator[Case]:
    for x, scale in product((EVERY_SIGNED, EVERY_UNSIGNED), SCALES):
        yield computed(f"scale_{scale}_{x.dtype}", x, f32([scale]))
        yield computed(f"scale_{scale}_zp_17_{x.dtype}", x, f32([scale]), np.int32([17]))
    large = (*(2**24 + step for step in range(-130, 131, 13)), 2**30 + 63, 2**30 + 65, 2**31 - 65)
    for x, kind in product((EVERY_SIGNED, EVERY_UNSIGNED), ZERO_POINT_TYPES):
        limits = np.iinfo(kind)
        further = (*large, *(-zp for zp in large)) if kind is np.int32 else ()
        for zp in (limits.min, 1, 3, 100, limits.max, *further):
            zps = np.array([zp], kind)
            yield computed(f"zp_{zps.dtype}_{zp}_{x.dtype}", x, f32([0.3]), zps)
    for x in (EVERY_SIGNED, EVERY_UNSIGNED):
        for layout, values in layouts(x).items():
            yield computed(f"layout_{layout}_{x.dtype}", values, f32([0.1]), np.uint8([3]))


def refusals() -> Iterator[Case]:
    x, two, three = signed([[1, 2, 3], [4, 5, 6]]), f32([1, 2]), f32([1, 2, 3])
    zps = np.int32([0])
    by_channel = {"qtype": "per_channel"}
    for axis in (2, -3, 100):
        yield refused(f"axis_{axis}", (x, three), ValueError, f"{axis}", **by_channel, axis=axis)
    yield refused("axis_7_per_tensor", (x, ONE), ValueError, "7", axis=7)
    yield refused("qtype_per_group", (x, ONE), ValueError, "per_group", qtype="per_group")
    yield refused("two_scales_per_tensor", (x, two), ValueError, "scales.*2")
    yield refused("two_zps_per_tensor", (x, ONE, np.int32([1, 2])), ValueError, "zps.*2")
    yield refused("too_few_scales", (x, two), ValueError, "scales.*2", **by_channel)
    yield refused("one_zp_per_channel", (x, three, zps), ValueError, "zps.*1", **by_channel)
    for dtype in ("float32", "float64", "float16", "int16", "int32", "bool", "complex64"):
        yield refused(f"src_of_{dtype}", (x.astype(dtype), ONE), TypeError, dtype)
    for dtype in ("float64", "float16", "int32"):
        yield refused(f"scales_of_{dtype}", (x, ONE.astype(dtype)), TypeError, dtype)
    for dtype in ("float32", "int64", "int16", "uint32"):
        yield refused(f"zps_of_{dtype}", (x, ONE, zps.astype(dtype)), TypeError, dtype)


CASES: tuple[Case, ...] = (
    *meaning(),
    *strange_scales(),
    *channels(),
    *degenerate_shapes(),
    *sweeps(),
    *refusals(),
)
