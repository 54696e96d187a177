# SPDX-License-Identifier: Apache-2.0
"""Format specs of quantizers: `int4 per-channel narrow`."""

from typing import Any

from anybit.quant_types.block_formats import BlockFormat
from anybit.quant_types.spec_parser import (
    COMMON_OPTIONS,
    PER_BLOCK,
    BipolarFormat,
    IntegerFormat,
    NumberFormat,
    parse_format_spec,
)
from anybit.torch.nn._dynamic_scale import DynamicScale
from anybit.torch.nn._quantizers import BipolarQuantizer, FloatQuantizer, IntQuantizer, Quantizer
from anybit.torch.nn._scales import AccumulatorScale, EmaScale, FixedScale, LearnedScale, Scale

_SCALES = ("learned", "absmax", "absmean", "ema", "accumulator", "dynamic")
_WORDS = {**COMMON_OPTIONS, **{name: {"scale": name} for name in _SCALES}}


def quantizer(words: str) -> Quantizer:
    """Create a quantizer from a format spec: its format, then options.

    Formats: intN and uintN for N bits, ternary (int2 narrow: -1, 0 and 1), bipolar (-1 and 1), a
    format of `anybit.formats` (float8_e4m3fn, or fp8_e4m3 for short) and eXmY for X exponent and Y
    mantissa bits without reserved codes.

    Options: per-tensor or per-channel; narrow; power-of-two; learned, absmax, absmean (bipolar),
    ema, accumulator (bias), dynamic (activations in integers; per row by default) or scale=NUMBER.
    Default: per-tensor learned.

    Raises:
        ValueError: An unknown word, or an option that does not apply to the format.

    >>> quantizer("int4 per-channel narrow absmax")
    IntQuantizer(
      4, signed=True, narrow=True, zeropt=0, rounding_mode='ROUND'
      (scale): AbsmaxScale(per-channel)
    )
    """
    kind, options = parse_format_spec(words, _WORDS, ("scale",))
    try:
        return _make_quantizer(kind, options)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{words!r}: {error}") from None


def _make_quantizer(kind: NumberFormat, options: dict[str, Any]) -> Quantizer:
    if isinstance(kind, BlockFormat) or options.get("granularity") == PER_BLOCK:
        raise ValueError(
            'block scales cannot be trained; use "per-channel", or give the float model to '
            "`anybit quantize`"
        )
    match kind:
        case IntegerFormat():
            if options.get("scale") == "dynamic":
                options = {"granularity": "per-row", **options}
            return IntQuantizer(kind.bits, signed=kind.signed, **options)
        case BipolarFormat():
            return BipolarQuantizer(**options)
        case _:
            return FloatQuantizer(kind, **options)


def format_spec(quantizer: Quantizer) -> str:
    """Return the format spec of a quantizer, with unusual zero-points and rounding modes.

    >>> format_spec(quantizer("uint4 ema"))
    'uint4 ema'
    """
    spec = [_format_kind(quantizer)]
    if isinstance(quantizer, IntQuantizer):
        spec += ["narrow"] * quantizer.narrow
        spec += [f"zeropt={quantizer.zeropt}"] * (quantizer.zeropt != 0)
    scale = quantizer.scale
    spec += ["per-channel"] * scale.layout.per_channel
    spec += ["per-tensor"] * (isinstance(scale, DynamicScale) and not scale.layout.per_row)
    spec += ["power-of-two"] * scale.power_of_two
    mode = getattr(quantizer, "rounding_mode", "ROUND")
    spec += [mode.lower()] * (mode != "ROUND")
    return " ".join([*spec, _format_policy(scale)])


def _format_kind(quantizer: Quantizer) -> str:
    if isinstance(quantizer, IntQuantizer):
        return f"{'' if quantizer.signed else 'u'}int{quantizer.bits}"
    if isinstance(quantizer, FloatQuantizer):
        return str(quantizer.format)
    return "bipolar" if isinstance(quantizer, BipolarQuantizer) else type(quantizer).__name__


def _format_policy(scale: Scale) -> str:
    if isinstance(scale, FixedScale):
        value = scale.stored()
        return "fixed" if value.ndim else f"scale={float(value):g}"
    names: dict[type[Scale], str] = {
        LearnedScale: "learned",
        EmaScale: "ema",
        AccumulatorScale: "accumulator",
        DynamicScale: "dynamic",
    }
    return names.get(type(scale), "absmean" if scale.value_range.by_mean else "absmax")
