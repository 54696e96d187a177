# SPDX-License-Identifier: Apache-2.0
"""Ranges of the inputs of a model, as users write them.

uint8           the integers of a type, int1 .. int24 and uint1 .. uint24
uint8/255       the same times float32(1/255)
int8*0.5        the same times float32(0.5)
uint8-128/127   less a zero-point, before they are scaled
-1,1            numbers from -1 to 1
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.errors import OptionError
from anybit.onnx.analysis.abstract_values import (
    AbstractValue,
    CodeRanges,
    from_codes,
    from_interval,
)
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import IntegerGrid
from anybit.text import join_names

Range: TypeAlias = str | tuple[float, float]
Ranges: TypeAlias = Mapping[str, Range] | Range
"""Ranges of inputs by name, or of the only input."""

_NUMBER = r"[0-9]*\.?[0-9]+(?:e[-+]?[0-9]{1,4})?"
_TYPE = re.compile(
    rf"(u?)int([0-9]{{1,2}})(?:-([0-9]{{1,8}}))?(?:([/*])({_NUMBER}))?", re.IGNORECASE
)
_WIDEST = 24
_FORMS = "uint8, uint8/255, int8*0.5, uint8-128/127 or -1,1"


def make_input_values(
    ranges: Ranges | None, inputs: Sequence[ir.Value]
) -> dict[str, AbstractValue]:
    """Return the abstract values of inputs by name; the name "" stands for a single input.

    Raises:
        OptionError: A name that is not an input, an input that is not float32, or an invalid range.
    """
    inputs_by_name = {str(value.name): value for value in inputs}
    abstracts = {}
    for name, spec in index_by_name(ranges).items():
        chosen = next(iter(inputs_by_name)) if not name and len(inputs_by_name) == 1 else name
        if chosen not in inputs_by_name:
            names = join_names(inputs_by_name) or "none"
            raise OptionError(
                f"input_ranges[{name!r}]: the model has no such input; inputs: {names}"
            )
        if inputs_by_name[chosen].dtype not in (None, ir.DataType.FLOAT):
            raise OptionError(
                f"input_ranges[{chosen!r}]: it is not float32, its type is its range: leave it out"
            )
        abstracts[chosen] = to_abstract_value(spec)
    return abstracts


def index_by_name(ranges: Ranges | None) -> Mapping[str, Range]:
    """Return the ranges by name; "" is the name of the only input."""
    if ranges is None:
        return {}
    return ranges if isinstance(ranges, Mapping) else {"": ranges}


def to_abstract_value(spec: Range) -> AbstractValue:
    """Return the abstract value of a range.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(spec, str):
        return _parse_interval(spec if isinstance(spec, Sequence) else (), str(spec))
    text = spec.replace(" ", "")
    matched = _TYPE.fullmatch(text)
    if matched is None:
        return _parse_interval(text.split(","), spec)
    unsigned, bits, zeropt = bool(matched[1]), int(matched[2]), int(matched[3] or 0)
    factor = np.float64(matched[5] or 1)
    if not 1 <= bits <= _WIDEST:
        raise OptionError(f"a range must be of 1 to {_WIDEST} bits, got {spec!r}")
    with np.errstate(all="ignore"):
        scale = np.float32(1 / factor if matched[4] == "/" else factor)
    lowest = 0 if unsigned else -(2 ** (bits - 1))
    codes = range(lowest, lowest + 2**bits)
    ends = np.asarray(codes[0], np.int64), np.asarray(codes[-1], np.int64)
    abstract = None
    if np.isfinite(scale) and scale > 0:
        offset = np.asarray(zeropt, np.float32)
        abstract = from_codes(CodeRanges(np.asarray(scale), offset, *ends, allowed=codes))
    if abstract is None or abstract.infinite:
        raise OptionError(f"the numbers of a range must be float32, got {spec!r}")
    return abstract


def _parse_interval(ends: Sequence[object], spec: str) -> AbstractValue:
    try:
        low, high = (float(str(end)) for end in ends)
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise OptionError(f"a range must be such as {_FORMS}, got {spec!r}")
    return from_interval(low, high)


def parse_ranges(texts: Sequence[str]) -> dict[str, str]:
    """Return the ranges by name of options NAME=RANGE, or of a single RANGE.

    Raises:
        OptionError: A name that is given twice.
    """
    specs: dict[str, str] = {}
    for text in texts:
        name, _, spec = text.rpartition("=")
        if name in specs:
            subject = f"of {name!r}" if name else "without a name"
            raise OptionError(f"a range {subject} is given twice")
        specs[name] = spec
    return specs


def describe_violation(name: str, array: Array, abstract: AbstractValue) -> str:
    """Return a sentence about the values of an input outside its range; "" if there are none."""
    inside = (array >= abstract.lowest) & (array <= abstract.highest)
    if abstract.grid is not None:
        inside &= abstract.grid.decode(encode_nearest(array, abstract.grid)) == array
    if inside.all():
        return ""
    wrong = array[~inside].flat[0]
    return f"input {name!r} holds {wrong:.9g}, outside its range"


def encode_nearest(values: Array, grid: IntegerGrid) -> Array:
    """Return the integers nearest to values; the code of 0 for NaN and infinities."""
    with np.errstate(all="ignore"):
        codes = np.rint(values.astype(np.float64) / grid.scale + grid.zeropt)
    return np.where(np.isfinite(codes), codes, grid.zeropt).astype(np.int64)
