# SPDX-License-Identifier: Apache-2.0
"""Layered layout of a directed acyclic graph, from top to bottom."""

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
_EDGE_WIDTH = 14
_PORT_DISTANCE = 40
_SWEEPS = 40


@dataclass(frozen=True)
class Layout:
    """Positions: for a box the middle of its top side, for an edge its corners."""

    places: dict[Key, tuple[float, float]]
    routes: dict[Edge, list[tuple[float, float]]]
    width: float
    height: float


@dataclass(frozen=True)
class _Bend:
    """Crossing of an edge and a layer."""

    edge: Edge
    layer: int


def layout(sizes: Mapping[Key, Size], edges: Sequence[Edge]) -> Layout:
    """Place every box below its predecessors; a layer starts in the order of `sizes`."""
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
        key: sizes[key][0] + BETWEEN_BOXES if key in sizes else _EDGE_WIDTH
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
    """Return the longest path to each box; sources are right above their first consumer."""
    level = dict.fromkeys(keys, 0)
    for _ in keys:
        for first, second in edges:
            level[second] = max(level[second], level[first] + 1)
    consumers = defaultdict(list)
    for first, second in edges:
        consumers[first].append(level[second])
    targets = {second for _, second in edges}
    for key in keys:
        if key not in targets and consumers[key]:
            level[key] = min(consumers[key]) - 1
    return level


def _chain(edge: Edge, level: Mapping[Key, int]) -> list[Key]:
    first, second = edge
    return [first, *(_Bend(edge, at) for at in range(level[first] + 1, level[second])), second]


def _order(
    rows: list[list[Key]], above: Mapping[Key, list[Key]], below: Mapping[Key, list[Key]]
) -> None:
    """Sort each row by the mean position of its neighbours, down and up in turn."""
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = above if downwards else below
        for row in rows if downwards else reversed(rows):
            position = {key: index / len(line) for line in rows for index, key in enumerate(line)}
            row.sort(key=lambda key, at=position, near=neighbours: _mean(key, at, near))


def _mean(key: Key, at: Mapping[Key, float], near: Mapping[Key, list[Key]]) -> float:
    neighbours = near.get(key, [])
    return sum(at[other] for other in neighbours) / len(neighbours) if neighbours else at[key]


def _across(
    rows: list[list[Key]],
    widths: Mapping[Key, float],
    neighbours: dict[Key, list[Key]],
) -> dict[Key, float]:
    """Return the horizontal middle of boxes and bends: near neighbours, without overlaps."""
    middle: dict[Key, float] = {}
    for row in rows:
        at = -sum(widths[key] for key in row) / 2
        for key in row:
            middle[key] = at + widths[key] / 2
            at += widths[key]
    for sweep in range(2 * _SWEEPS):
        if sweep == _SWEEPS:  # boxes have settled: straighten the edges
            neighbours = neighbours | _upright(rows, neighbours)
        for row in rows if sweep % 2 == 0 else reversed(rows):
            targets = [_mean(key, middle, neighbours) for key in row]
            middle.update(zip(row, _spread(targets, [widths[key] for key in row]), strict=True))
    return middle


def _upright(rows: list[list[Key]], neighbours: Mapping[Key, list[Key]]) -> dict[Key, list[Key]]:
    """Return the neighbours of bends that are bends, too."""
    bends = [key for row in rows for key in row if isinstance(key, _Bend)]
    among = {key: [other for other in neighbours[key] if isinstance(other, _Bend)] for key in bends}
    return {key: others for key, others in among.items() if others}


def _spread(targets: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Remove overlaps: the mean of pushing boxes to the right and to the left."""
    rightmost = _push_right(targets, widths)
    mirrored = _push_right([-target for target in reversed(targets)], list(reversed(widths)))
    leftmost = [-place for place in reversed(mirrored)]
    return [(a + b) / 2 for a, b in zip(rightmost, leftmost, strict=True)]


def _push_right(targets: Sequence[float], widths: Sequence[float]) -> list[float]:
    placed: list[float] = []
    for index, place in enumerate(targets):
        if index:
            place = max(place, placed[-1] + (widths[index - 1] + widths[index]) / 2)
        placed.append(place)
    return placed


def _apart(
    routes: dict[Edge, list[tuple[float, float]]], sizes: Mapping[Key, Size]
) -> dict[Edge, list[tuple[float, float]]]:
    """Spread the ends of edges that arrive at the same box."""
    incoming = defaultdict(list)
    for edge in routes:
        incoming[edge[1]].append(edge)
    for key, edges in incoming.items():
        edges.sort(key=lambda edge: routes[edge][-2][0])
        distance = min(_PORT_DISTANCE, sizes[key][0] / (len(edges) + 1))
        for index, edge in enumerate(edges):
            across, down = routes[edge][-1]
            routes[edge][-1] = (across + (index - (len(edges) - 1) / 2) * distance, down)
    return routes
