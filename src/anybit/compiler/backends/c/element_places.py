# SPDX-License-Identifier: Apache-2.0
"""Places of elements in memory as expressions of C."""

from anybit.compiler.backends.c.expressions import locate, plus, times
from anybit.compiler.backends.c.parameters import Parameter
from anybit.compiler.backends.c.types import StoredTensor
from anybit.compiler.program import program as p


def locate_sum(y: StoredTensor | p.Port, row: str, column: str, *, in_order: bool) -> str:
    """Return where the result of a channel of a pixel is stored.

    Args:
        y: The tensor or output.
        row, column: The pixel.
        in_order: Whether channels are computed pixel by pixel.
    """
    height, width = Parameter(y.height, "height"), Parameter(y.width, "width")
    if isinstance(y, p.Port) and y.channels_first and height * width > 1:
        return f"y[{locate(plus(times('channel', height), row), column, width, 1)}]"
    if in_order:
        return "*y++"
    return f"y[{plus(locate(row, column, width, Parameter(y.channels, 'channels')), 'channel')}]"


def find_channel_step(y: StoredTensor | p.Port) -> int:
    """Return how far apart the results of two channels are stored."""
    if isinstance(y, p.Port) and y.channels_first:
        return Parameter(y.height, "height") * Parameter(y.width, "width")
    return 1


def is_same_order(at: p.Reshape, x: StoredTensor, y: StoredTensor) -> bool:
    """Return whether a reshape leaves the elements where they are."""
    stored = _is_stored_so(x, at.source_channels_first), _is_stored_so(y, at.target_channels_first)
    same = (x.height, x.width, x.channels) == (y.height, y.width, y.channels)
    return all(stored) or (same and at.source_channels_first == at.target_channels_first)


def _is_stored_so(tensor: StoredTensor, channels_first: int) -> bool:
    """Return whether an order is that of a tensor in memory, height x width x channels."""
    return not channels_first or tensor.height * tensor.width == 1 or tensor.channels == 1


def locate_in_port(port: p.Port, pixel: str, channel: str) -> str:
    """Return the place of a channel of a pixel in an input or output."""
    if port.channels_first:
        return plus(times(channel, port.height * port.width), pixel)
    return plus(times(pixel, port.channels), channel)


def locate_in_order(tensor: StoredTensor, channels_first: int, place: str) -> str:
    """Return the place of an element of an order in a tensor of height x width x channels."""
    if _is_stored_so(tensor, channels_first):
        return place
    pixels = tensor.height * tensor.width
    return f"{place} % {pixels} * {tensor.channels} + {place} / {pixels}"
