# SPDX-License-Identifier: Apache-2.0
"""Quantizer specs of post-training quantization: `int4 per-channel narrow`."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from anybit.errors import OptionError
from anybit.quant_types.block_formats import BlockFormat, ScaleRule
from anybit.quant_types.spec_parser import (
    COMMON_OPTIONS,
    PER_BLOCK,
    FormatOptions,
    IntegerFormat,
    NumberFormat,
    parse_format_spec,
)

SpecRole: TypeAlias = Literal["weights", "activations"]
"""Tensors that a quantizer is for."""

_VOCABULARY = {
    **COMMON_OPTIONS,
    "asymmetric": {"asymmetric": True},
    "dynamic": {"dynamic": True},
    **{str(rule): {"scale_rule": rule} for rule in ScaleRule},
}
_MAX_BITS = 16
# An alias of int2 narrow, which reports keep.
_TERNARY = "ternary"
_FLOAT_SCALE_BITS, _BYTE_SCALE_BITS = 32, 8
_POWER_RULES = (ScaleRule.MSE, ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN)
_PRODUCT_RULES = (ScaleRule.MSE, ScaleRule.ABSMAX)


@dataclass(frozen=True)
class QuantSpec:
    """Format and granularity of a quantizer, without its scale.

    Attributes:
        format: Format of the codes.
        text: Spec that this was parsed from.
        per_channel: Whether each channel has its own scale.
        narrow: Whether the lowest code is left out; the highest one of unsigned integers.
        power_of_two: Whether scales are powers of two.
        asymmetric: Whether integers have a zero-point.
        block_size: Number of elements that share a scale; 0 without blocks.
        scale_rule: Rule for the scale of a block in MX or NVFP4.
        dynamic: Whether scales are computed from the tensor at run time.
        per_row: Whether each row of a dynamic tensor has its own scale, not only each block.
    """

    format: NumberFormat
    text: str
    per_channel: bool = False
    narrow: bool = False
    power_of_two: bool = False
    asymmetric: bool = False
    block_size: int = 0
    scale_rule: ScaleRule = ScaleRule.MSE
    dynamic: bool = False
    per_row: bool = False

    @property
    def bits(self) -> int:
        """Width of a code."""
        return self.format.bits

    @property
    def scale_bits(self) -> int:
        """Width of the scale of a block and of its zero-point."""
        if isinstance(self.format, BlockFormat):
            return _BYTE_SCALE_BITS
        return _FLOAT_SCALE_BITS + (self.bits if self.asymmetric else 0)

    def describe(self, default: str) -> str:
        """Return the spec with the full name of its format, without the default option.

        The default of dynamic integers is another one, so that their options are complete.

        >>> parse_quant_spec("fp8_e4m3 per-tensor", "activations").describe("per-tensor")
        'float8_e4m3fn'
        """
        first, *options = self.text.split()
        name = first if first == _TERNARY else str(self.format)
        default = "" if self.dynamic else default
        return " ".join([name, *(option for option in options if option != default)])


def parse_quant_spec(text: str, role: SpecRole, label: str | None = None) -> QuantSpec:
    """Parse a quantizer spec such as "int4 per-channel narrow".

    Unsigned integers are asymmetric: they have a zero-point. Signed weights are narrow, except in
    blocks and with a zero-point.

    Args:
        text: A format, then per-tensor, per-channel, per-block N, narrow, power-of-two, asymmetric
            or dynamic. MX formats take floor, ceil, even or mse; nvfp4 takes absmax or mse.
        role: "weights", which are per-channel and symmetric by default, or "activations", which
            are per-tensor, and per row if dynamic.
        label: Text before the spec in messages (default: the role as a parameter).

    Raises:
        OptionError: An unknown word, or one that does not fit the format or the role.

    >>> parse_quant_spec("uint8", "activations").asymmetric
    True
    >>> parse_quant_spec("int4", "weights").per_channel
    True
    """
    label = f"{role}=" if label is None else label
    try:
        number_format, options = parse_format_spec(text, _VOCABULARY)
    except ValueError as error:
        raise OptionError(f"{label}{error}") from None
    where = f"{label}{text!r}"
    granularity = options.pop("granularity", "")
    weights = role == "weights"
    if granularity == "per-channel" and not weights:
        raise OptionError(
            f"{where}: the terms of a sum need one scale, and channels of activations are summed; "
            'use "per-tensor"'
        )
    if isinstance(number_format, BlockFormat):
        others = [option for option in options if option != "scale_rule"]
        if word := granularity or (others[0].replace("_", "-") if others else ""):
            raise OptionError(
                f"{where}: {number_format} defines its scales and codes itself; leave out {word!r}"
            )
        chosen = _choose_scale_rule(number_format, options, role, where)
        return QuantSpec(
            number_format,
            text,
            block_size=number_format.size,
            scale_rule=chosen,
            dynamic=not weights,
        )
    if "scale_rule" in options:
        raise OptionError(
            f"{where}: {options['scale_rule']} is for MX and NVFP4, not for {number_format}"
        )
    if granularity == PER_BLOCK and not weights:
        raise OptionError(
            f'{where}: blocks of activations need an MX format; use "mxint8" or "mxfp8"'
        )
    spec = QuantSpec(number_format, text, weights and granularity != "per-tensor", **options)
    if spec.dynamic:
        _check_dynamic(spec, weights, where)
        spec = replace(spec, per_row=granularity != "per-tensor")
    return _complete_integers(spec, weights, where)


def _check_dynamic(spec: QuantSpec, weights: bool, where: str) -> None:
    """Check that scales can be computed at run time.

    Raises:
        OptionError: They cannot, for the role, the format or an option.
    """
    if weights:
        raise OptionError(
            f'{where}: weights are constant, and so are their scales; leave out "dynamic"'
        )
    if not isinstance(spec.format, IntegerFormat):
        raise OptionError(
            f'{where}: dynamic is for integers, not for {spec.format}; use "int8 dynamic" or '
            '"mxfp8"'
        )
    if spec.bits < 2:
        raise OptionError(f"{where}: dynamic integers need 2 bits or more")
    if spec.power_of_two:
        raise OptionError(
            f'{where}: dynamic scales are not powers of two; use "mxint8", whose scales are'
        )


def _choose_scale_rule(
    number_format: BlockFormat, options: FormatOptions, role: SpecRole, where: str
) -> ScaleRule:
    """Return the requested or the default rule for the scales of blocks.

    Raises:
        OptionError: The format does not support the role or the rule.
    """
    rules: tuple[ScaleRule, ...] = _PRODUCT_RULES if number_format.second_scale else _POWER_RULES
    if role == "activations":
        if number_format.second_scale:
            raise OptionError(
                f"{where}: the second scale of {number_format} needs the whole tensor in advance; "
                'use "mxfp4" or "mxfp8" for activations'
            )
        rules = (ScaleRule.FLOOR,)
    rule: ScaleRule = options.get("scale_rule", rules[0])
    if rule not in rules:
        raise OptionError(
            f"{where}: the scale rule of {number_format} cannot be {rule}; use {' or '.join(rules)}"
        )
    return rule


def _complete_integers(spec: QuantSpec, weights: bool, where: str) -> QuantSpec:
    """Return the spec with the defaults of integers.

    Raises:
        OptionError: The width or an option is not supported.
    """
    integers = spec.format
    if not isinstance(integers, IntegerFormat):
        if spec.asymmetric:
            raise OptionError(f"{where}: asymmetric is for integers, not for {integers}")
        return spec
    if integers.bits == 1 and (integers.signed or spec.narrow):
        raise OptionError(
            f"{where}: signed or narrow integers need 2 bits or more; use bipolar for -1 and 1"
        )
    if not 1 <= integers.bits <= _MAX_BITS:
        raise OptionError(f"{where}: {integers.bits} bits; use 1 to {_MAX_BITS} bits")
    # Blocks use all codes: kernels do not compute with the codes of blocks alone.
    symmetric = integers.signed and not spec.asymmetric and not spec.block_size
    return replace(
        spec,
        narrow=spec.narrow or (weights and symmetric),
        asymmetric=spec.asymmetric or not integers.signed,
    )
