# SPDX-License-Identifier: Apache-2.0
"""Floating-point formats by name."""

import re

from anybit import formats
from anybit.formats import FloatFormat

FORMATS = {str(value): value for value in vars(formats).values() if isinstance(value, FloatFormat)}

SHORT_NAMES = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
"""Short names of the most common formats, listed in messages."""


def find_format(name: str) -> FloatFormat | None:
    """Return the format with a name of `anybit.formats`, or with the widths eXmY; None if neither.

    fpN_eXmY is short for the format of N bits with eXmY in its name.

    >>> find_format("e2m3")
    FloatFormat(exponent_bitwidth=2, mantissa_bitwidth=3, exponent_bias=1, max_val=7.5, name='e2m3')
    >>> str(find_format("fp8_e4m3"))
    'float8_e4m3fn'
    """
    if short := re.fullmatch(r"fp(\d+_e\d+m\d+)", name):
        return next((format for key, format in FORMATS.items() if f"float{short[1]}" in key), None)
    if widths := re.fullmatch(r"e(\d+)m(\d+)", name):
        return FloatFormat(int(widths[1]), int(widths[2]), name=name)
    return FORMATS.get(name)
