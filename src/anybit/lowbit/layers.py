# SPDX-License-Identifier: Apache-2.0
"""What is said of each layer, and how much is promised of it."""

from dataclasses import dataclass
from enum import StrEnum


class Guarantee(StrEnum):
    """How far the results of a layer are those of the float graph.

    EXACT: equal, element for element, to what the graph gives in float32, in whatever order its
    sums are added. CERTIFIED: its quantized results are those of every float32 evaluation, although
    its scales are such that float32 rounds. BOUNDED: its sums are exact, and what follows is the
    float graph as it is written; where float32 rounds a sum across the edge of a step, another
    evaluation of the graph may differ by that step.
    """

    EXACT = "exact"
    CERTIFIED = "certified"
    BOUNDED = "bounded"

    @property
    def rank(self) -> int:
        """0 for the strongest."""
        return list(Guarantee).index(self)


@dataclass(frozen=True)
class Layer:
    """One node that adds up products, or a mean.

    Attributes:
        node: Its name.
        operator: What it is.
        guarantee: What is promised of it; None where it stays float.
        macs: Multiplications per row; 0 where that is not known, and of means.
        weight_bits, input_bits: Of the codes.
        lowest, highest: The accumulators that there can be, over all channels.
        tail: What becomes of them: the name of a record, as a program has it.
        kernel: What computes it on this machine.
        levels: How many values the results have; 0 for floats.
        steps: At how many accumulators the result changes, in all channels.
        risks: Pairs of a channel and an accumulator near such a step, where float32 may differ.
        more_risks: Whether there may be more, farther from the steps.
        reason: Why it is not exact, or stays float.
        place: The numbers of its region and of its instruction there; None where it has none.
        seconds: How long it takes for a row, where that has been measured.
    """

    node: str
    operator: str
    guarantee: Guarantee | None
    macs: int
    weight_bits: int = 32
    input_bits: int = 32
    lowest: int = 0
    highest: int = 0
    tail: str = ""
    kernel: str = ""
    levels: int = 0
    steps: int = 0
    risks: tuple[tuple[int, int], ...] = ()
    more_risks: bool = False
    reason: str = ""
    place: tuple[int, int] | None = None
    seconds: float | None = None

    @property
    def accumulator_bits(self) -> int:
        """How many bits hold the accumulator; 0 where there is none."""
        if self.guarantee is None:
            return 0
        sign = self.lowest < 0
        return max(self.highest.bit_length(), (~self.lowest).bit_length() if sign else 0) + sign
