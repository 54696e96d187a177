# SPDX-License-Identifier: Apache-2.0
"""What is said about a word that is not known: what may be meant, and what there is."""

import difflib
import re
from collections.abc import Iterable, Sequence

from anybit.words.named_formats import FORMATS

_INTEGER = re.compile(r"(q?[us]|q)?(?:int|bits?|b|i)?[-_]?(\d+)[-_]?(?:bits?|b)?")
_FLOAT = re.compile(r"(?:float|fp|f)[-_]?(\d+)")
_WIDTHS = re.compile(r"(?:(?:float|fp|f)\d+[-_]?)?(e\d+m\d+)\w*")
_MOST_BITS = 32
_OTHER_NAMES = {"half": "float16", "bf16": "bfloat16", "binary": "bipolar", "sign": "bipolar"}
_BLOCKS = re.compile(r"(?:per[-_]?)?(?:group|block)(?:[-_]?(?:size|wise))?\b.*")


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
        bits, unsigned = int(integer[2]), "u" if "u" in (integer[1] or "") else ""
        if bits == 1 and not unsigned:
            return ["bipolar", "uint1"]
        return [f"{unsigned}int{bits}"] if 1 <= bits <= _MOST_BITS else []
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


def details_meant(word: str, known: Sequence[str]) -> list[str]:
    """The words behind a kind that are called so elsewhere.

    >>> details_meant("group-size", ("narrow", "per-block NUMBER"))
    ['per-block NUMBER']
    """
    blocks = _BLOCKS.fullmatch(word.lower())
    return [each for each in known if blocks and each.startswith("per-block")]
