# SPDX-License-Identifier: Apache-2.0
"""What words say of a quantizer: its kind first, and then what else is to be said, if any.

Kinds: intN and uintN for N bits, ternary (int2 narrow: -1, 0 and 1), bipolar (-1 and 1), a format
of `anybit.formats` (float8_e4m3fn, or fp8_e4m3 for short) and eXmY for X exponent and Y mantissa
bits without reserved codes; mxfp8, mxfp6, mxfp4, mxint8 and nvfp4, whose elements share scales.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from anybit.formats import FloatFormat
from anybit.words.block_formats import BLOCK_FORMATS, BlockFormat
from anybit.words.meant import details_meant, kinds_meant, unknown
from anybit.words.named_formats import FORMATS, SHORT_NAMES, format_named


@dataclass(frozen=True)
class Integers:
    """intN or uintN."""

    bits: int
    signed: bool

    def __str__(self) -> str:
        return f"{'' if self.signed else 'u'}int{self.bits}"


@dataclass(frozen=True)
class Signs:
    """bipolar: -1 and 1."""

    bits: int = 1

    def __str__(self) -> str:
        return "bipolar"


Kind: TypeAlias = Integers | Signs | FloatFormat | BlockFormat
Options: TypeAlias = dict[str, Any]

COMMON: Mapping[str, Options] = {
    "per-tensor": {"granularity": "per-tensor"},
    "per-channel": {"granularity": "per-channel"},
    "narrow": {"narrow": True},
    "power-of-two": {"power_of_two": True},
}
"""The words that stand behind a kind everywhere, and the options that they are."""

PER_BLOCK = "per-block"
"""A word with the number of elements behind it."""

_KINDS = ("int4", "uint4", "ternary", "bipolar", "e4m3", *SHORT_NAMES, *FORMATS, *BLOCK_FORMATS)


def read(
    words: str, known: Mapping[str, Options], numbers: tuple[str, ...] = ()
) -> tuple[Kind, Options]:
    """The kind that the words begin with, and the options that the others are.

    Args:
        words: Such as "int4 per-channel narrow".
        known: The words that may stand behind the kind, with the options that each is.
        numbers: Options that take a number, as `scale=0.5`.

    Raises:
        ValueError: A word that is not known, or says again what another has said.

    >>> read("ternary per-channel", COMMON)
    (Integers(bits=2, signed=True), {'narrow': True, 'granularity': 'per-channel'})
    """
    kind, *others = re.sub(rf"\b{PER_BLOCK}[ =]+", f"{PER_BLOCK}=", words).split() or [""]
    said: Options = {}
    for word in others:
        option = _option(word, words, known, numbers)
        twice = said.keys() & option.keys()
        if twice:
            raise ValueError(f"{words!r} says {twice.pop()} twice")
        said |= option
    try:
        return _kind(kind, said)
    except ValueError as error:
        raise ValueError(f"{words!r}: {error}") from None


def _option(
    word: str, words: str, known: Mapping[str, Options], numbers: tuple[str, ...]
) -> Options:
    if word in known:
        return known[word]
    name, separator, number = word.partition("=")
    if name == PER_BLOCK:
        if not re.fullmatch(r"[1-9]\d{0,8}", number):
            raise ValueError(
                f'{words!r}: how many elements has a block? Say "{PER_BLOCK} 32", for example'
            )
        return {"granularity": PER_BLOCK, "block": int(number)}
    if separator and name in numbers:
        try:
            return {name: float(number)}
        except ValueError:
            raise ValueError(f"{word!r} in {words!r}: the {name} must be a number") from None
    there = [*known, f"{PER_BLOCK} NUMBER", *(f"{each}=NUMBER" for each in numbers)]
    raise ValueError(unknown("word", word, there, details_meant(word, there)) + f", in {words!r}")


def _kind(kind: str, said: Options) -> tuple[Kind, Options]:
    if integer := re.fullmatch(r"(u?)int(\d{1,4})", kind):
        return Integers(int(integer[2]), not integer[1]), said
    if kind == "ternary":
        return Integers(2, True), {"narrow": True, **said}
    if "narrow" in said:
        raise ValueError(f"narrow is for integers, not for {kind}")
    if kind == "bipolar":
        return Signs(), said
    if format := BLOCK_FORMATS.get(kind) or format_named(kind):
        return format, said
    raise ValueError(unknown("kind", kind, _KINDS, kinds_meant(kind)))
