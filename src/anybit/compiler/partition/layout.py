# SPDX-License-Identifier: Apache-2.0
"""How the elements of a value lie in rows x height x width x channels."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Where height, width and channels of a value are.

    Attributes:
        rank: Of the value; axis 0 has the rows.
        axis: That of the channels: 1, or the last. The axes besides are height and width, of one
            alone it is the width; what is missing is 1.
        height, width, channels: The sizes.
    """

    rank: int
    axis: int
    height: int
    width: int
    channels: int

    @property
    def channels_first(self) -> bool:
        """Whether a row lies as channels x height x width."""
        return self.axis == 1 and self.rank > 2

    @property
    def spatial(self) -> tuple[int, ...]:
        """The sizes of the axes that are neither rows nor channels."""
        return (self.height, self.width)[4 - self.rank :]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes behind the rows."""
        inner = self.spatial
        return (self.channels, *inner) if self.channels_first else (*inner, self.channels)

    @property
    def single(self) -> bool:
        """Whether a row has one element per channel."""
        return self.height == self.width == 1


def layout_of(sizes: tuple[int, ...], axis: int) -> Layout:
    """The place of a value with these sizes behind its rows, its channels along an axis."""
    first = axis == 1
    inner = sizes[1:] if first else sizes[:-1]
    height, width = (1, 1, *inner)[-2:]
    return Layout(len(sizes) + 1, axis, height, width, sizes[0] if first else sizes[-1])
