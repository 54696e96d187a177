# SPDX-License-Identifier: Apache-2.0
"""What is said about a word that is not known: what may be meant, and what there is."""

import difflib
import re
from collections.abc import Iterable, Sequence

from anybit.words.named_formats import FORMATS

_INTEGER = re.compile(r"(u|s|q)?(?:int|bits?|b|i)?[-_]?(\d+)[-_]?(?:bits?|b)?")
_FLOAT = re.compile(r"(?:float|fp|f)[-_]?(\d+)")
_WIDTHS = re.compile(r"(?:(?:float|fp|f)\d+[-_]?)?(e\d+m\d+)\w*")
_MOST_BITS = 32
_OTHER_NAMES = {"half": "float16", "bf16": "bfloat16", "binary": "bipolar", "sign": "bipolar"}


def unknown(what: str, word: str, known: Sequence[str], meant: Iterable[str] = ()) -> str:
    """That there is no such word; those that may be `meant`, else the one written most alike."""
    found = list(meant) or difflib.get_close_matches(word.lower(), known, n=1)
    hint = " or ".join(f'"{each}"' for each in found)
    asked = f"did you mean {hint}? " if found else ""
    return f'unknown {what} "{word}"; {asked}known: {", ".join(known)}'


def kinds_meant(word: str) -> list[str]:
    """The kinds that are called so elsewhere.

    >>> kinds_meant("INT8"), kinds_meant("4bit"), kinds_meant("fp8")
    (['int8'], ['int4'], ['float8_e4m3fn', 'float8_e5m2'])
    """
    plain = word.lower()
    if plain in FORMATS or plain in _OTHER_NAMES:
        return [_OTHER_NAMES.get(plain, plain)]
    if integer := _INTEGER.fullmatch(plain):
        unsigned = "u" if integer[1] == "u" else ""
        return [f"{unsigned}int{integer[2]}"] if 1 <= int(integer[2]) <= _MOST_BITS else []
    return formats_meant(plain)


def formats_meant(word: str) -> list[str]:
    """The formats that are called so elsewhere.

    >>> formats_meant("E4M3FN"), formats_meant("fp16")
    (['float8_e4m3fn'], ['float16'])
    """
    plain = word.lower()
    if widths := _WIDTHS.fullmatch(plain):
        alike = [name for name in FORMATS if f"_{widths[1]}" in name]
        return [plain] if plain == widths[1] else alike or [widths[1]]
    if number := _FLOAT.fullmatch(plain):
        as_wide = [name for name, each in FORMATS.items() if each.bits == int(number[1])]
        return [f"float{number[1]}"] if f"float{number[1]}" in as_wide else as_wide
    return []
