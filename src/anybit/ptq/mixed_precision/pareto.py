# SPDX-License-Identifier: Apache-2.0
"""One option of several for each part, so that cost and noise of all are little.

Costs add, and so do noise powers, nearly. Minimizing noise + multiplier * cost part by part, for
every multiplier, gives all mixes on the convex front of both at once (Everett, 1963; for widths of
layers: Shoham and Gersho, 1988): each part walks along its own convex hull, and the steps of all
parts are taken in the order of what they bring. No mix that costs no more than one of these has
less noise.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from anybit.metrics.sqnr import MIN_NOISE

Widths: TypeAlias = tuple[tuple[Any, int], ...]


@dataclass(frozen=True)
class Assignment:
    """What can be chosen.

    Attributes:
        cost: What it costs.
        noise: The power that it adds.
        picks: What it is: things, and the width of each.
    """

    cost: float
    noise: float
    picks: Widths = ()

    def __add__(self, other: "Assignment") -> "Assignment":
        return Assignment(
            self.cost + other.cost, self.noise + other.noise, self.picks + other.picks
        )

    @property
    def turned(self) -> "Assignment":
        """With cost and noise in one another's place."""
        return replace(self, cost=self.noise, noise=self.cost)


def hull(options: Iterable[Assignment]) -> list[Assignment]:
    """Those that are best for some multiplier, from the cheapest to the one with least noise."""
    found: list[Assignment] = []
    for each in sorted(options, key=lambda option: (option.cost, option.noise)):
        if found and each.noise >= found[-1].noise:
            continue
        while len(found) > 1 and _gain(found[-2], found[-1]) <= _gain(found[-2], each):
            found.pop()
        found.append(each)
    return found


def front(parts: Sequence[Iterable[Assignment]]) -> list[Assignment]:
    """The mixes of one option per part that are best for some multiplier, cheapest first."""
    hulls = [hull(options) for options in parts]
    taken = [options[0] for options in hulls]
    found = [_sum(taken)]
    for index, option in _steps(hulls):
        taken[index] = option
        found.append(_sum(taken))
    return found


def cheapest(parts: Sequence[Iterable[Assignment]], most_noise: float) -> Assignment | None:
    """A mix of little cost whose noise is no more than that; None if there is none."""
    parts = [list(options) for options in parts]
    found = quietest([[each.turned for each in options] for options in parts], most_noise)
    return None if found is None else found.turned


def quietest(parts: Sequence[Iterable[Assignment]], most_cost: float) -> Assignment | None:
    """A mix of little noise that costs no more than that; None if there is none.

    The last one on the front that does; then single options are exchanged for what brings most,
    as long as that fits.
    """
    parts = [list(options) for options in parts]
    hulls = [hull(options) for options in parts]
    taken = [options[0] for options in hulls]
    if _sum(taken).cost > most_cost:
        return None
    left = most_cost - _sum(taken).cost
    for index, option in _steps(hulls):
        more = option.cost - taken[index].cost
        if more > left:
            break
        taken[index], left = option, left - more
    return _sum(_filled(parts, taken, left))


@dataclass(frozen=True)
class Exchange:
    """Another option for one part of a mix.

    Attributes:
        part: The number of the part.
        option: What it would be.
        mix: The mix with that.
    """

    part: int
    option: Assignment
    mix: Assignment


def cheaper(parts: Sequence[Iterable[Assignment]], mix: Assignment, least: float) -> list[Exchange]:
    """What makes a mix cheaper, by so much at least; what saves most for its noise comes first."""
    parts, picks = [list(options) for options in parts], frozenset(mix.picks)
    taken = [next(each for each in options if picks.issuperset(each.picks)) for options in parts]
    found: list[tuple[float, Exchange]] = []
    for index, (own, options) in enumerate(zip(taken, parts, strict=True)):
        for each in options:
            if own.cost - each.cost >= least:
                worth = (own.cost - each.cost) / max(each.noise - own.noise, MIN_NOISE)
                other = _sum([*taken[:index], each, *taken[index + 1 :]])
                found.append((-worth, Exchange(index, each, other)))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def _steps(hulls: Sequence[Sequence[Assignment]]) -> list[tuple[int, Assignment]]:
    """The steps along all hulls: which part, and what it goes to; best ones first."""
    steps = [
        (-_gain(before, after), index, at)
        for index, options in enumerate(hulls)
        for at, (before, after) in enumerate(pairwise(options), 1)
    ]
    return [(index, hulls[index][at]) for _, index, at in sorted(steps)]


def _filled(
    parts: Sequence[Iterable[Assignment]], taken: list[Assignment], left: float
) -> list[Assignment]:
    while True:
        gains = [
            (taken[index].noise - each.noise, -index, each)
            for index, options in enumerate(parts)
            for each in options
            if each.cost - taken[index].cost <= left and each.noise < taken[index].noise
        ]
        if not gains:
            return taken
        _, index, best = max(gains, key=lambda gain: gain[:2])
        left -= best.cost - taken[-index].cost
        taken[-index] = best


def _gain(before: Assignment, after: Assignment) -> float:
    """By how much noise falls for what it costs."""
    return (before.noise - after.noise) / (after.cost - before.cost)


def _sum(options: Sequence[Assignment]) -> Assignment:
    """All of them as one. Sums are the same in whatever order the steps were taken."""
    return Assignment(
        sum(each.cost for each in options),
        sum(each.noise for each in options),
        tuple(pick for each in options for pick in each.picks),
    )
