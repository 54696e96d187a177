# SPDX-License-Identifier: Apache-2.0
"""BipolarQuant: +scale or -scale."""

from collections.abc import Iterator

import numpy as np

from . import (
    FLOAT_DTYPES,
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
    shapes_within,
    telling_values,
)

OPERATOR = "bipolar_quant"
SCALES = (1, 0.1, 3, 0.0, -0.0, -0.7, nan, inf, -inf, 1e-40, 5e-324, 1e30, 3e38, 1e300)


def meaning() -> Iterator[Case]:
    x = f32([2.0, -2.0, 0.0, -0.0, nan, -nan, inf, -inf, 1e-45, -1e-45])
    signs = f32([1, -1, 1, 1, -1, -1, 1, -1, 1, -1])
    # The sign of a zero and ONNX Sign (0 at 0) play no part; NaN is not >= 0.
    yield checked("unit_scale", (x, 1.0), signs)
    yield checked("half_scale", (x, 0.5), signs / 2)
    yield checked("negative_scale", (x, -0.25), signs / -4)
    yield checked("zero_scale", (x, 0.0), signs * 0)
    yield checked("infinite_scale", (x, inf), signs * np.float32(inf))
    yield checked("nan_scale", (x, nan), [nan] * 10)
    yield checked("integer_scale", (x, 3), signs * 3)
    # Two bits of bfloat16 and float16 are lost once, at the end.
    for dtype, third in ((bfloat16, 0.333984375), (np.float16, 0.333251953125)):
        yield checked(
            f"one_third_{np.dtype(dtype)}", (np.array([1, -1], dtype), 1 / 3), [third, -third]
        )
    yield checked("float16_overflows", (np.array([1, -1], np.float16), 70000.0), [inf, -inf])
    yield checked("float64_is_kept", (np.array([1.0, -1.0]), 0.1), [0.1, -0.1])
    yield checked(
        "scale_per_channel", (f32([[1, -1], [1, -1]]), f32([[2], [3]])), [[2, -2], [3, -3]]
    )


def sweeps() -> Iterator[Case]:
    for dtype in FLOAT_DTYPES:
        x = in_rows(dtype, len(SCALES))
        yield computed(f"all_scales_{dtype}", x, in_column(SCALES))
        for scale in SCALES:
            yield computed(f"scale_{scale}_{dtype}", telling_values(dtype), float(scale))
    shape = (2, 3, 4)
    x = telling_values(np.float32)[-48::2].reshape(shape)
    scales = f32(np.arange(24).reshape(shape) - 7) / 8
    for name, small in shapes_within(shape).items():
        cut = tuple(slice(0, length) for length in (1,) * (3 - len(small)) + small)
        yield computed(f"scale_of_shape_{name}", x, scales[cut].reshape(small))
    yield computed("strided_scale", x, scales[::-1, :, ::-1])
    yield computed("fortran_scale", x, np.asfortranarray(scales))


CASES: tuple[Case, ...] = (
    *meaning(),
    *sweeps(),
    *across_layouts(0.1),
    *refused_by_all((f32([1.0, 2.0]), 1.0), ("scale",)),
)
