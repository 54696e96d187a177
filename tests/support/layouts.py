# SPDX-License-Identifier: Apache-2.0
"""One call per kind of parameter layout."""

from typing import Any

import numpy as np

import anybit


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 5, shape).astype(np.float32)


def layouts(x: np.ndarray) -> dict[str, tuple[str, list[Any], dict[str, Any]]]:
    """Return one call per kind of parameter layout, for an x of three dimensions."""
    random = np.random.default_rng(1)
    scale = random.uniform(0.1, 2, x.shape).astype(np.float32)
    width = (scale[..., :1] // 1 + 2).astype(np.int8)
    return {
        "per_tensor": ("int_quant", [0.3, 1, 4], {}),
        "first_axis": ("float_quant", [scale[:, :1, :1], 4, 3, 7, 448.0], {}),
        "middle_axis": ("trunc", [scale[:1, :, :1], 0, 8, 4.0, 4], {}),
        "last_axis": ("int_quant", [scale[0, 0], 0, 4], {"rounding_mode": "UP"}),
        "outer_axes": ("int_quant", [scale[..., :1], 0, width], {}),
        "outermost_and_last": ("trunc_v1", [scale[:, :1], scale[:1, :1], 8, 4], {}),
        "per_element": ("float_quant", [scale, 2, 1, 1], {}),
        "mixed": ("int_quant", [scale[:1], scale[..., :1], 5], {}),
    }


LAYOUTS = tuple(layouts(random_array(1, 1, 1)))


def call(x: np.ndarray, layout: str, out: np.ndarray | None = None) -> np.ndarray:
    name, parameters, attributes = layouts(x)[layout]
    return getattr(anybit, name)(x, *parameters, **attributes, out=out)
