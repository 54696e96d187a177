# SPDX-License-Identifier: Apache-2.0
"""The calls that the speed tables time: every operator, rounding mode and granularity."""

from collections.abc import Callable, Iterator

import numpy as np

import anybit

Call = Callable[[], object]
MODES = [mode.value for mode in anybit.RoundingMode]
CHANNELS = 64


def workloads(elements: int) -> Iterator[tuple[str, str, Call]]:
    """(operator, variant, call) over float32 arrays, writing to an array that exists."""
    random = np.random.default_rng(0)
    x = (random.standard_normal(elements, dtype=np.float32) * 3).reshape(-1, CHANNELS, 64)
    out = np.empty_like(x)
    scale = random.uniform(0.1, 1, CHANNELS).astype(np.float32)
    granularities = {
        "per-tensor": (np.float32(0.1), x),
        "per-channel, axis 1": (scale.reshape(-1, 1), x),
        "per-channel, last axis": (scale, x),
    }
    for granularity, (s, data) in granularities.items():
        yield (
            "bipolar_quant",
            granularity,
            lambda s=s, data=data: anybit.bipolar_quant(data, s, out=out),
        )
        for mode in MODES:
            for name, call in _rounding_calls(data, s, mode, out).items():
                yield name, f"{mode}, {granularity}", call


def _rounding_calls(x: np.ndarray, s: np.ndarray, mode: str, out: np.ndarray) -> dict[str, Call]:
    e4m3, e2m1 = anybit.formats.float8_e4m3fn, anybit.formats.float4_e2m1fn
    return {
        "int_quant 4 bit": lambda: anybit.int_quant(x, s, 0, 4, rounding_mode=mode, out=out),
        "float_quant e4m3": lambda: anybit.float_quant(x, s, *e4m3, rounding_mode=mode, out=out),
        "float_quant e2m1": lambda: anybit.float_quant(x, s, *e2m1, rounding_mode=mode, out=out),
        "trunc 8 to 4 bit": lambda: anybit.trunc(
            x, s, 0, 8, s * 16, 4, rounding_mode=mode, out=out
        ),
    }
