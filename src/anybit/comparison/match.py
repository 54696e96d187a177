# SPDX-License-Identifier: Apache-2.0
"""Pairs of tensors of two sides that belong together."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

import onnx_ir as ir

from anybit.comparison.results import Match
from anybit.comparison.sides.network import Side, describe_producer
from anybit.metrics.arrays import squeeze_shape


@dataclass(frozen=True)
class Pair:
    """The names of two tensors that belong together."""

    a: str
    b: str
    matched: Match


def match_tensors(a: Side, b: Side, *, constants: bool) -> list[Pair]:
    """Pair tensors: by name, then outputs with outputs, then by position.

    Tensors of one name and different shapes are paired last, if nothing else fits them: exporters
    number their tensors, and the numbers move. For the same reason a name that is a number counts
    only if the same kind of node makes the tensor on both sides.

    `constants` tells whether constants that both sides store are compared, too.
    """
    matcher = _Matcher(a, b, constants)
    matcher.by_name()
    matcher.by_output()
    matcher.by_position()
    matcher.by_name(any_shape=True)
    return matcher.pairs


class _Matcher:
    def __init__(self, a: Side, b: Side, constants: bool) -> None:
        self.pairs: list[Pair] = []
        self._a, self._b = a, b
        self._computed_a = {value.name or "": value for value in a.computed()}
        self._computed_b = {value.name or "": value for value in b.computed()}
        self._constants = constants
        self._free_a = dict.fromkeys(a.arrays)
        self._free_b = dict.fromkeys(b.arrays)

    def by_name(self, *, any_shape: bool = False) -> None:
        for name in [name for name in self._free_a if name in self._free_b]:
            is_computed = name in self._computed_a or name in self._computed_b
            if not (is_computed or self._constants or self._b.network is None):
                continue
            if any_shape or (self._same_shape(name, name) and self._is_meaningful(name)):
                self._pair(name, name, Match.NAME)

    def by_output(self) -> None:
        for a, b in self._outputs():
            is_free = a in self._free_a and b in self._free_b
            if is_free and self._same_shape(a, b):
                self._pair(a, b, Match.OUTPUT)

    def by_position(self) -> None:
        """Pair free tensors where both sequences agree between the tensors already matched."""
        if self._free_a.keys().isdisjoint(self._computed_a):
            return
        names_b = {pair.a: pair.b for pair in self.pairs}
        keys_a = [self._key(value, self._a, names_b) for value in self._computed_a.values()]
        keys_b = [self._key(value, self._b, {}) for value in self._computed_b.values()]
        blocks = SequenceMatcher(None, keys_a, keys_b, autojunk=False).get_matching_blocks()
        sequence_a, sequence_b = list(self._computed_a), list(self._computed_b)
        for block in blocks:
            for offset in range(block.size):
                a, b = sequence_a[block.a + offset], sequence_b[block.b + offset]
                if a in self._free_a and b in self._free_b:
                    self._pair(a, b, Match.POSITION)

    def _pair(self, a: str, b: str, matched: Match) -> None:
        self.pairs.append(Pair(a, b, matched))
        del self._free_a[a], self._free_b[b]

    def _same_shape(self, a: str, b: str) -> bool:
        return squeeze_shape(self._a.arrays[a].shape) == squeeze_shape(self._b.arrays[b].shape)

    def _is_meaningful(self, name: str) -> bool:
        """Return whether a name, if it is a number, stands for the same kind of node."""
        a, b = self._computed_a.get(name), self._computed_b.get(name)
        if not name.isdigit() or a is None or b is None:
            return True
        return describe_producer(a) == describe_producer(b)

    def _outputs(self) -> Iterator[tuple[str, str]]:
        outputs_a = self._a.network.outputs if self._a.network is not None else []
        if self._b.network is not None:
            outputs_b = self._b.network.outputs
            if len(outputs_a) == len(outputs_b):
                yield from zip(outputs_a, outputs_b, strict=True)
        elif self._a.network is not None and len(outputs_a) == 1:
            # Recorded tensors: `y` stands for the output as `x` does for the input.
            inputs = {tensor.name for tensor in self._a.network.inputs} | {"x"}
            names = [name for name in self._b.arrays if name not in inputs]
            yield outputs_a[0], names[0] if len(names) == 1 else "y"

    def _key(self, value: ir.Value, side: Side, names_b: dict[str, str]) -> object:
        name = value.name or ""
        free = self._free_a if side is self._a else self._free_b
        if name not in free:
            return "matched", names_b.get(name, name)
        array = side.arrays[name]
        return describe_producer(value), array.shape, array.dtype.name
