# SPDX-License-Identifier: Apache-2.0
"""From planned instructions to programs, one per region."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from anybit.compiler.analyze.disjoint_sets import DisjointSets
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.partition.expressions import (
    IntegerTensor,
    PlannedInstruction,
    RegionInput,
    RegionOutput,
)
from anybit.compiler.partition.layout import Layout
from anybit.compiler.partition.sharing import live_instructions
from anybit.compiler.program import program as p
from anybit.compiler.program.network import Network

_SOURCES = {1: ("source",), 2: ("first", "second")}


@dataclass(frozen=True, eq=False)
class Region:
    """A part of a graph and the program that computes it.

    Attributes:
        program: The program.
        inputs, outputs: The values of the graph that it takes and gives, in its order.
        tensors: What its tensors of codes are, in its order.
        codes: The names of these values in the graph that was compiled.
        layers: What it computes of the graph, by the numbers of the instructions that do it.
    """

    program: p.Program
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    tensors: tuple[IntegerTensor, ...]
    codes: frozenset[str]
    layers: Mapping[int, CompiledLayer]

    @property
    def exposed(self) -> "Region":
        """The same with all tensors of codes as further results, as the floats they stand for."""
        inner: dict[ir.Value, tuple[int, IntegerTensor]] = {}
        for number, coded in enumerate(self.tensors):
            if coded.value not in self.outputs:
                inner.setdefault(coded.value, (number, coded))
        ports = [_port(coded.place.sizes, coded.place) for _, coded in inner.values()]
        first = len(self.program.outputs)
        added = [
            p.Dequantize(number, first + place, coded.codes.decode(coded.codes.all))
            for place, (number, coded) in enumerate(inner.values())
        ]
        program = replace(
            self.program,
            outputs=(*self.program.outputs, *ports),
            instructions=(*self.program.instructions, *added),
        )
        return replace(self, program=program, outputs=(*self.outputs, *inner))

    @cached_property
    def network(self) -> Network:
        """The program on the kernels of this machine."""
        return Network(self.program)


def encode_regions(planned: Sequence[PlannedInstruction]) -> list[Region]:
    """A region for each set of instructions that hang together; without products there is none."""
    return [
        _region(part)
        for part in _connected(live_instructions(planned))
        if any(each.layer is not None and each.layer.macs for each in part)
    ]


def _connected(planned: Sequence[PlannedInstruction]) -> Iterable[list[PlannedInstruction]]:
    """The instructions in groups that share no tensor, each in its order."""
    groups: DisjointSets[object] = DisjointSets()
    for each in planned:
        for end in (*each.reads, each.writes):
            if not isinstance(end, RegionInput):
                groups.join(end.tensor if isinstance(end, IntegerTensor) else end, each)
    parts: dict[object, list[PlannedInstruction]] = {}
    for each in planned:
        parts.setdefault(groups.root(each), []).append(each)
    return parts.values()


def _region(planned: Sequence[PlannedInstruction]) -> Region:
    ports: dict[tuple[ir.Value, Layout], tuple[int, RegionInput]] = {}
    for inlet in (read for each in planned for read in each.reads if isinstance(read, RegionInput)):
        ports.setdefault((inlet.value, inlet.place), (len(ports), inlet))
    outlets: list[RegionOutput] = []
    tensors: dict[object, tuple[int, IntegerTensor]] = {}
    instructions = []
    for each in planned:
        numbers = []
        for read in each.reads:
            if isinstance(read, RegionInput):
                numbers.append(ports[read.value, read.place][0])
            elif isinstance(read, RegionOutput):
                numbers.append(len(ports) + outlets.index(read))
            else:
                numbers.append(tensors[read.tensor][0])
        if isinstance(each.writes, RegionOutput):
            outlets.append(each.writes)
            target = len(outlets) - 1
        else:
            written = len(tensors), each.writes
            target = tensors.setdefault(each.writes.tensor, written)[0]
        sources = dict(zip(_SOURCES[len(numbers)], numbers, strict=True))
        instructions.append(each.kind(**sources, target=target, **each.fields))
    inlets = [inlet for _, inlet in ports.values()]
    program = p.Program(
        tuple(_port(inlet.sizes, inlet.place) for inlet in inlets),
        tuple(_port(outlet.place.sizes, outlet.place) for outlet in outlets),
        tuple(_tensor(coded) for _, coded in tensors.values()),
        tuple(instructions),
    )
    return Region(
        program,
        tuple(inlet.value for inlet in inlets),
        tuple(outlet.value for outlet in outlets),
        tuple(coded for _, coded in tensors.values()),
        frozenset(str(coded.value.name) for _, coded in tensors.values()),
        {number: each.layer for number, each in enumerate(planned) if each.layer is not None},
    )


def _port(sizes: tuple[int, ...], place: Layout) -> p.Port:
    return p.Port(
        np.array(sizes, np.int32),
        place.height,
        place.width,
        place.channels,
        int(place.channels_first),
    )


def _tensor(coded: IntegerTensor) -> p.Tensor:
    place, codes = coded.place, coded.codes
    return p.Tensor(
        place.height, place.width, place.channels, codes.lowest, codes.step, codes.levels
    )
