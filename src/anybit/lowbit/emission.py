# SPDX-License-Identifier: Apache-2.0
"""From planned instructions to programs, one per region."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from anybit.lowbit import program as p
from anybit.lowbit.layers import CompiledLayer
from anybit.lowbit.network import Network
from anybit.lowbit.parts import Coded, Inlet, Outlet, Planned
from anybit.lowbit.places import Place

_SOURCES = {1: ("source",), 2: ("first", "second")}


@dataclass(frozen=True, eq=False)
class Region:
    """A part of a graph and the program that computes it.

    Attributes:
        program: The program.
        inputs, outputs: The values of the graph that it takes and gives, in its order.
        layers: What it computes of the graph, by the numbers of the instructions that do it.
    """

    program: p.Program
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    layers: Mapping[int, CompiledLayer]

    @cached_property
    def network(self) -> Network:
        """The program on the kernels of this machine."""
        return Network(self.program)


def regions_of(planned: Sequence[Planned]) -> list[Region]:
    """A region for each set of instructions that hang together; without products there is none."""
    return [
        _region(part)
        for part in _connected(_read(planned))
        if any(each.layer is not None and each.layer.macs for each in part)
    ]


def _read(planned: Sequence[Planned]) -> list[Planned]:
    """The instructions whose results reach an output."""
    live: set[object] = set()
    kept = []
    for each in reversed(planned):
        if isinstance(each.writes, Outlet) or each.writes.tensor in live:
            kept.append(each)
            live.update(read.tensor for read in each.reads if isinstance(read, Coded))
    return kept[::-1]


def _connected(planned: Sequence[Planned]) -> Iterable[list[Planned]]:
    """The instructions in groups that share no tensor, each in its order."""
    groups: dict[object, int] = {}
    parts: dict[int, list[Planned]] = {}
    for number, each in enumerate(planned):
        ends = (*each.reads, each.writes)
        tensors = [end.tensor for end in ends if isinstance(end, Coded)]
        joined = {groups[tensor] for tensor in tensors if tensor in groups}
        parts[number] = []
        for other in sorted(joined):
            parts[number] += parts.pop(other)
        parts[number].append(each)
        for tensor, group in groups.items():
            if group in joined:
                groups[tensor] = number
        groups.update(dict.fromkeys(tensors, number))
    order = {each: number for number, each in enumerate(planned)}
    return [sorted(part, key=order.__getitem__) for part in parts.values()]


def _region(planned: Sequence[Planned]) -> Region:
    ports: dict[tuple[ir.Value, Place], Inlet] = {}
    outlets: list[Outlet] = []
    tensors: dict[object, Coded] = {}
    instructions = []
    for each in planned:
        numbers = []
        for read in each.reads:
            if isinstance(read, Inlet):
                ports.setdefault((read.value, read.place), read)
                numbers.append(list(ports).index((read.value, read.place)))
            else:
                numbers.append(list(tensors).index(read.tensor))
        if isinstance(each.writes, Outlet):
            outlets.append(each.writes)
            target = len(outlets) - 1
        else:
            tensors.setdefault(each.writes.tensor, each.writes)
            target = list(tensors).index(each.writes.tensor)
        sources = dict(zip(_SOURCES[len(numbers)], numbers, strict=True))
        instructions.append(each.kind(**sources, target=target, **each.fields))
    program = p.Program(
        tuple(_port(inlet.sizes, inlet.place) for inlet in ports.values()),
        tuple(_port(outlet.place.sizes, outlet.place) for outlet in outlets),
        tuple(_tensor(coded) for coded in tensors.values()),
        tuple(instructions),
    )
    return Region(
        program,
        tuple(inlet.value for inlet in ports.values()),
        tuple(outlet.value for outlet in outlets),
        {number: each.layer for number, each in enumerate(planned) if each.layer is not None},
    )


def _port(sizes: tuple[int, ...], place: Place) -> p.Port:
    return p.Port(
        np.array(sizes, np.int32),
        place.height,
        place.width,
        place.channels,
        int(place.channels_first),
    )


def _tensor(coded: Coded) -> p.Tensor:
    place, codes = coded.place, coded.codes
    return p.Tensor(
        place.height, place.width, place.channels, codes.lowest, codes.step, codes.levels
    )
