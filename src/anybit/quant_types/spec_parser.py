# SPDX-License-Identifier: Apache-2.0
"""Grammar of format specs: a kind, followed by optional words.

Kinds:
    intN, uintN: integers of N bits.
    ternary: int2 narrow, that is -1, 0 and 1.
    bipolar: -1 and 1.
    float8_e4m3fn, ...: a format of `anybit.formats`; fp8_e4m3 for short.
    eXmY: X exponent and Y mantissa bits, without reserved codes.
    mxfp8, mxfp6, mxfp4, mxint8, nvfp4: block formats.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from anybit.formats import FloatFormat
from anybit.quant_types.block_formats import BLOCK_FORMATS, BlockFormat
from anybit.quant_types.named_formats import FORMATS, SHORT_NAMES, find_format
from anybit.quant_types.suggestions import describe_unknown, suggest_formats, suggest_options


@dataclass(frozen=True)
class IntegerFormat:
    """The kind intN or uintN."""

    bits: int
    signed: bool

    def __str__(self) -> str:
        return f"{'' if self.signed else 'u'}int{self.bits}"


@dataclass(frozen=True)
class BipolarFormat:
    """The kind bipolar: -1 and 1."""

    bits: int = 1

    def __str__(self) -> str:
        return "bipolar"


NumberFormat: TypeAlias = IntegerFormat | BipolarFormat | FloatFormat | BlockFormat
SpecOptions: TypeAlias = dict[str, Any]

COMMON_OPTIONS: Mapping[str, SpecOptions] = {
    "per-tensor": {"granularity": "per-tensor"},
    "per-channel": {"granularity": "per-channel"},
    "narrow": {"narrow": True},
    "power-of-two": {"power_of_two": True},
}
"""Words that may follow a kind in every command, and the options they set."""

PER_BLOCK = "per-block"
"""A word that is followed by the number of elements."""

_KINDS = ("int4", "uint4", "ternary", "bipolar", "e4m3", *SHORT_NAMES, *FORMATS, *BLOCK_FORMATS)


def parse_format_spec(
    words: str, vocabulary: Mapping[str, SpecOptions], numbers: tuple[str, ...] = ()
) -> tuple[NumberFormat, SpecOptions]:
    """Parse a format spec into its kind and its options.

    Args:
        words: A spec such as "int4 per-channel narrow".
        vocabulary: The words that may follow the kind, with the options they set.
        numbers: Options that take a number, as `scale=0.5`.

    Raises:
        ValueError: A word is unknown, or two words set the same option.

    >>> read("ternary per-channel", COMMON)
    (Integers(bits=2, signed=True), {'narrow': True, 'granularity': 'per-channel'})
    """
    kind, *others = re.sub(rf"\b{PER_BLOCK}[ =]+", f"{PER_BLOCK}=", words).split() or [""]
    options: SpecOptions = {}
    for word in others:
        option = _option(word, words, vocabulary, numbers)
        repeated = options.keys() & option.keys()
        if repeated:
            raise ValueError(f"{words!r} says {repeated.pop()} twice")
        options |= option
    try:
        return _kind(kind, options)
    except ValueError as error:
        raise ValueError(f"{words!r}: {error}") from None


def _option(
    word: str, words: str, vocabulary: Mapping[str, SpecOptions], numbers: tuple[str, ...]
) -> SpecOptions:
    if word in vocabulary:
        return vocabulary[word]
    name, separator, number = word.partition("=")
    if name == PER_BLOCK:
        if not re.fullmatch(r"[1-9]\d{0,8}", number):
            raise ValueError(
                f'{words!r}: how many elements has a block? Say "{PER_BLOCK} 32", for example'
            )
        return {"granularity": PER_BLOCK, "block_size": int(number)}
    if separator and name in numbers:
        try:
            return {name: float(number)}
        except ValueError:
            raise ValueError(f"{word!r} in {words!r}: the {name} must be a number") from None
    choices = [*vocabulary, f"{PER_BLOCK} NUMBER", *(f"{option}=NUMBER" for option in numbers)]
    message = describe_unknown("word", word, choices, suggest_options(word, choices))
    raise ValueError(f"{message}, in {words!r}")


def _kind(kind: str, options: SpecOptions) -> tuple[NumberFormat, SpecOptions]:
    if integer := re.fullmatch(r"(u?)int(\d{1,4})", kind):
        return IntegerFormat(int(integer[2]), not integer[1]), options
    if kind == "ternary":
        return IntegerFormat(2, True), {"narrow": True, **options}
    if "narrow" in options:
        raise ValueError(f"narrow is for integers, not for {kind}")
    if kind == "bipolar":
        return BipolarFormat(), options
    if format := BLOCK_FORMATS.get(kind) or find_format(kind):
        return format, options
    raise ValueError(describe_unknown("kind", kind, _KINDS, suggest_formats(kind)))
