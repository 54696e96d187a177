# SPDX-License-Identifier: Apache-2.0
"""Grammar of format specs: a format, followed by options.

Formats:
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
from difflib import get_close_matches
from typing import Any, TypeAlias

from anybit.formats import FloatFormat
from anybit.quant_types.block_formats import BLOCK_FORMATS, BlockFormat
from anybit.quant_types.named_formats import FORMATS, SHORT_NAMES, find_format
from anybit.quant_types.suggestions import describe_unknown, suggest_formats, suggest_options


@dataclass(frozen=True)
class IntegerFormat:
    """The format intN or uintN."""

    bits: int
    signed: bool

    def __str__(self) -> str:
        return f"{'' if self.signed else 'u'}int{self.bits}"


@dataclass(frozen=True)
class BipolarFormat:
    """The format bipolar: -1 and 1."""

    bits: int = 1

    def __str__(self) -> str:
        return "bipolar"


NumberFormat: TypeAlias = IntegerFormat | BipolarFormat | FloatFormat | BlockFormat
FormatOptions: TypeAlias = dict[str, Any]

COMMON_OPTIONS: Mapping[str, FormatOptions] = {
    "per-tensor": {"granularity": "per-tensor"},
    "per-channel": {"granularity": "per-channel"},
    "narrow": {"narrow": True},
    "power-of-two": {"power_of_two": True},
}
"""Options of every command, with the parameters that they set."""

PER_BLOCK = "per-block"
"""An option that is followed by the number of elements."""

_FORMAT_EXAMPLES = (
    *("intN", "uintN", "ternary", "bipolar", "eXmY", *SHORT_NAMES, *BLOCK_FORMATS),
    "the formats of anybit.formats",
)
_FORMAT_NAMES = (
    *("int4", "uint4", "ternary", "bipolar", "e4m3", *SHORT_NAMES, *FORMATS, *BLOCK_FORMATS),
)


def parse_format_spec(
    text: str, vocabulary: Mapping[str, FormatOptions], numeric: tuple[str, ...] = ()
) -> tuple[NumberFormat, FormatOptions]:
    """Parse a format spec into its format and its parameters.

    Args:
        text: A spec such as "int4 per-channel narrow".
        vocabulary: The options, with the parameters that they set.
        numeric: Options that take a number, such as `scale=0.5`.

    Raises:
        ValueError: The format or an option is unknown, or two options set the same parameter.

    >>> parse_format_spec("ternary per-channel", COMMON_OPTIONS)
    (IntegerFormat(bits=2, signed=True), {'narrow': True, 'granularity': 'per-channel'})
    """
    name, *words = re.sub(rf"\b{PER_BLOCK}[ =]+", f"{PER_BLOCK}=", text).split() or [""]
    parameters: FormatOptions = {}
    for word in words:
        option = _parse_option(word, text, vocabulary, numeric)
        repeated = parameters.keys() & option.keys()
        if repeated:
            raise ValueError(f"{text!r} sets {repeated.pop()} twice")
        parameters |= option
    try:
        return _parse_format(name, parameters)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def _parse_option(
    word: str, text: str, vocabulary: Mapping[str, FormatOptions], numeric: tuple[str, ...]
) -> FormatOptions:
    if word in vocabulary:
        return vocabulary[word]
    name, separator, number = word.partition("=")
    if name == PER_BLOCK:
        if not re.fullmatch(r"[1-9]\d{0,8}", number):
            raise ValueError(
                f'{text!r}: {PER_BLOCK} needs the number of elements, such as "{PER_BLOCK} 32"'
            )
        return {"granularity": PER_BLOCK, "block_size": int(number)}
    if separator and name in numeric:
        try:
            return {name: float(number)}
        except ValueError:
            raise ValueError(f"{text!r}: {word!r}: the {name} must be a number") from None
    choices = [*vocabulary, f"{PER_BLOCK} NUMBER", *(f"{option}=NUMBER" for option in numeric)]
    message = describe_unknown("word", word, choices, suggest_options(word, choices))
    raise ValueError(f"{text!r}: {message}")


def _parse_format(name: str, parameters: FormatOptions) -> tuple[NumberFormat, FormatOptions]:
    if integer := re.fullmatch(r"(u?)int(\d{1,4})", name):
        return IntegerFormat(int(integer[2]), not integer[1]), parameters
    if name == "ternary":
        return IntegerFormat(2, True), {"narrow": True, **parameters}
    if "narrow" in parameters:
        raise ValueError(f"narrow is for integers, not for {name}")
    if name == "bipolar":
        return BipolarFormat(), parameters
    if number_format := BLOCK_FORMATS.get(name) or find_format(name):
        return number_format, parameters
    suggestions = suggest_formats(name) or get_close_matches(name.lower(), _FORMAT_NAMES, n=1)
    raise ValueError(describe_unknown("format", name, _FORMAT_EXAMPLES, suggestions))
