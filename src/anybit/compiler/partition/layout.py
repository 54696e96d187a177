# SPDX-License-Identifier: Apache-2.0
"""Order of the elements of a value: rows x height x width x channels."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Axes and sizes of the height, width and channels of a value.

    Attributes:
        rank: Rank of the value; axis 0 has the rows.
        axis: Axis of the channels: 1, or the last. The others are height and width; a single one is
            the width, and the size of a missing one is 1.
        height, width, channels: The sizes.
    """

    rank: int
    axis: int
    height: int
    width: int
    channels: int

    @property
    def channels_first(self) -> bool:
        """True if the order within a row is channels x height x width."""
        return self.axis == 1 and self.rank > 2

    @property
    def spatial(self) -> tuple[int, ...]:
        """The sizes of the axes that are neither rows nor channels."""
        return (self.height, self.width)[4 - self.rank :]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes after the rows."""
        return (
            (self.channels, *self.spatial)
            if self.channels_first
            else (*self.spatial, self.channels)
        )

    @property
    def single(self) -> bool:
        """True if a row has one element per channel."""
        return self.height == self.width == 1


def make_layout(sizes: tuple[int, ...], axis: int) -> Layout:
    """Return the layout of a value with these sizes after its rows and this axis of channels."""
    first = axis == 1
    inner = sizes[1:] if first else sizes[:-1]
    height, width = (1, 1, *inner)[-2:]
    return Layout(len(sizes) + 1, axis, height, width, sizes[0] if first else sizes[-1])


def is_repeated(source: Layout, target: Layout) -> bool:
    """Return whether a target repeats a pixel, a channel, or both, or nothing."""
    same_pixels = (source.height, source.width) == (target.height, target.width)
    return (
        source.rank == target.rank
        and (same_pixels or source.single)
        and source.channels in (1, target.channels)
    )


def make_reshape_fields(source: Layout, target: Layout) -> dict[str, int]:
    """Return the fields of a Reshape that keeps the order of the elements in the graph."""
    return {
        "source_channels_first": int(source.channels_first),
        "target_channels_first": int(target.channels_first),
    }
