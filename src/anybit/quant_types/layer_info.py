# SPDX-License-Identifier: Apache-2.0
"""A layer of a model, and the guarantee that its integer form has."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]


class Guarantee(StrEnum):
    """Relation between a layer on integers and the float graph; see `meaning`.

    Only `compile` proves that a layer is certified. Codes of bounded layers may differ where a
    float32 evaluation rounds a sum across the boundary of a code.
    """

    EXACT = "exact"
    CERTIFIED = "certified"
    BOUNDED = "bounded"

    @property
    def meaning(self) -> str:
        """The guarantee in words."""
        return _MEANINGS[self]

    @property
    def rank(self) -> int:
        """Return 0 for the strongest guarantee."""
        return list(Guarantee).index(self)


_MEANINGS = {
    Guarantee.EXACT: "equal to the float graph; its sums are exact in float32, in any order",
    Guarantee.CERTIFIED: "codes equal to those of every float32 evaluation, although its sums "
    "round",
    Guarantee.BOUNDED: "sums are exact; a float32 evaluation, which rounds them, may give other "
    "codes",
}


@dataclass(frozen=True)
class LayerInfo:
    """A MatMul-like operator, or a mean, with what follows from the model alone.

    Tools add their results in types of their own with a field `layer` of this type.

    Attributes:
        name: Name of the node, or of its output where the node has none.
        operator: Operator of the node.
        output: Name of the output: the identifier of the node, unique in a model.
        guarantee: Guarantee in float32; None unless all factors are quantized.
        reason: Why the layer is not exact; empty if it is.
        inputs: Names of the preceding layers.
        shape: Shape of the result: "[1, 64, 30, 30]".
        weight_shape: Shape of the weight.
        parameters: Elements of a constant weight; 0 if the weight is computed.
        macs: Multiplications per inference, 1 for a dynamic batch size; None for unknown sizes.
        bops: Bit operations: macs * input_bits * weight_bits; None for unknown sizes.
        input_bits: Width of the activations; 32 for floats.
        weight_bits: Width of the weight; 32 for floats.
        sparsity: Share of zeros in the weight.
        input_codes: Lowest and highest possible code of the activations.
        weight_codes: Lowest and highest code of the weight.
        output_codes: Lowest and highest possible code of the quantized result.
        accumulator: Lowest and highest sum of products of codes, for this weight.
        accumulator_bits: Width of the accumulator.
        accumulator_bits_any: Width of the accumulator for any weights and inputs of these types.
        sums: Lowest and highest value of a sum, bias included; None if unbounded.
        quantizer: Name of the node that quantizes the result; empty if there is none.
        integer: Whether the node computes with codes itself: QLinearConv, MatMulInteger.
        dynamic: Whether the activations have scales that each inference computes.
    """

    name: str
    operator: str
    output: str
    guarantee: Guarantee | None = None
    reason: str = ""
    inputs: tuple[str, ...] = ()
    shape: str = ""
    weight_shape: str = ""
    parameters: int = 0
    macs: int | None = None
    bops: int | None = field(init=False)
    input_bits: int = 32
    weight_bits: int = 32
    sparsity: float | None = None
    input_codes: Span | None = None
    weight_codes: Span | None = None
    output_codes: Span | None = None
    accumulator: Span | None = None
    accumulator_bits: int | None = None
    accumulator_bits_any: int | None = None
    sums: tuple[float, float] | None = None
    quantizer: str = ""
    integer: bool = False
    dynamic: bool = False

    def __post_init__(self) -> None:
        bops = None if self.macs is None else self.macs * self.input_bits * self.weight_bits
        object.__setattr__(self, "bops", bops)
