# SPDX-License-Identifier: Apache-2.0
"""Places for the boxes of a directed graph without cycles: in layers, from top to bottom."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Key: TypeAlias = Hashable
Size: TypeAlias = tuple[float, float]
Edge: TypeAlias = tuple[Key, Key]

BETWEEN_LAYERS = 30
BETWEEN_BOXES = 22
_ROOM_OF_AN_EDGE = 14
_ROOM_AT_A_BOX = 40
_SWEEPS = 40


@dataclass(frozen=True)
class Layout:
    """Where everything is: for a box the middle of its top side, for an edge its corners."""

    places: dict[Key, tuple[float, float]]
    routes: dict[Edge, list[tuple[float, float]]]
    width: float
    height: float


@dataclass(frozen=True)
class _Bend:
    """Where an edge passes a layer."""

    edge: Edge
    layer: int


def layout(sizes: Mapping[Key, Size], edges: Sequence[Edge]) -> Layout:
    """Boxes in the order of `sizes`, each below all that lead to it."""
    level = _levels(list(sizes), edges)
    rows: list[list[Key]] = [[] for _ in range(max(level.values()) + 1)]
    for key in sizes:
        rows[level[key]].append(key)
    chains = {edge: _chain(edge, level) for edge in edges}
    for chain in chains.values():
        for bend in chain[1:-1]:
            assert isinstance(bend, _Bend)
            rows[bend.layer].append(bend)
    above, below = defaultdict(list), defaultdict(list)
    for chain in chains.values():
        for first, second in pairwise(chain):
            above[second].append(first)
            below[first].append(second)
    _order(rows, above, below)
    widths = {
        key: sizes[key][0] + BETWEEN_BOXES if key in sizes else _ROOM_OF_AN_EDGE
        for row in rows
        for key in row
    }
    middle = _across(rows, widths, {key: above[key] + below[key] for key in widths})
    left = min(middle[key] - widths[key] / 2 for key in middle)
    right = max(middle[key] + widths[key] / 2 for key in middle)
    heights = [max(sizes[key][1] for key in row if key in sizes) for row in rows]
    tops = [sum(heights[:at]) + at * BETWEEN_LAYERS for at in range(len(rows))]
    places = {key: (middle[key] - left, tops[level[key]]) for key in sizes}
    routes = {}
    for edge, (first, *bends, last) in chains.items():
        corners = [(places[first][0], places[first][1] + sizes[first][1])]
        for bend in bends:
            assert isinstance(bend, _Bend)
            across, down = middle[bend] - left, tops[bend.layer]
            corners += [(across, down), (across, down + heights[bend.layer])]
        routes[edge] = [*corners, places[last]]
    return Layout(places, _apart(routes, sizes), right - left, tops[-1] + heights[-1])


def _levels(keys: Sequence[Key], edges: Sequence[Edge]) -> dict[Key, int]:
    """The length of the longest path to each; sources stand right above their first reader."""
    level = dict.fromkeys(keys, 0)
    for _ in keys:
        for first, second in edges:
            level[second] = max(level[second], level[first] + 1)
    readers = defaultdict(list)
    for first, second in edges:
        readers[first].append(level[second])
    fed = {second for _, second in edges}
    for key in keys:
        if key not in fed and readers[key]:
            level[key] = min(readers[key]) - 1
    return level


def _chain(edge: Edge, level: Mapping[Key, int]) -> list[Key]:
    first, second = edge
    return [first, *(_Bend(edge, at) for at in range(level[first] + 1, level[second])), second]


def _order(
    rows: list[list[Key]], above: Mapping[Key, list[Key]], below: Mapping[Key, list[Key]]
) -> None:
    """Sort each row by the mean place of what it is connected to, down and up in turn."""
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = above if downwards else below
        for row in rows if downwards else reversed(rows):
            place = {key: index / len(each) for each in rows for index, key in enumerate(each)}
            row.sort(key=lambda key, at=place, near=neighbours: _mean(key, at, near))


def _mean(key: Key, at: Mapping[Key, float], near: Mapping[Key, list[Key]]) -> float:
    found = near.get(key, [])
    return sum(at[each] for each in found) / len(found) if found else at[key]


def _across(
    rows: list[list[Key]],
    widths: Mapping[Key, float],
    neighbours: dict[Key, list[Key]],
) -> dict[Key, float]:
    """The middle of everything: close to what it is connected to, without overlaps."""
    middle: dict[Key, float] = {}
    for row in rows:
        at = -sum(widths[key] for key in row) / 2
        for key in row:
            middle[key] = at + widths[key] / 2
            at += widths[key]
    for sweep in range(2 * _SWEEPS):
        if sweep == _SWEEPS:  # edges become upright once the boxes stand
            neighbours = neighbours | _upright(rows, neighbours)
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_mean(key, middle, neighbours) for key in row]
            middle.update(zip(row, _spread(wanted, [widths[key] for key in row]), strict=True))
    return middle


def _upright(rows: list[list[Key]], neighbours: Mapping[Key, list[Key]]) -> dict[Key, list[Key]]:
    """For where an edge passes a layer, where it passes the next ones."""
    bends = [key for row in rows for key in row if isinstance(key, _Bend)]
    among = {key: [each for each in neighbours[key] if isinstance(each, _Bend)] for key in bends}
    return {key: found for key, found in among.items() if found}


def _spread(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The wanted places, moved apart as little as is simple: halfway between right and left."""
    rightmost = _pushed(wanted, widths)
    mirrored = _pushed([-each for each in reversed(wanted)], list(reversed(widths)))
    leftmost = [-each for each in reversed(mirrored)]
    return [(a + b) / 2 for a, b in zip(rightmost, leftmost, strict=True)]


def _pushed(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    placed: list[float] = []
    for index, place in enumerate(wanted):
        if index:
            place = max(place, placed[-1] + (widths[index - 1] + widths[index]) / 2)
        placed.append(place)
    return placed


def _apart(
    routes: dict[Edge, list[tuple[float, float]]], sizes: Mapping[Key, Size]
) -> dict[Edge, list[tuple[float, float]]]:
    """The routes, with a place of its own for each at the top of the box that it leads to."""
    arriving = defaultdict(list)
    for edge in routes:
        arriving[edge[1]].append(edge)
    for key, edges in arriving.items():
        edges.sort(key=lambda edge: routes[edge][-2][0])
        room = min(_ROOM_AT_A_BOX, sizes[key][0] / (len(edges) + 1))
        for index, edge in enumerate(edges):
            across, down = routes[edge][-1]
            routes[edge][-1] = (across + (index - (len(edges) - 1) / 2) * room, down)
    return routes
