# SPDX-License-Identifier: Apache-2.0
"""The outcome of compilation for each layer."""

from dataclasses import dataclass
from typing import Any

from anybit.quant_types.layer_info import Guarantee, LayerInfo


@dataclass(frozen=True)
class CompiledLayer:
    """A layer and how it runs.

    Attributes:
        layer: The layer as the analysis of the model describes it.
        guarantee: Guarantee of the compiled layer; None if it stays float.
        reason: Why it stays float or is not exact.
        tail: Requantization of its accumulators: the name of a program record.
        kernel: Kernel that computes it on this machine.
        levels: Number of codes of the results; 0 for floats.
        steps: Number of accumulators at which the result changes, in all channels.
        risks: Pairs of channel and accumulator next to such a step, where float32 may differ.
        more_risks: Whether there may be more of them, farther from the steps.
        place: Numbers of its region and of its instruction there; None outside of regions.
        seconds: Measured time per row, up to the next layers; None if not measured.
        float_seconds: The same in the quantized float graph.
    """

    layer: LayerInfo
    guarantee: Guarantee | None = None
    reason: str = ""
    tail: str = ""
    kernel: str = ""
    levels: int = 0
    steps: int = 0
    risks: tuple[tuple[int, int], ...] = ()
    more_risks: bool = False
    place: tuple[int, int] | None = None
    seconds: float | None = None
    float_seconds: float | None = None

    @property
    def name(self) -> str:
        """Return the name of the layer."""
        return self.layer.name

    @property
    def output(self) -> str:
        """Return the name of the output of the node."""
        return self.layer.output

    @property
    def macs(self) -> int | None:
        """Return the multiplications per inference."""
        return self.layer.macs


def compiled(layer: LayerInfo, **outcome: Any) -> CompiledLayer:
    """Return a compiled layer with the guarantee of the analysis, unless the outcome has one."""
    defaults = {"guarantee": layer.guarantee, "reason": layer.reason}
    return CompiledLayer(layer, **(defaults | outcome))
