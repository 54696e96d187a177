# SPDX-License-Identifier: Apache-2.0
"""What is known of the layers of a model, and how much is promised of each."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Span: TypeAlias = tuple[int, int]


class Guarantee(StrEnum):
    """How far the results of a layer on integers are those of the float graph.

    EXACT: equal, element for element, to what the graph gives in float32, in whatever order its
    sums are added. CERTIFIED: its quantized results are those of every float32 evaluation, although
    its scales are such that float32 rounds: only `compile` looks so far. BOUNDED: its sums are
    exact, and what follows is the float graph as it is written; where float32 rounds a sum across
    the edge of a step, another evaluation of the graph may differ by that step.
    """

    EXACT = "exact"
    CERTIFIED = "certified"
    BOUNDED = "bounded"

    @property
    def rank(self) -> int:
        """0 for the strongest."""
        return list(Guarantee).index(self)


@dataclass(frozen=True)
class Seen:
    """What the data show of a layer.

    Attributes:
        input_codes, output_codes: The lowest and the highest; None if there are no codes.
        sums: The lowest and the highest sum.
        clipped: The share of the sums that the quantizer behind cuts off at the ends of its codes;
            None if there is no such quantizer.
        dead: The channels of the quantized result that always hold one value.
        channels: How many channels there are.
        shares: The share of each code of the quantized result, if these are few.
    """

    input_codes: Span | None
    output_codes: Span | None
    sums: tuple[float, float]
    clipped: float | None
    dead: tuple[int, ...]
    channels: int
    shares: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """A sum of products, and the quantizer of its result; or a mean, which is a sum.

    Attributes:
        name, operator, output: The node, its operator, and the tensor that it gives.
        guarantee: What can be promised of it on integers; None if not all of it is quantized.
        reason: Why it is not exact, "" if it is.
        inputs: The names of the layers that it reads, it or what follows it up to the next.
        shape, weight_shape: Of the result and of the weight: "[1, 64, 30, 30]".
        parameters: The elements of a constant weight; 0 if it is computed.
        macs: Multiplications per inference, with 1 for a free batch; None if sizes are not known.
        bops: Operations on bits: macs * input_bits * weight_bits.
        input_bits, weight_bits: 32 where a tensor is not quantized.
        sparsity: The share of the weight's elements that are 0.
        input_codes, weight_codes, output_codes: The lowest and the highest code that can occur, of
            the result behind its quantizer; None where there are no codes.
        accumulator: The lowest and the highest sum in steps of the products, for these weights.
        accumulator_bits: The bits that hold it.
        accumulator_bits_any: The same for any weights and inputs of these types.
        sums: The lowest and the highest value of a sum, its bias included; None if not bounded.
        quantizer: The node that quantizes the result, "" if there is none.
        seen: What data show, if there were any.
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
    bops: int | None = None
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
    seen: Seen | None = None

    @property
    def kind(self) -> str:
        """Its class in a word: that of its guarantee, or "float"."""
        return "float" if self.guarantee is None else self.guarantee.value


@dataclass(frozen=True)
class Analyzed:
    """What was found of a model.

    Attributes:
        name: The file, or "the model".
        layers: In the order of the graph.
        input_ranges: What was said of inputs.
        rows: How many rows of data were run; 0 without data.
    """

    name: str
    layers: tuple[Layer, ...]
    input_ranges: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0

    @property
    def macs(self) -> int:
        """Multiplications of all layers of known sizes."""
        return sum(each.macs or 0 for each in self.layers)

    @property
    def bops(self) -> int:
        """Operations on bits of all layers of known sizes."""
        return sum(each.bops or 0 for each in self.layers)

    @property
    def parameters(self) -> int:
        return sum(each.parameters for each in self.layers)

    @property
    def weight_bytes(self) -> int:
        """What the weights take at their widths."""
        return (sum(each.parameters * each.weight_bits for each in self.layers) + 7) // 8

    @property
    def accumulator_bits(self) -> int | None:
        """The bits that hold every accumulator; None if there is none."""
        return max((each.accumulator_bits or 0 for each in self.layers), default=0) or None

    def of(self, guarantee: Guarantee | None) -> tuple[Layer, ...]:
        """The layers of one guarantee; of None those that stay float."""
        return tuple(each for each in self.layers if each.guarantee == guarantee)

    def to_json(self) -> dict[str, Any]:
        """All of it in terms of JSON; codes are names of shares."""
        totals = {
            "layers": len(self.layers),
            "macs": self.macs,
            "bops": self.bops,
            "parameters": self.parameters,
            "weight_bytes": self.weight_bytes,
            "accumulator_bits": self.accumulator_bits,
            **{each.value: len(self.of(each)) for each in (Guarantee.EXACT, Guarantee.BOUNDED)},
            "float": len(self.of(None)),
        }
        layers = [asdict(each) for each in self.layers]
        for layer in layers:
            if layer["seen"] is not None:
                shares = layer["seen"]["shares"]
                layer["seen"]["shares"] = {str(code): share for code, share in shares.items()}
        return {
            "file": self.name,
            "input_ranges": dict(self.input_ranges),
            "rows": self.rows,
            "total": totals,
            "layers": layers,
        }
