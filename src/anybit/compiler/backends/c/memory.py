# SPDX-License-Identifier: Apache-2.0
"""Memory of the tensors: the caller's, or a place in the arena."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anybit.compiler.backends.c.arena import Arena, Buffer, plan_arena
from anybit.compiler.backends.c.element_places import is_same_order
from anybit.compiler.backends.c.layers import Layer
from anybit.compiler.backends.c.literals import parenthesize
from anybit.compiler.backends.c.types import CType, StoredTensor
from anybit.compiler.program import program as p
from anybit.compiler.program.operands import list_tensor_sources, writes_floats

Step = tuple[p.Instruction, Layer]
"""An instruction and its function."""


@dataclass(frozen=True, eq=False)
class MemoryPlan:
    """Places of tensors.

    Attributes:
        arena: The buffers.
        tensors: The tensors.
        roots: The tensor whose memory each tensor has.
        outside: Roots that the caller keeps, and their expressions.
        slots: Numbers of the buffers of other roots, and of the scratch memory of functions.
    """

    arena: Arena
    tensors: Sequence[StoredTensor]
    roots: Sequence[int]
    outside: Mapping[int, str]
    slots: Mapping[int | str, int]

    def point(self, tensor: int) -> str:
        """Return the expression of a pointer to a tensor."""
        root = self.roots[tensor]
        if root in self.outside:
            return self.outside[root]
        return self._point(root, self.tensors[tensor].ctype)

    def point_scratch(self, layer: Layer, ctype: CType) -> str:
        """Return the expression of a pointer to the scratch memory of a function."""
        return self._point(layer.name, ctype)

    def _point(self, slot: int | str, ctype: CType) -> str:
        offset = self.arena.offsets[self.slots[slot]]
        place = f"memory + {offset}" if offset else "memory"
        if ctype is CType.UINT8:
            return place
        through = "(void *)" if ctype.size > 1 else ""
        return f"({ctype.value} *){through}{parenthesize(place)}"


def find_roots(program: p.Program, tensors: Sequence[StoredTensor]) -> list[int]:
    """Return the tensor whose memory each tensor has; some reshapes copy nothing."""
    roots = list(range(len(tensors)))
    for at in program.instructions:
        if isinstance(at, p.Reshape):
            x, y = tensors[at.source], tensors[at.target]
            if is_same_order(at, x, y):
                roots[at.target] = roots[at.source]
    return roots


def plan_memory(
    steps: Sequence[Step],
    tensors: Sequence[StoredTensor],
    roots: Sequence[int],
    outside: Mapping[int, str],
) -> MemoryPlan:
    """Place tensors by their liveness; a target may overwrite what its function has read."""
    spans: dict[int, list[int]] = {}
    for place, (at, _) in enumerate(steps):
        for tensor in (*list_tensor_sources(at), *list_targets(at)):
            if roots[tensor] not in outside:
                spans.setdefault(roots[tensor], []).append(place)
    slots: dict[int | str, int] = {}
    buffers: list[Buffer] = []
    for root, places in spans.items():
        slots[root] = len(buffers)
        buffers.append(Buffer(f"t{root}", tensors[root].bytes, min(places), max(places)))
    distances = {}
    for place, (at, layer) in enumerate(steps):
        if layer.scratch:
            slots[layer.name] = len(buffers)
            buffers.append(Buffer(f"{layer.name} scratch", layer.scratch, place, place))
        if layer.distance is None or not list_targets(at):
            continue
        target = slots.get(roots[at.target])
        for tensor in list_tensor_sources(at):
            source = slots.get(roots[tensor])
            if source is None or target is None:
                continue
            ends = buffers[source].last == place == buffers[target].first
            if ends and _may_alias(tensors[tensor].ctype, tensors[at.target].ctype):
                distances[target, source] = layer.distance
    return MemoryPlan(plan_arena(buffers, distances), tensors, roots, outside, slots)


def _may_alias(first: CType, second: CType) -> bool:
    """Return whether C lets elements of two types share memory: of equal ones, and of bytes."""
    return first is second or min(first.size, second.size) == 1


def list_targets(at: p.Instruction) -> tuple[int, ...]:
    """Return the tensor that an instruction writes, if it does not write floats."""
    return () if writes_floats(at) else (at.target,)
