# SPDX-License-Identifier: Apache-2.0
"""Things that belong together because something joins each to another."""

from typing import Generic, TypeVar

T = TypeVar("T")


class DisjointSets(Generic[T]):
    """Sets of things that have been joined; alone each is a set of its own."""

    def __init__(self) -> None:
        self._parents: dict[T, T] = {}

    def root(self, each: T) -> T:
        """The one that stands for the set of another."""
        parents = self._parents
        while each in parents:
            above = parents[each]
            parents[each] = parents.get(above, above)  # half the way for who comes next
            each = above
        return each

    def join(self, a: T, b: T) -> None:
        """Let the sets of two be one."""
        a, b = self.root(a), self.root(b)
        if a is not b:
            self._parents[b] = a
