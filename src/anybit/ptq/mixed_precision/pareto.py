# SPDX-License-Identifier: Apache-2.0
"""Pareto search: one option per group, such that total cost and total noise are low.

Costs add up, and so do noise powers, nearly. Minimizing noise + multiplier * cost group by group,
for all multipliers, gives the assignments on the convex front of both (Everett, 1963; for bit
widths: Shoham and Gersho, 1988). Each group moves along its own convex hull, and the steps of all
groups are taken in the order of their gain. No assignment of the same cost has less noise than one
on the front.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from anybit.metrics.sqnr import MIN_NOISE

Widths: TypeAlias = tuple[tuple[Any, int], ...]
"""Pairs of a layer or an activation and its width in bits."""


@dataclass(frozen=True)
class Assignment:
    """Widths of some layers and activations, with their cost and noise.

    Attributes:
        cost: The cost, in bytes or bit operations.
        noise: The noise-to-signal power ratio of the worst output.
        widths: The layers and activations, and the width of each.
    """

    cost: float
    noise: float
    widths: Widths = ()

    def __add__(self, other: "Assignment") -> "Assignment":
        return Assignment(
            self.cost + other.cost, self.noise + other.noise, self.widths + other.widths
        )

    @property
    def swapped(self) -> "Assignment":
        """The assignment with its cost as noise and its noise as cost."""
        return replace(self, cost=self.noise, noise=self.cost)


@dataclass(frozen=True)
class Exchange:
    """An assignment that differs from another one in one group.

    Attributes:
        group: The index of the group.
        option: The new option of the group.
        assignment: The whole assignment with that option.
    """

    group: int
    option: Assignment
    assignment: Assignment


def compute_hull(options: Iterable[Assignment]) -> list[Assignment]:
    """Return the options that minimize noise + multiplier * cost for some multiplier.

    They are in order of increasing cost and decreasing noise.
    """
    hull: list[Assignment] = []
    for option in sorted(options, key=lambda option: (option.cost, option.noise)):
        if hull and option.noise >= hull[-1].noise:
            continue
        while len(hull) > 1 and _compute_gain(hull[-2], hull[-1]) <= _compute_gain(
            hull[-2], option
        ):
            hull.pop()
        hull.append(option)
    return hull


def compute_front(groups: Sequence[Iterable[Assignment]]) -> list[Assignment]:
    """Return the assignments of one option per group on the convex front, cheapest first."""
    hulls = [compute_hull(options) for options in groups]
    chosen = [options[0] for options in hulls]
    front = [_add_up(chosen)]
    for index, option in _sort_steps(hulls):
        chosen[index] = option
        front.append(_add_up(chosen))
    return front


def find_cheapest(groups: Sequence[Iterable[Assignment]], max_noise: float) -> Assignment | None:
    """Return an assignment of low cost whose noise is at most a limit; None without any."""
    swapped = find_quietest(
        [[option.swapped for option in options] for options in groups], max_noise
    )
    return None if swapped is None else swapped.swapped


def find_quietest(groups: Sequence[Iterable[Assignment]], max_cost: float) -> Assignment | None:
    """Return an assignment of low noise whose cost is at most a limit; None without any.

    It is the last one on the front within the limit. Then single options are exchanged for those
    that lower the noise most, as long as the limit allows.
    """
    groups = [list(options) for options in groups]
    hulls = [compute_hull(options) for options in groups]
    chosen = [options[0] for options in hulls]
    if _add_up(chosen).cost > max_cost:
        return None
    remaining = max_cost - _add_up(chosen).cost
    for index, option in _sort_steps(hulls):
        increase = option.cost - chosen[index].cost
        if increase > remaining:
            break
        chosen[index], remaining = option, remaining - increase
    return _add_up(_spend_remaining(groups, chosen, remaining))


def find_savings(
    groups: Sequence[Iterable[Assignment]], assignment: Assignment, min_saving: float
) -> list[Exchange]:
    """Return exchanges that lower the cost by at least `min_saving`.

    Those with the largest saving per added noise come first.
    """
    groups, widths = [list(options) for options in groups], frozenset(assignment.widths)
    chosen = [
        next(option for option in options if widths.issuperset(option.widths)) for options in groups
    ]
    ranked: list[tuple[float, Exchange]] = []
    for index, (current, options) in enumerate(zip(chosen, groups, strict=True)):
        for option in options:
            saving = current.cost - option.cost
            if saving >= min_saving:
                efficiency = saving / max(option.noise - current.noise, MIN_NOISE)
                changed = _add_up([*chosen[:index], option, *chosen[index + 1 :]])
                ranked.append((-efficiency, Exchange(index, option, changed)))
    return [exchange for _, exchange in sorted(ranked, key=lambda pair: pair[0])]


def _sort_steps(hulls: Sequence[Sequence[Assignment]]) -> list[tuple[int, Assignment]]:
    """Return the steps along all hulls as (group, next option), in order of decreasing gain."""
    steps = [
        (-_compute_gain(current, following), index, position)
        for index, options in enumerate(hulls)
        for position, (current, following) in enumerate(pairwise(options), 1)
    ]
    return [(index, hulls[index][position]) for _, index, position in sorted(steps)]


def _spend_remaining(
    groups: Sequence[Iterable[Assignment]], chosen: list[Assignment], remaining: float
) -> list[Assignment]:
    while True:
        gains = [
            (chosen[index].noise - option.noise, -index, option)
            for index, options in enumerate(groups)
            for option in options
            if option.cost - chosen[index].cost <= remaining and option.noise < chosen[index].noise
        ]
        if not gains:
            return chosen
        _, index, best = max(gains, key=lambda gain: gain[:2])
        remaining -= best.cost - chosen[-index].cost
        chosen[-index] = best


def _compute_gain(current: Assignment, following: Assignment) -> float:
    """Return the decrease of noise per increase of cost."""
    return (current.noise - following.noise) / (following.cost - current.cost)


def _add_up(options: Sequence[Assignment]) -> Assignment:
    """Return the sum in the order of the groups, so that it does not depend on earlier steps."""
    return Assignment(
        sum(option.cost for option in options),
        sum(option.noise for option in options),
        tuple(width for option in options for width in option.widths),
    )
