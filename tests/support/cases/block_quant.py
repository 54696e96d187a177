# SPDX-License-Identifier: Apache-2.0
"""BlockQuant: MX, NVFP4 and integer blocks with scales that follow from the data."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from . import (
    FLOAT_DTYPES,
    Case,
    cast,
    checked,
    computed,
    f32,
    inf,
    layouts,
    nan,
    refused,
    telling_values,
)

OPERATOR = "block_quant"
MX = ("mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "mxint8")
INTEGERS = ("int2", "int3", "int4", "int8")
FORMATS = (*MX, "nvfp4", *INTEGERS)


def meaning() -> Iterator[Case]:
    # The scale is 4: amax = 17 has the exponent 4, and 2^2 is the largest power of mxfp4.
    x = f32([0.9, 17.0, -1.3, 3.0])
    yield checked("mxfp4", (x,), f32([0.0, 16.0, -2.0, 4.0]), format="mxfp4")
    # The scale is 8, and the largest element 6.
    x = f32([63.0, -0.0, 2.0, -2.0, -1.9, 6.0])
    expected = f32([48.0, -0.0, 0.0, -0.0, -0.0, 8.0])
    yield checked("saturates_with_signed_zeros", (x,), expected, format="mxfp4")
    yield checked("zeros", (f32([0.0, -0.0]),), f32([0.0, -0.0]))
    x = f32([1.0, 2.0, nan, 4.0, 5.0, -inf, 7.0, 8.0])
    expected = f32([1.0, 2.0, nan, nan, nan, nan, 7.0, 8.0])
    yield checked("blocks_that_are_not_finite", (x,), expected, block_size=2)
    # amax / 6 = 1.5 is a scale; x / 1.5 is 6, 2 and the tie 2.5.
    x = f32([9.0, 3.0, -3.75])
    yield checked("nvfp4", (x,), f32([9.0, 3.0, -3.0]), format="nvfp4")
    inputs = (x, f32(0.75))
    yield checked("nvfp4_tensor_scale", inputs, f32([9.0, 3.0, -3.0]), format="nvfp4")
    # The block scale saturates at 448.
    yield checked("nvfp4_saturates", (f32([6000.0]),), f32([2688.0]), format="nvfp4")
    yield checked("int4", (f32([7.0, 2.5, 3.5, -1.0]),), f32([7, 2, 4, -1]), format="int4")
    yield checked("int2", (f32([3.0, 1.5, -1.6, -0.1]),), f32([3, 0, -3, -0.0]), format="int2")
    # The last block has one element.
    x = f32([1.0, 7.0, 100.0])
    yield checked("short_last_block", (x,), f32([1, 7, 100]), format="int4", block_size=2)


def limits() -> Iterator[Case]:
    """Yield the ends of E8M0, and scales at the ends of the compute type."""
    largest, tiny = float(np.finfo(np.float32).max), 2.0**-149
    reaches = [largest, 2.0**127, 2.0**-118, 2.0**-119, 2.0**-126, 2.0**-127, 5 * tiny, tiny, 0.0]
    shares = np.array([1.0, -0.9, 0.49, 0.3, -0.1, 1e-3, 2.0**-10, -1e-9, 0.0, -0.0])
    for form in FORMATS:
        x = f32(np.outer(reaches, shares))
        yield computed(f"limits_{form}", x, format=form)
        wide = np.outer([1e308, 2.0**200, 2.0**128, 1e-30, 2.0**-1074, 1e-300], shares)
        yield computed(f"limits_{form}_float64", wide, format=form)
    for g in (1.0, 1e-3, 3e38, 1e-40, tiny, -1.0, 0.0, inf, nan):
        for dtype in (np.float32, np.float64):
            x = cast(np.outer(reaches, shares).ravel(), dtype).reshape(-1, len(shares))
            yield computed(f"tensor_scale_{g}_{np.dtype(dtype)}", x, g, format="nvfp4")


def shapes() -> Iterator[Case]:
    values = telling_values(np.float32)
    finite = values[np.isfinite(values)]
    for axis, size in ((0, 1), (1, 2), (-1, 3), (-2, 4), (1, 6), (-3, 7), (2, 100)):
        x = np.resize(finite[::3], (3, 6, 4))
        yield computed(f"axis_{axis}_size_{size}", x, format="mxfp4", axis=axis, block_size=size)
        yield computed(
            f"axis_{axis}_size_{size}_transposed",
            np.resize(finite[::3], (4, 6, 3)).transpose(),
            format="int4",
            axis=axis,
            block_size=size,
        )
    for form, size in (("mxfp8", 0), ("nvfp4", 0), ("int4", 16), ("mxfp4", 300)):
        x = np.random.default_rng(size).normal(size=(1, 2, 330)).astype(np.float32)
        name = f"long_{form}_{size}"
        yield computed(name, x, format=form, block_size=size)
        yield computed(f"{name}_columns", x.transpose(2, 0, 1), format=form, axis=0)
        yield computed(f"{name}_half", x.astype(np.float16), format=form, block_size=size)
        columns = x.transpose(2, 0, 1).astype(np.float16)
        yield computed(f"{name}_half_columns", columns, format=form, axis=0, block_size=size)
    for name, shape in {"empty": (0,), "rows": (0, 3), "columns": (3, 0)}.items():
        x = np.zeros(shape, np.float32)
        yield checked(f"empty_{name}", (x,), x)
        yield checked(f"empty_{name}_axis_0", (x,), x, axis=0, format="int4", block_size=7)
    for dtype in FLOAT_DTYPES:
        for layout, x in layouts(telling_values(dtype)).items():
            if x.ndim:
                yield computed(f"{layout}_{dtype}", x, block_size=3)


def sweeps() -> Iterator[Case]:
    for dtype, form in product(FLOAT_DTYPES, FORMATS):
        values = telling_values(dtype)
        values = values[np.isfinite(values.astype(np.float64))]
        yield computed(f"telling_{form}_{dtype}", values, format=form, block_size=7)
        spread = np.random.default_rng(8).normal(size=(3, 70))
        spread *= np.exp(3 * np.random.default_rng(9).normal(size=(3, 1)))
        yield computed(f"random_{form}_{dtype}", cast(spread.ravel(), dtype), format=form)
    for form in FORMATS:
        # Ties between all elements of a block whose scale is known.
        steps = np.arange(0, 64) / 8
        yield computed(f"ties_{form}", f32([[*steps, 8.0], [*-steps, 7.75]]), format=form, axis=0)
        x = f32(np.append(np.arange(-90, 90) * 1.25, [127.0, 448.0]))
        yield computed(f"even_{form}", x, format=form, block_size=1000)


def tensor_scales() -> Iterator[Case]:
    x = np.random.default_rng(4).normal(size=(2, 20, 3)).astype(np.float32)
    scales = {
        "number": 0.01,
        "one": f32([0.02]),
        "axis_0": f32([[[0.01]], [[0.3]]]),
        "axis_2": f32([0.01, 0.02, 4.0]),
        "both": f32([[[0.01, 0.02, 0.5]], [[0.1, 3.0, 1e-4]]]),
        "float64": np.float64(1 / 3),
        "integer": np.int64(2),
    }
    for name, scale in scales.items():
        yield computed(f"tensor_scale_{name}", x, scale, format="nvfp4", axis=1)
    yield computed("rows", x, f32([[[0.01]], [[0.3]]]), format="nvfp4")
    yield computed("columns", x, f32([0.01, 0.02, 4.0]), format="nvfp4", axis=0)
    half = x.astype(np.float16)
    yield computed("rows_half", half, f32([[[0.01]], [[0.3]]]), format="nvfp4")


def refusals() -> Iterator[Case]:
    x = f32([[1, 2, 3], [4, 5, 6]])
    for axis in (2, -3, 100):
        yield refused(f"axis_{axis}", (x,), ValueError, f"{axis}", axis=axis)
    yield refused("zero_dimensions", (f32(1),), ValueError, "axis.*-1")
    yield refused("format", (x,), ValueError, "mxfp5.*|.*mxfp5", format="mxfp5")
    yield refused("block_size", (x,), ValueError, "block_size.*-1", block_size=-1)
    yield refused("tensor_scale_of_mxfp8", (x, 1.0), ValueError, "tensor_scale.*nvfp4.*mxfp8")
    by_nvfp4 = {"format": "nvfp4"}
    for name, shape in {"along": (3,), "rows": (3, 1), "axes": (1, 1, 1), "empty": (0,)}.items():
        inputs = (x, np.ones(shape, np.float32))
        yield refused(f"tensor_scale_{name}", inputs, ValueError, "tensor_scale", **by_nvfp4)
    for dtype in ("int32", "int64", "bool", "complex64"):
        yield refused(f"x_of_{dtype}", (np.ones(2, dtype),), TypeError, dtype)
    inputs = (x, np.ones(1, np.complex64))
    yield refused("tensor_scale_of_complex64", inputs, TypeError, "complex", **by_nvfp4)


CASES: tuple[Case, ...] = (
    *meaning(),
    *limits(),
    *shapes(),
    *sweeps(),
    *tensor_scales(),
    *refusals(),
)
