# SPDX-License-Identifier: Apache-2.0
"""Which ranges a tensor might get, and which of them is taken."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from anybit.quantization.statistics import Statistics

_SHARES = (1e-5, 1e-4, 1e-3, 1e-2)
FRACTIONS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
# Bits from which on ranges are twice as wide as what was seen, and nothing is chosen.
WIDE, _SPARE = 12, 2.0
# A step that is kept has to lower the error by so much, where it was not chosen.
WORTH = 0.98


@dataclass(frozen=True)
class Candidate:
    """What might have become of a tensor.

    Attributes:
        tensor: Its name.
        lowest, highest: The ends of its grid.
        smoothed: Whether channels are scaled.
        error: Of the layers that read it, noise over signal, as a power.
    """

    tensor: str
    lowest: float
    highest: float
    smoothed: bool
    error: float


class Tried(Protocol):
    """A candidate with its error, noise over signal."""

    @property
    def error(self) -> float: ...


_Candidate = TypeVar("_Candidate")
_Tried = TypeVar("_Tried", bound=Tried)


def spare(bits: int, statistics: Statistics) -> float:
    """By how much more than the whole range is taken: few values do not show how far others go,
    and where there are bits to spare that costs nothing."""
    return _SPARE if bits >= WIDE else 1 + 1 / math.sqrt(max(statistics.count, 1))


def whole(bits: int, statistics: Statistics) -> tuple[float, float]:
    """The range that holds all that was seen."""
    factor = spare(bits, statistics)
    return statistics.lowest * factor, statistics.highest * factor


def may_cut(bits: int, values: float) -> bool:
    """Whether so many values of a channel show what it comes to if some are cut off.

    What is cut off loses many steps of the grid, and what is not gains a share of one: fewer values
    than there are steps do not show how often.
    """
    return values >= 1 << bits


def cut_off(statistics: Statistics) -> Iterator[tuple[float, float]]:
    """Ranges that leave something out; none where nothing was seen."""
    if not statistics.count:
        return
    yield from statistics.quantiles(*_SHARES)
    for fraction in (*FRACTIONS, 0.3, 0.2):
        yield within(fraction, statistics.lowest, statistics.highest)


def within(fraction: float, low: float, high: float) -> tuple[float, float]:
    """The part of a range that is not further from 0 than a fraction of its largest magnitude:
    where one side is short, it is the long one that is cut."""
    reach = fraction * max(-low, high)
    return max(low, -reach), min(high, reach)


def least(
    candidates: Sequence[_Candidate],
    first: Callable[[_Candidate], _Tried],
    second: Callable[[_Candidate], _Tried],
) -> _Tried:
    """The candidate with the least error on some samples, if it is better on others, too.

    Otherwise it is the first one. What is given was tried on the others.
    """
    errors = [first(each).error for each in candidates]
    best = errors.index(min(errors))
    chosen = second(candidates[0])
    if best:
        other = second(candidates[best])
        chosen = other if other.error <= chosen.error * WORTH else chosen
    return chosen
