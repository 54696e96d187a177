# SPDX-License-Identifier: Apache-2.0
"""Selection of regions by measurement: those slower than their float nodes stay float32."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from anybit.compiler.encode import Region

_CLEARLY = 1.02
"""Smaller ratios of times may be noise."""

_TIMES = 2
"""Measurements in which a candidate must be faster to be chosen."""

_LEAST_RATIO = 0.1
"""Smaller ratios are differences of times that are too short to be measured."""

Left: TypeAlias = frozenset[int]
"""The numbers of the regions that a candidate leaves in float32."""

Measure: TypeAlias = Callable[[Sequence[Left]], Sequence[float]]
"""Returns the seconds of a run of each candidate, measured in turns."""


@dataclass(frozen=True)
class LeftRegion:
    """A region that stays float32 because its float nodes are faster.

    Attributes:
        layers: The names of its layers.
        seconds: Time of the region in a run of the model with all regions.
        float_seconds: Time of its float nodes in its place.
    """

    layers: tuple[str, ...]
    seconds: float
    float_seconds: float

    @property
    def ratio(self) -> float:
        """The speed of the region relative to its float nodes."""
        return self.float_seconds / self.seconds if self.seconds else 1.0

    @property
    def reason(self) -> str:
        """Return why its layers stay float32."""
        return f"left in float32: {self._speed}"

    @property
    def integer_reason(self) -> str:
        """Return why its layers stay integer operators of the file."""
        return f"stays as it is: a region would be {self._speed}"

    @property
    def _speed(self) -> str:
        ratio = f"{self.ratio:.2g}" if self.ratio >= _LEAST_RATIO else f"less than {_LEAST_RATIO}"
        return f"{ratio} x as fast as ONNX Runtime here"


def select_regions(count: int, measure: Measure) -> dict[int, float]:
    """Return the regions to leave in float32, and the seconds that each of them saves.

    Every region in turn is left if a run is clearly faster without it. In the end all are left if
    that is clearly faster still: regions between float nodes may pay only together.

    Args:
        count: Number of regions.
        measure: Measures candidates.
    """
    left: dict[int, float] = {}
    for region in range(count):
        saved = _measure_saving(measure, frozenset(left), frozenset({*left, region}))
        if saved:
            left[region] = saved
    rest = [region for region in range(count) if region not in left]
    if len(rest) > 1:
        saved = _measure_saving(measure, frozenset(left), frozenset(range(count)))
        if saved:
            left |= dict.fromkeys(rest, saved / len(rest))
    return left


def _measure_saving(measure: Measure, before: Left, after: Left) -> float:
    """Return the seconds that another candidate saves; 0 if it is not clearly faster, twice.

    Other work on the machine may disturb one measurement.
    """
    savings = []
    for _ in range(_TIMES):
        slow, fast = measure([before, after])
        if slow <= _CLEARLY * fast:
            return 0.0
        savings.append(slow - fast)
    return min(savings)


def describe_left(
    regions: Sequence[Region], saved: Mapping[int, float], seconds: Mapping[int, float]
) -> dict[Region, LeftRegion]:
    """Return what reports show of regions that are left in float32.

    Args:
        regions: All regions.
        saved: The seconds that each of those that are left saves.
        seconds: The seconds of each region in a run with all of them.
    """
    described = {}
    for number, less in sorted(saved.items()):
        region = regions[number]
        names = dict.fromkeys(layer.name for layer in region.layers.values() if layer.macs)
        # Times are rounded, and a run has some beside its nodes.
        own = max(seconds.get(number, 0.0), less)
        described[region] = LeftRegion(tuple(names), own, own - less)
    return described
