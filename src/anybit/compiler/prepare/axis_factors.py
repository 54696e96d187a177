# SPDX-License-Identifier: Apache-2.0
"""Axes of tensors as products of factors, which Reshapes and Transposes move."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Size: TypeAlias = int | str | None
"""A number, the name of a dynamic size, or None for an unnamed one."""


class AxisFactor:
    """A part of an axis, compared by identity.

    Attributes:
        size: Its size, which is not 1.
    """

    def __init__(self, size: Size) -> None:
        self.size = size
        self._parts: tuple[AxisFactor, ...] = ()

    def split(self, first: int, second: int) -> None:
        """Let the factor be the product of two, wherever it is used."""
        self._parts = tuple(AxisFactor(size) for size in (first, second))

    def resolve(self) -> "tuple[AxisFactor, ...]":
        """Return the factors that it has been split into."""
        return tuple(leaf for part in self._parts for leaf in part.resolve()) or (self,)


Axis: TypeAlias = tuple[AxisFactor, ...]
AxisLayout: TypeAlias = tuple[Axis, ...]
"""The factors of each axis, the slowest first; an axis of size 1 has none."""


@dataclass(frozen=True)
class Move:
    """A Reshape to sizes, 0 to keep one and -1 to infer one, or a Transpose by an order."""

    operator: str
    numbers: tuple[int, ...]


def make_layout(sizes: Iterable[Size]) -> AxisLayout:
    """Return a layout of new factors."""
    return tuple(() if size == 1 else (AxisFactor(size),) for size in sizes)


def resolve(layout: AxisLayout) -> AxisLayout:
    """Return a layout in terms of the factors that have not been split."""
    return tuple(tuple(leaf for factor in axis for leaf in factor.resolve()) for axis in layout)


def flatten(layout: Iterable[Axis]) -> Axis:
    """Return the factors of all axes in the order of the elements."""
    return tuple(factor for axis in layout for factor in axis)


def get_axis_size(axis: Axis) -> int | None:
    """Return the size of an axis; None if it is dynamic."""
    sizes = [factor.size for factor in axis if isinstance(factor.size, int)]
    return math.prod(sizes) if len(sizes) == len(axis) else None


def regroup(layout: AxisLayout, sizes: Sequence[Size]) -> AxisLayout | None:
    """Return the layout of the same elements in a tensor of these sizes; None if it is unknown.

    Factors are split where that is necessary.
    """
    left, right = list(flatten(resolve(layout))), list[AxisFactor]()
    groups: list[Axis | None] = []
    for size in sizes:
        group = _take(left, size)
        if group is None:
            break
        groups.append(group)
    rest: list[Axis] = []
    for size in reversed(sizes[len(groups) + 1 :]):
        right = left[::-1]
        group = _take(right, size, last=True)
        if group is None:
            return None
        left = right[::-1]
        rest.insert(0, group[::-1])
    if len(groups) < len(sizes):
        place = len(groups)
        if isinstance(sizes[place], int):
            return None
        groups.append(tuple(left))
        left = []
    result = (*(group or () for group in groups), *rest)
    return None if left else resolve(result)


def _take(factors: list[AxisFactor], size: Size, *, last: bool = False) -> Axis | None:
    """Remove the first factors of this product; None if they do not have it.

    Args:
        factors: The factors, in reverse for the last axes.
        size: The size of an axis.
        last: Whether the order is reversed.
    """
    if not isinstance(size, int):
        is_named = size is not None and factors and factors[0].size == size
        return (factors.pop(0),) if is_named else None
    taken: list[AxisFactor] = []
    remaining = size
    while remaining != 1:
        number = factors[0].size if factors else None
        if not isinstance(number, int) or not number or not remaining:
            return None
        if number > remaining:
            if number % remaining:
                return None
            parts = (number // remaining, remaining) if last else (remaining, number // remaining)
            factors[0].split(*parts)
            factors[:1] = factors[0].resolve()[::-1] if last else factors[0].resolve()
            continue
        if remaining % number:
            return None
        taken.append(factors.pop(0))
        remaining //= number
    return tuple(taken)


def plan_moves(source: AxisLayout, target: AxisLayout) -> list[Move] | None:
    """Return the moves between two layouts; None if they have other factors or open sizes."""
    before, after = flatten(source), flatten(target)
    if len({*before}) < len(before) or {*before} != {*after} or len(before) != len(after):
        return None
    if source == target:
        return []
    if before == after:
        moves = [_plan_reshape(source, target)]
    else:
        pieces = _cut(source, target)
        order = tuple(np.argsort(_place_axes(pieces, after)).tolist())
        moved = tuple(pieces[at] for at in order)
        moves = [
            _plan_reshape(source, pieces),
            Move("Transpose", order),
            _plan_reshape(moved, target),
        ]
    if None in moves:
        return None
    return [move for move in moves if move is not None and move.numbers]


def _cut(source: AxisLayout, target: AxisLayout) -> AxisLayout:
    """Return the axes that a Transpose permutes: those of one of the layouts, if it has them."""
    before, after = flatten(source), flatten(target)
    for layout, order in ((source, after), (target, before)):
        places = [(order.index(axis[0]), axis) for axis in layout if axis]
        if all(order[place : place + len(axis)] == axis for place, axis in places):
            return tuple(layout[at] for at in np.argsort(_place_axes(layout, before)))
    return _find_runs(before, after)


def _place_axes(layout: AxisLayout, order: Axis) -> list[float]:
    """Return the places of axes in an order; the first one stays first if its size is 1."""
    places: list[float] = []
    following = float(len(order))
    for axis in reversed(layout):
        following = order.index(axis[0]) if axis else following - 1 / (len(layout) + 1)
        places.insert(0, following)
    return [-1, *places[1:]] if layout and not layout[0] else places


def _find_runs(before: Axis, after: Axis) -> AxisLayout:
    """Return the longest pieces of consecutive factors that are consecutive in both orders."""
    runs: list[list[AxisFactor]] = []
    for factor in before:
        place = after.index(factor)
        if runs and place and after[place - 1] is runs[-1][-1]:
            runs[-1].append(factor)
        else:
            runs.append([factor])
    return tuple(tuple(run) for run in runs)


def _plan_reshape(source: AxisLayout, target: AxisLayout) -> Move | None:
    """Return a Reshape, without numbers if it changes nothing; None if two sizes are open."""
    if source == target:
        return Move("Reshape", ())
    numbers = []
    for place, axis in enumerate(target):
        size = get_axis_size(axis)
        if place < len(source) and source[place] == axis and (place == 0 or size is None):
            numbers.append(0)
        elif size == 0:
            return None
        else:
            numbers.append(-1 if size is None else size)
    open_sizes = [get_axis_size(axis) is None for axis in target]
    kept = any(is_open and not number for is_open, number in zip(open_sizes, numbers, strict=True))
    # A tensor without elements has no size to infer beside a dynamic one.
    if numbers.count(-1) > (0 if kept else 1):
        return None
    return Move("Reshape", tuple(numbers))
