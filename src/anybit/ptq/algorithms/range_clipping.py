# SPDX-License-Identifier: Apache-2.0
"""Range clipping: candidate ranges of a tensor, and the selection of one."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from anybit.ptq.calibration.tensor_statistics import TensorStatistics
from anybit.ptq.config import RangeConfig


@dataclass(frozen=True)
class RangeCandidate:
    """A candidate range of a tensor.

    Attributes:
        tensor: The name of the tensor.
        lowest, highest: The ends of its grid.
        smoothed: Whether channels are scaled.
        error: Noise power over signal power of the outputs of the layers that read it.
    """

    tensor: str
    lowest: float
    highest: float
    smoothed: bool
    error: float


class Measured(Protocol):
    """A candidate with its error, noise over signal."""

    @property
    def error(self) -> float: ...


_Candidate = TypeVar("_Candidate")
_Measured = TypeVar("_Measured", bound=Measured)


def compute_headroom(bits: int, statistics: TensorStatistics, config: RangeConfig) -> float:
    """Return the factor on the whole range that leaves room for unseen values.

    Few values do not show how far others go, and with bits to spare room costs nothing.
    """
    if bits >= config.wide_bits:
        return config.wide_factor
    return 1 + 1 / math.sqrt(max(statistics.count, 1))


def compute_whole_range(
    bits: int, statistics: TensorStatistics, config: RangeConfig
) -> tuple[float, float]:
    """Return the range that holds all values, and some room."""
    factor = compute_headroom(bits, statistics, config)
    return statistics.lowest * factor, statistics.highest * factor


def may_clip(bits: int, values: float) -> bool:
    """Return whether a channel has enough values to measure the effect of clipping.

    A clipped value loses many steps of the grid, and others gain a part of one. Fewer values than
    steps do not show how often values are clipped.
    """
    return values >= 1 << bits


def generate_clipped_ranges(
    statistics: TensorStatistics, config: RangeConfig
) -> Iterator[tuple[float, float]]:
    """Yield clipped ranges; none if there are no values."""
    if not statistics.count:
        return
    for fraction in config.fractions:
        yield clip_range(fraction, statistics.lowest, statistics.highest)


def clip_range(fraction: float, low: float, high: float) -> tuple[float, float]:
    """Clip a range at a fraction of its largest magnitude."""
    reach = fraction * max(-low, high)
    return max(low, -reach), min(high, reach)


def select_candidate(
    candidates: Sequence[_Candidate],
    first: Callable[[_Candidate], _Measured],
    second: Callable[[_Candidate], _Measured],
) -> _Measured:
    """Return the candidate with the least error, or the first one if others do not confirm it.

    Args:
        candidates: The candidates.
        first: Tries a candidate on the samples that candidates are compared on.
        second: Tries a candidate on the samples that confirm it; its result is returned.
    """
    errors = [first(candidate).error for candidate in candidates]
    best = errors.index(min(errors))
    chosen = second(candidates[0])
    if best:
        other = second(candidates[best])
        chosen = other if other.error < chosen.error else chosen
    return chosen
