# SPDX-License-Identifier: Apache-2.0
"""Layers of a compiled model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anybit.quant_types.layer_info import Guarantee, LayerInfo


@dataclass(frozen=True)
class CompiledLayer:
    """A layer and its integer code.

    Attributes:
        layer: The layer as the value analysis describes it.
        guarantee: Guarantee of the compiled layer; None if it stays float32.
        reason: Why it stays float32, or is not exact.
        epilogue: Epilogue of its accumulators: the name of a record of the program.
        kernel: Kernel that computes it on this machine.
        levels: Number of values of its results; 0 for float32.
        steps: Number of accumulators at which the result changes, in all channels.
        risks: Pairs of channel and accumulator near a step, where float32 may differ.
        more_risks: Whether there may be more, farther from the steps.
        place: Index of its region and of its instruction there; None if it stays float32.
        seconds: Time of one row with the nodes up to the next layers; None if not measured.
        float_seconds: The same in the quantized graph, which computes it in float32.
    """

    layer: LayerInfo
    guarantee: Guarantee | None = None
    reason: str = ""
    epilogue: str = ""
    kernel: str = ""
    levels: int = 0
    steps: int = 0
    risks: tuple[tuple[int, int], ...] = ()
    more_risks: bool = False
    place: tuple[int, int] | None = None
    seconds: float | None = None
    float_seconds: float | None = None

    @classmethod
    def of(cls, layer: LayerInfo) -> "CompiledLayer":
        """Return a layer without integer code."""
        return cls(layer, layer.guarantee, layer.reason)

    @classmethod
    def in_float(cls, layer: LayerInfo, reason: str) -> "CompiledLayer":
        """Return a layer that stays float32 for a reason."""
        return cls(layer, None, reason)

    @property
    def name(self) -> str:
        """The name of the layer."""
        return self.layer.name

    @property
    def output(self) -> str:
        """The name of the output, which identifies the layer."""
        return self.layer.output

    @property
    def macs(self) -> int | None:
        """Multiplications per inference; None for unknown sizes."""
        return self.layer.macs


def certify(layer: LayerInfo, *, at_risk: bool) -> Guarantee:
    """Return the guarantee of a layer whose accumulators are, or are not, at risk."""
    if at_risk:
        return Guarantee.BOUNDED
    exact = layer.guarantee is Guarantee.EXACT
    return Guarantee.EXACT if exact else Guarantee.CERTIFIED


def merge_layers(layers: Sequence[CompiledLayer]) -> CompiledLayer:
    """Return one layer for several computations of it, with the weakest of their guarantees."""
    weakest = max(layers, key=lambda layer: -1 if layer.guarantee is None else layer.guarantee.rank)
    risks = {risk for layer in layers for risk in layer.risks}
    more_risks = any(layer.more_risks for layer in layers)
    return replace(weakest, risks=tuple(sorted(risks)), more_risks=more_risks)
