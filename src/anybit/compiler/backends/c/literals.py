# SPDX-License-Identifier: Apache-2.0
"""Numbers as constant expressions of C, casts and parentheses."""

import re

import numpy as np


def format_integer(number: int) -> str:
    """Return a constant expression for an integer of at most 64 bits.

    C gives a decimal constant the first of int, long and long long that holds it.
    """
    return f"({number + 1} - 1)" if number in (-(2**31), -(2**63)) else str(number)


def parse_integer(text: str) -> int:
    """Return the integer of a constant expression from format_integer."""
    return int(text[1:].split()[0]) - 1 if text.startswith("(") else int(text)


def format_offset(count: int, channels: int) -> str:
    """Return the place of a channel's first number; 16 bits of an int may not hold it."""
    cast = "(int32_t)" if count * channels >= 2**15 else ""
    return "channel" if count == 1 else f"channel * {cast}{count}"


def format_float(number: float) -> str:
    """Return a constant expression for a float32 number, exact to the bit."""
    if np.isnan(number):
        return "(0.0f / 0.0f)"
    if np.isinf(number):
        return "(1.0f / 0.0f)" if number > 0 else "(-1.0f / 0.0f)"
    text = f"{number:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def parenthesize(text: str) -> str:
    """Return an expression in parentheses, unless it is a name or a number."""
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def cast(ctype: str, text: str) -> str:
    """Return an expression converted to a type."""
    return f"({ctype}){parenthesize(text)}"
