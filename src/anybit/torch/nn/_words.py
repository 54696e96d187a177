# SPDX-License-Identifier: Apache-2.0
"""Quantizers in words: `int4 per-channel narrow`."""

import re
from typing import Any

from anybit.torch.nn._formats import FORMATS, format_named
from anybit.torch.nn._meant import kinds_meant, unknown
from anybit.torch.nn._quantizer import Quantizer
from anybit.torch.nn._quantizers import BipolarQuantizer, FloatQuantizer, IntQuantizer
from anybit.torch.nn._scales import AccumulatorScale, Scale
from anybit.torch.nn._stored_scales import EmaScale, FixedScale, LearnedScale

_KINDS = ("int4", "uint4", "ternary", "bipolar", "e4m3", *FORMATS)
_WORDS: dict[str, dict[str, Any]] = {
    "per-tensor": {"granularity": "per-tensor"},
    "per-channel": {"granularity": "per-channel"},
    "narrow": {"narrow": True},
    "power-of-two": {"power_of_two": True},
    **{name: {"scale": name} for name in ("learned", "absmax", "absmean", "ema", "accumulator")},
}


def quantizer(words: str) -> Quantizer:
    """The quantizer that the words describe: its kind, and then what else is to be said, if any.

    Kinds: intN and uintN for N bits, ternary (int2 narrow: -1, 0 and 1), bipolar (-1 and 1), a
    format of `anybit.formats` (float8_e4m3fn) and eXmY for X exponent and Y mantissa bits without
    reserved codes.

    Words: per-tensor or per-channel; narrow; power-of-two; learned, absmax, absmean (bipolar),
    ema, accumulator (bias) or scale=NUMBER. Without them: per-tensor learned.

    Raises:
        ValueError: A word that is not known or does not fit the kind.

    >>> quantizer("int4 per-channel narrow absmax")
    IntQuantizer(
      4, signed=True, narrow=True, zeropt=0, rounding_mode='ROUND'
      (scale): AbsmaxScale(per-channel)
    )
    """
    kind, *others = words.split() or [""]
    options: dict[str, Any] = {}
    for word in others:
        option = _option(word, words)
        twice = options.keys() & option.keys()
        if twice:
            raise ValueError(f"{words!r} says {twice.pop()} twice")
        options |= option
    try:
        return _of_kind(kind, options)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{words!r}: {error}") from None


def _option(word: str, words: str) -> dict[str, Any]:
    if word in _WORDS:
        return _WORDS[word]
    if word.startswith("scale="):
        try:
            return {"scale": float(word.removeprefix("scale="))}
        except ValueError:
            raise ValueError(f"{word!r} in {words!r}: the scale must be a number") from None
    raise ValueError(unknown("word", word, [*_WORDS, "scale=NUMBER"]) + f", in {words!r}")


def _of_kind(kind: str, options: dict[str, Any]) -> Quantizer:
    if integer := re.fullmatch(r"(u?)int(\d+)", kind):
        return IntQuantizer(int(integer[2]), signed=not integer[1], **options)
    if kind == "ternary":
        return IntQuantizer(2, **{**options, "narrow": True})
    if "narrow" in options:
        raise ValueError(f"narrow is for integers, not for {kind}")
    if kind == "bipolar":
        return BipolarQuantizer(**options)
    if format := format_named(kind):
        return FloatQuantizer(format, **options)
    raise ValueError(unknown("kind", kind, _KINDS, kinds_meant(kind)))


def words(quantizer: Quantizer) -> str:
    """The quantizer in words. Zero-points and rounding modes are said too, if they are unusual.

    >>> words(quantizer("uint4 ema"))
    'uint4 ema'
    """
    said = [_kind(quantizer)]
    if isinstance(quantizer, IntQuantizer):
        said += ["narrow"] * quantizer.narrow
        said += [f"zeropt={quantizer.zeropt}"] * (quantizer.zeropt != 0)
    scale = quantizer.scale
    said += ["per-channel"] * scale.layout.per_channel
    said += ["power-of-two"] * scale.power_of_two
    mode = getattr(quantizer, "rounding_mode", "ROUND")
    said += [mode.lower()] * (mode != "ROUND")
    return " ".join([*said, _policy(scale)])


def _kind(quantizer: Quantizer) -> str:
    if isinstance(quantizer, IntQuantizer):
        return f"{'' if quantizer.signed else 'u'}int{quantizer.bits}"
    if isinstance(quantizer, FloatQuantizer):
        return str(quantizer.format)
    return "bipolar" if isinstance(quantizer, BipolarQuantizer) else type(quantizer).__name__


def _policy(scale: Scale) -> str:
    if isinstance(scale, FixedScale):
        value = scale.known()
        return "fixed" if value.ndim else f"scale={float(value):g}"
    names = {LearnedScale: "learned", EmaScale: "ema", AccumulatorScale: "accumulator"}
    return names.get(type(scale), "absmean" if scale.reach.by_mean else "absmax")
