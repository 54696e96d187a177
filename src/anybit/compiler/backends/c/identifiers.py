# SPDX-License-Identifier: Apache-2.0
"""Identifiers of C from names of a model."""

import re

from anybit.errors import OptionError

_RESERVED = """
alignas alignof and asm auto bool break case catch char class const constexpr continue
default delete do double else enum explicit export extern false float for friend goto if inline int
long main mutable namespace new not nullptr operator or private protected public register restrict
return short signed sizeof static struct switch template this throw true try typedef typename union
unsigned using virtual void volatile wchar_t while xor
"""
_HEADERS = """
arduino arm_acle assert complex ctype emmintrin errno fenv float immintrin inttypes iso646 limits
locale math pgmspace setjmp signal stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib
stdnoreturn string tgmath threads time uchar wchar wctype
"""
_TARGETS = "all clean depend help install package test"
_KEYWORDS = frozenset(_RESERVED.split())
_FILES = frozenset(f"{_HEADERS} {_TARGETS}".split())
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_LONGEST = 24
_LONGEST_NAME = 63


def check_name(name: str) -> str:
    """Return the name of a network if C, C++ and CMake can use it.

    Raises:
        OptionError: They cannot.
    """
    reserved = name in _KEYWORDS or name.startswith("layer")
    if not _IDENTIFIER.fullmatch(name) or reserved or len(name) > _LONGEST_NAME:
        raise OptionError(
            f"{name!r} cannot be the name of a C function: use letters, digits and underscores, "
            f"a letter first, at most {_LONGEST_NAME} of them, no keyword and not layer..."
        )
    if name.lower() in _FILES:
        raise OptionError(
            f"{name!r} is the name of a system header or of a target of CMake: choose another one"
        )
    return name


def make_identifier(text: str) -> str:
    """Return letters, digits and underscores for the end of any name: its most telling part."""
    parts = re.findall(r"[a-z0-9]+", text.lower(), re.ASCII)
    short = ""
    for part in reversed(parts):
        if short and len(part) + 1 + len(short) > _LONGEST:
            break
        short = f"{part}_{short}" if short else part[:_LONGEST]
    return short


def make_comment(text: str) -> str:
    """Return printable ASCII that cannot end a comment of C, nor continue a line."""
    ascii_only = re.sub(r"[^ -~]", "?", text)
    return re.sub(r"[*/\\?]{2,}", "_", ascii_only).strip("\\")
