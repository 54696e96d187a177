# SPDX-License-Identifier: Apache-2.0
"""Memory and work of the layers of a C file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anybit.errors import ModelError

_KILO = 1024


@dataclass(frozen=True)
class LayerFootprint:
    """The size of one function.

    Attributes:
        function: Its name in C.
        name: Name of the layer in the model; empty for instructions without one.
        shape: Sizes of the result, height x width x channels.
        macs: Multiplications per run.
        weight_bits: Width of the weights; 0 without weights.
        flash: Bytes of its constants that no layer before it has.
        ram: Bytes of the arena in use while it runs.
    """

    function: str
    name: str
    shape: str
    macs: int
    weight_bits: int
    flash: int
    ram: int

    @property
    def label(self) -> str:
        """The name in the model, or else that of the function."""
        return self.name or self.function


def check_limits(
    totals: Mapping[str, int],
    layers: Sequence[LayerFootprint],
    limits: Mapping[str, int],
) -> None:
    """Raise ModelError if a network needs more memory than a limit allows.

    Args:
        totals: Bytes by the name of the memory: "flash" and "ram".
        layers: The sizes of its layers.
        limits: The most bytes of each memory.
    """
    size = format_kilobytes
    if limits.get("flash", totals["flash"]) < totals["flash"]:
        largest = max(layers, key=lambda layer: layer.flash)
        raise ModelError(
            f"the constants need {size(totals['flash'])} of flash, limit {size(limits['flash'])}. "
            f"Largest layer: {largest.label}, {size(largest.flash)}. "
            "Give its weights fewer bits (quantize --weights int4, int2, ternary) or fewer channels"
        )
    if limits.get("ram", totals["ram"]) < totals["ram"]:
        largest = max(layers, key=lambda layer: layer.ram)
        raise ModelError(
            f"the arena needs {size(totals['ram'])} of RAM, limit {size(limits['ram'])}. "
            f"Most is in use in {largest.label}, whose result is "
            f"{largest.shape}. Reduce its height, width or channels, or those of its input"
        )


def format_kilobytes(count: int) -> str:
    """Return a number of bytes: "812 bytes", "16 KB", "1.5 KB" for 1536 bytes."""
    if count < _KILO:
        return f"{count} bytes"
    return f"{count / _KILO:.3g} KB" if count < 1000 * _KILO else f"{count // _KILO} KB"
