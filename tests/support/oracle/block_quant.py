# SPDX-License-Identifier: Apache-2.0
"""BlockQuant in exact rational arithmetic, one block at a time."""

from fractions import Fraction
from functools import cache
from math import isfinite, isinf, isnan, nan
from typing import Any

import numpy as np

from .arrays import Operand
from .blocks import ELEMENTS, element_values, mx_scale, nearest
from .ieee import Format, is_negative

INTEGERS = {f"int{bits}": 2 ** (bits - 1) - 1 for bits in range(2, 9)}


def block_quant(x, tensor_scale=None, *, format="mxfp8", axis=-1, block_size=0):
    operand = Operand(x)
    t = operand.compute
    scales = operand.real("tensor_scale", 1.0 if tensor_scale is None else tensor_scale)
    check_call(operand.shape, tensor_scale, format, axis, block_size)
    size = block_size or (16 if format == "nvfp4" else 32)
    with np.errstate(all="ignore"):
        wide = np.moveaxis(operand.array.astype(np.float64), axis, -1)
    chosen = np.array([scales.values[place] for place in scales.places], np.float64)
    chosen = np.moveaxis(chosen.reshape(operand.shape), axis, -1)
    results = np.zeros(wide.shape, np.float64)
    for row in np.ndindex(wide.shape[:-1]):
        for start in range(0, wide.shape[-1], size):
            block = wide[row][start : start + size].tolist()
            g = float(chosen[row][start])
            results[row][start : start + size] = quantize_block(block, format, g, t)
    converted = [operand.result_format.convert(value) for value in results.ravel().tolist()]
    array = np.array(converted, np.float64).reshape(results.shape)
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(np.moveaxis(array, -1, axis)).astype(operand.dtype)


def check_call(
    shape: tuple[int, ...], tensor_scale: Any, name: str, axis: int, block_size: int
) -> None:
    rank = len(shape)
    if name not in INTEGERS and name not in ("mxint8", *ELEMENTS):
        raise ValueError(f"format {name} is unknown")
    if block_size < 0:
        raise ValueError(f"block_size must not be negative, got {block_size}")
    if not -rank <= axis < rank:
        raise ValueError(f"axis must be in a rank of {rank}, got {axis}")
    if tensor_scale is None:
        return
    if name != "nvfp4":
        raise ValueError(f"tensor_scale is for nvfp4, got {name}")
    own = np.shape(tensor_scale)
    if axis % rank - rank + len(own) >= 0 and own[axis % rank - rank] != 1:
        raise ValueError(f"tensor_scale of shape {own} varies along axis {axis}")


def quantize_block(block: list[float], name: str, g: float, t: Format) -> list[float]:
    if not all(map(isfinite, block)):
        return [nan] * len(block)
    scale = find_scale(block, name, g, t)
    return [t.multiply(round_element(t.divide(x, scale), name), scale) for x in block]


def find_scale(block: list[float], name: str, g: float, t: Format) -> float:
    amax = max(map(abs, block))
    if name in INTEGERS:
        steps = INTEGERS[name]
        most = largest_scale(steps, t)
        return min(t.divide(max(amax, steps * 2.0**-124), float(steps)), most)
    if name != "nvfp4":
        return float(mx_scale([Fraction(amax)], name, "floor"))
    s = t.divide(t.divide(amax, 6.0), g)
    s = round_element(s, "mxfp8")
    scale = t.multiply(s, g)
    return t.multiply(448.0, g) if scale == 0 else scale


def largest_scale(steps: int, t: Format) -> float:
    """Return the largest number of T whose exact product with a number of steps is finite."""
    largest = Fraction((2**t.precision - 1) * 2 ** (t.max_exponent + 1 - t.precision))
    quotient = largest / steps
    nearby = t.nearest(quotient.numerator, quotient.denominator)
    while Fraction(nearby) * steps > largest:
        nearby = float(np.nextafter(np.float32(nearby) if t.precision == 24 else nearby, 0))
    return nearby


def round_element(y: float, name: str) -> float:
    """Return y clipped and rounded to the nearest element; a zero keeps the sign."""
    if isnan(y):
        return nan
    if name in INTEGERS:
        magnitude = float(round(min(abs(y), INTEGERS[name])))
    else:
        magnitude = round_magnitude(abs(y), name)
    return -magnitude if is_negative(y) else magnitude


@cache
def round_magnitude(y: float, name: str) -> float:
    values = element_values(name)
    return float(values[-1] if isinf(y) else nearest(Fraction(y), values))
