# SPDX-License-Identifier: Apache-2.0
"""Disjoint sets with union and find."""

from typing import Generic, TypeVar

T = TypeVar("T")


class DisjointSets(Generic[T]):
    """Disjoint sets of elements, which are alone at first."""

    def __init__(self) -> None:
        self._parents: dict[T, T] = {}

    def find(self, element: T) -> T:
        """Return the representative of the set of an element."""
        parents = self._parents
        while element in parents:
            parent = parents[element]
            parents[element] = parents.get(parent, parent)  # path halving
            element = parent
        return element

    def join(self, a: T, b: T) -> None:
        """Merge the sets of two elements; the representative of the first stays."""
        a, b = self.find(a), self.find(b)
        if a is not b:
            self._parents[b] = a
