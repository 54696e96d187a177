# SPDX-License-Identifier: Apache-2.0
"""What became of each layer."""

from dataclasses import dataclass
from typing import Any

from anybit.layers.layer import Layer


@dataclass(frozen=True)
class CompiledLayer(Layer):
    """A layer, and how it runs.

    Attributes:
        tail: What becomes of its accumulators: the name of a record, as a program has it.
        kernel: What computes it on this machine.
        levels: How many values the results have; 0 for floats.
        steps: At how many accumulators the result changes, in all channels.
        risks: Pairs of a channel and an accumulator near such a step, where float32 may differ.
        more_risks: Whether there may be more, farther from the steps.
        place: The numbers of its region and of its instruction there; None where it has none.
        seconds: How long it takes for a row, with what follows it up to the next layers, where that
            has been measured.
        float_seconds: The same of the quantized graph, which computes it in floats.
    """

    tail: str = ""
    kernel: str = ""
    levels: int = 0
    steps: int = 0
    risks: tuple[tuple[int, int], ...] = ()
    more_risks: bool = False
    place: tuple[int, int] | None = None
    seconds: float | None = None
    float_seconds: float | None = None


def compiled(layer: Layer, **known: Any) -> CompiledLayer:
    """A layer with what became of it."""
    return CompiledLayer(**(vars(layer) | known))
