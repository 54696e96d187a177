# SPDX-License-Identifier: Apache-2.0
"""Error messages for unknown names, with suggestions."""

import difflib
import re
from collections.abc import Iterable, Sequence

from anybit.quant_types.named_formats import FORMATS

_INTEGER = re.compile(r"(q?[us]|q)?(?:int|bits?|b|i)?[-_]?(\d+)[-_]?(?:bits?|b)?")
_FLOAT = re.compile(r"(?:float|fp|f)[-_]?(\d+)")
_WIDTHS = re.compile(r"(?:(?:float|fp|f)\d+[-_]?)?(e\d+m\d+)\w*")
_MAX_BITS = 32
_OTHER_NAMES = {"half": "float16", "bf16": "bfloat16", "binary": "bipolar", "sign": "bipolar"}
_BLOCKS = re.compile(r"(?:per[-_]?)?(?:group|block)(?:[-_]?(?:size|wise))?\b.*")


def describe_unknown(
    noun: str, word: str, choices: Sequence[str], suggestions: Iterable[str] = ()
) -> str:
    """Return the message for an unknown name.

    Args:
        noun: The category of the name, such as "format".
        word: The unknown name.
        choices: The accepted names.
        suggestions: Replacements to suggest; by default the closest spelling in `choices`.
    """
    likely = list(suggestions) or difflib.get_close_matches(word.lower(), choices, n=1)
    hint = " or ".join(f'"{suggestion}"' for suggestion in likely)
    question = f"did you mean {hint}? " if likely else ""
    return f'unknown {noun} "{word}"; {question}known: {", ".join(choices)}'


def suggest_formats(word: str) -> list[str]:
    """Return the formats that other tools call by this name.

    >>> suggest_formats("INT8"), suggest_formats("4bit"), suggest_formats("fp8")
    (['int8'], ['int4'], ['float8_e4m3fn', 'float8_e5m2'])
    """
    plain = word.lower()
    if plain in FORMATS or plain in _OTHER_NAMES:
        return [_OTHER_NAMES.get(plain, plain)]
    if integer := _INTEGER.fullmatch(plain):
        bits, unsigned = int(integer[2]), "u" if "u" in (integer[1] or "") else ""
        if bits == 1 and not unsigned:
            return ["bipolar", "uint1"]
        return [f"{unsigned}int{bits}"] if 1 <= bits <= _MAX_BITS else []
    return suggest_float_formats(plain)


def suggest_float_formats(word: str) -> list[str]:
    """Return the float formats that other tools call by this name.

    >>> suggest_float_formats("E4M3FN"), suggest_float_formats("fp16")
    (['float8_e4m3fn'], ['float16'])
    """
    plain = word.lower()
    if widths := _WIDTHS.fullmatch(plain):
        alike = [name for name in FORMATS if f"_{widths[1]}" in name]
        return [plain] if plain == widths[1] else alike or [widths[1]]
    if number := _FLOAT.fullmatch(plain):
        as_wide = [name for name, format in FORMATS.items() if format.bits == int(number[1])]
        return [f"float{number[1]}"] if f"float{number[1]}" in as_wide else as_wide
    return []


def suggest_options(word: str, choices: Sequence[str]) -> list[str]:
    """Return the options of a spec that other tools call by this name.

    >>> suggest_options("group-size", ("narrow", "per-block NUMBER"))
    ['per-block NUMBER']
    """
    is_block_option = _BLOCKS.fullmatch(word.lower()) is not None
    return [choice for choice in choices if is_block_option and choice.startswith("per-block")]
