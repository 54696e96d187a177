# SPDX-License-Identifier: Apache-2.0
"""Which tensor of B belongs to which of A."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

import onnx_ir as ir

from anybit.comparison.arrays import squeezed
from anybit.comparison.results import Match
from anybit.comparison.sides.network import Side, kind_of


@dataclass(frozen=True)
class Pair:
    """The names of two tensors that belong together."""

    a: str
    b: str
    matched: Match


def match(a: Side, b: Side, *, constants: bool) -> list[Pair]:
    """Pair tensors: by name, then outputs with outputs, then by position.

    Tensors of one name and different shapes are paired last, if nothing else fits them: exporters
    number their tensors, and the numbers move. For the same reason a name that is a number counts
    only where both sides make the tensor alike.

    `constants` says whether what both sides merely store is compared too.
    """
    matching = _Matching(a, b, constants)
    matching.by_name()
    matching.by_output()
    matching.by_position()
    matching.by_name(any_shape=True)
    return matching.pairs


class _Matching:
    def __init__(self, a: Side, b: Side, constants: bool) -> None:
        self.pairs: list[Pair] = []
        self._a, self._b = a, b
        self._made_a = {value.name or "": value for value in a.computed()}
        self._made_b = {value.name or "": value for value in b.computed()}
        self._constants = constants
        self._free_a = dict.fromkeys(a.arrays)
        self._free_b = dict.fromkeys(b.arrays)

    def by_name(self, *, any_shape: bool = False) -> None:
        for name in [name for name in self._free_a if name in self._free_b]:
            made = name in self._made_a or name in self._made_b
            if not (made or self._constants or self._b.network is None):
                continue
            if any_shape or (self._same_shape(name, name) and self._means_the_same(name)):
                self._pair(name, name, Match.NAME)

    def by_output(self) -> None:
        for ours, theirs in self._outputs():
            free = ours in self._free_a and theirs in self._free_b
            if free and self._same_shape(ours, theirs):
                self._pair(ours, theirs, Match.OUTPUT)

    def by_position(self) -> None:
        """Where the sequences of what is left agree, between what is already matched."""
        if self._free_a.keys().isdisjoint(self._made_a):
            return
        others = {pair.a: pair.b for pair in self.pairs}
        ours = [self._key(value, self._a, others) for value in self._made_a.values()]
        theirs = [self._key(value, self._b, {}) for value in self._made_b.values()]
        blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
        names_a, names_b = list(self._made_a), list(self._made_b)
        for block in blocks:
            for offset in range(block.size):
                first, second = names_a[block.a + offset], names_b[block.b + offset]
                if first in self._free_a and second in self._free_b:
                    self._pair(first, second, Match.POSITION)

    def _pair(self, a: str, b: str, matched: Match) -> None:
        self.pairs.append(Pair(a, b, matched))
        del self._free_a[a], self._free_b[b]

    def _same_shape(self, a: str, b: str) -> bool:
        return squeezed(self._a.arrays[a].shape) == squeezed(self._b.arrays[b].shape)

    def _means_the_same(self, name: str) -> bool:
        ours, theirs = self._made_a.get(name), self._made_b.get(name)
        if not name.isdigit() or ours is None or theirs is None:
            return True
        return kind_of(ours) == kind_of(theirs)

    def _outputs(self) -> Iterator[tuple[str, str]]:
        ours = self._a.network.outputs if self._a.network is not None else []
        if self._b.network is not None:
            theirs = self._b.network.outputs
            if len(ours) == len(theirs):
                yield from zip(ours, theirs, strict=True)
        elif self._a.network is not None and len(ours) == 1:
            # Recorded tensors: `y` stands for the output as `x` does for the input.
            inputs = {each.name for each in self._a.network.inputs} | {"x"}
            names = [name for name in self._b.arrays if name not in inputs]
            yield ours[0], names[0] if len(names) == 1 else "y"

    def _key(self, value: ir.Value, side: Side, others: dict[str, str]) -> object:
        name = value.name or ""
        free = self._free_a if side is self._a else self._free_b
        if name not in free:
            return "matched", others.get(name, name)
        array = side.arrays[name]
        return kind_of(value), array.shape, array.dtype.name
