# SPDX-License-Identifier: Apache-2.0
"""What a user says of the inputs of a model: their ranges, in a small language.

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
from anybit.onnx.analysis.carriers import Carrier, Codes, of_codes, of_interval
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import IntegerGrid
from anybit.text import listed

Range: TypeAlias = str | tuple[float, float]
Ranges: TypeAlias = Mapping[str, Range] | Range
"""What inputs hold by name, or what the only input holds."""

_NUMBER = r"[0-9]*\.?[0-9]+(?:e[-+]?[0-9]{1,4})?"
_TYPE = re.compile(
    rf"(u?)int([0-9]{{1,2}})(?:-([0-9]{{1,8}}))?(?:([/*])({_NUMBER}))?", re.IGNORECASE
)
_WIDEST = 24
_FORMS = "uint8, uint8/255, int8*0.5, uint8-128/127 or -1,1"


def carriers_of(ranges: Ranges | None, inputs: Sequence[ir.Value]) -> dict[str, Carrier]:
    """What is known of inputs by name. With one input, the name "" stands for it.

    Raises:
        OptionError: A name that is not an input, an input that does not hold float32, or a range
            that is none.
    """
    known = {str(value.name): value for value in inputs}
    found = {}
    for name, given in by_name(ranges).items():
        chosen = next(iter(known)) if not name and len(known) == 1 else name
        if chosen not in known:
            names = listed(known) or "none"
            raise OptionError(f"there is no input {name!r} to give a range; the inputs are {names}")
        if known[chosen].dtype not in (None, ir.DataType.FLOAT):
            raise OptionError(f"input {chosen!r} does not hold float32: its type is its range")
        found[chosen] = carrier_of(given)
    return found


def by_name(ranges: Ranges | None) -> Mapping[str, Range]:
    """The ranges by name; "" is that of the only input."""
    if ranges is None:
        return {}
    return ranges if isinstance(ranges, Mapping) else {"": ranges}


def carrier_of(given: Range) -> Carrier:
    """What a range says.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(given, str):
        return _between(given if isinstance(given, Sequence) else (), str(given))
    text = given.replace(" ", "")
    matched = _TYPE.fullmatch(text)
    if matched is None:
        return _between(text.split(","), given)
    unsigned, bits, zeropt = bool(matched[1]), int(matched[2]), int(matched[3] or 0)
    factor = np.float64(matched[5] or 1)
    if not 1 <= bits <= _WIDEST:
        raise OptionError(f"a range must be of 1 to {_WIDEST} bits, got {given!r}")
    with np.errstate(all="ignore"):
        scale = np.float32(1 / factor if matched[4] == "/" else factor)
    lowest = 0 if unsigned else -(2 ** (bits - 1))
    codes = range(lowest, lowest + 2**bits)
    ends = np.asarray(codes[0], np.int64), np.asarray(codes[-1], np.int64)
    found = None
    if np.isfinite(scale) and scale > 0:
        offset = np.asarray(zeropt, np.float32)
        found = of_codes(Codes(np.asarray(scale), offset, *ends, allowed=codes))
    if found is None or found.infinite:
        raise OptionError(f"the numbers of a range must be float32, got {given!r}")
    return found


def _between(ends: Sequence[object], given: str) -> Carrier:
    try:
        low, high = (float(str(each)) for each in ends)
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise OptionError(f"a range must be such as {_FORMS}, got {given!r}")
    return of_interval(low, high)


def named(texts: Sequence[str]) -> dict[str, str]:
    """The ranges of options NAME=RANGE, or of a single RANGE, by name.

    Raises:
        OptionError: A name that is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, given = text.rpartition("=")
        if name in found:
            what = f"of {name!r}" if name else "without a name"
            raise OptionError(f"a range {what} is given twice")
        found[name] = given
    return found


def beside(name: str, array: Array, carrier: Carrier) -> str:
    """What of an input's values is not what was said of it, in words; "" if all are."""
    inside = (array >= carrier.lowest) & (array <= carrier.highest)
    if carrier.grid is not None:
        inside &= carrier.grid.decode(codes_of(array, carrier.grid)) == array
    if inside.all():
        return ""
    wrong = array[~inside].flat[0]
    return f"input {name!r} holds {wrong:.9g}, which is not in the range that was given"


def codes_of(values: Array, grid: IntegerGrid) -> Array:
    """The integers that are nearest to values; where there are none, that of 0."""
    with np.errstate(all="ignore"):
        codes = np.rint(values.astype(np.float64) / grid.scale + grid.zeropt)
    return np.where(np.isfinite(codes), codes, grid.zeropt).astype(np.int64)
