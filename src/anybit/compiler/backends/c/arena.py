# SPDX-License-Identifier: Apache-2.0
"""Places of buffers in one block of memory, by their liveness."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 4
_RANDOM_ORDERS = 200
_FEW_BUFFERS = 64


@dataclass(frozen=True)
class Buffer:
    """A piece of memory that is needed from one instruction to another.

    Attributes:
        name: Its name in reports.
        size: Bytes.
        first, last: The instructions that write it first and read it last.
    """

    name: str
    size: int
    first: int
    last: int

    def meets(self, other: "Buffer") -> bool:
        """Return whether both are needed at some instruction."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """Places of all buffers.

    Attributes:
        buffers: The buffers.
        offsets: The first byte of each.
        size: Bytes of the whole.
    """

    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    size: int

    def used_at(self, instruction: int) -> int:
        """Return the end of the last buffer that an instruction needs."""
        return max(
            (
                offset + buffer.size
                for buffer, offset in zip(self.buffers, self.offsets, strict=True)
                if buffer.first <= instruction <= buffer.last
            ),
            default=0,
        )


Distances = Mapping[tuple[int, int], int]
"""Bytes by which a target has to begin before its source, for pairs that may overlap.

An instruction that reads a source front to back may write the target over what it has read.
"""


def plan_arena(buffers: Sequence[Buffer], distances: Distances) -> Arena:
    """Place buffers so that none overlaps another that is needed at the same time.

    The smallest of several greedy placements is returned, always the same one.
    """
    meeting = [{i for i, other in enumerate(buffers) if buffer.meets(other)} for buffer in buffers]
    plans = (_place(buffers, order, distances, meeting) for order in _list_orders(buffers))
    return min(plans, key=lambda plan: plan.size)


def _list_orders(buffers: Sequence[Buffer]) -> Iterator[list[int]]:
    numbers = list(range(len(buffers)))
    yield sorted(numbers, key=lambda i: -buffers[i].size)
    yield numbers
    yield numbers[::-1]
    if len(numbers) <= _FEW_BUFFERS:
        shuffle = random.Random(0)
        for _ in range(_RANDOM_ORDERS):
            yield shuffle.sample(numbers, len(numbers))


def _place(
    buffers: Sequence[Buffer],
    order: Sequence[int],
    distances: Distances,
    meeting: Sequence[Collection[int]],
) -> Arena:
    offsets: dict[int, int] = {}
    for number in order:
        near = [other for other in meeting[number] if other in offsets]
        ranges = [
            _find_forbidden(number, other, offsets[other], buffers, distances) for other in near
        ]
        ends = sorted({0, *(end for _, end in ranges if end > 0)})
        offsets[number] = next(
            start for start in ends if not any(low < start < end for low, end in ranges)
        )
    size = max((offsets[i] + buffers[i].size for i in offsets), default=0)
    return Arena(tuple(buffers), tuple(offsets[i] for i in range(len(buffers))), _align(size))


def _find_forbidden(
    number: int, other: int, offset: int, buffers: Sequence[Buffer], distances: Distances
) -> tuple[int, int]:
    """Return offsets low and end for a buffer: all between them meet the other one."""
    size, other_size = buffers[number].size, buffers[other].size
    low, end = offset - size, offset + other_size
    if (number, other) in distances:  # the target below its source
        low = max(low, offset - distances[number, other])
    if (other, number) in distances:
        end = min(end, offset + distances[other, number])
    return low, _align(end)


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
