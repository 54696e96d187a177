# SPDX-License-Identifier: Apache-2.0
"""Encoding of planned instructions as programs, one per region."""

from collections.abc import Collection, Iterable, Mapping, Sequence
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
from anybit.compiler.partition.sharing import get_identity, select_live_instructions
from anybit.compiler.prepare.batch_first import get_moves_to_file
from anybit.compiler.program import program as p
from anybit.compiler.program.network import Network
from anybit.onnx.graph.names import get_source_name

_SOURCES = {1: ("source",), 2: ("first", "second")}
_SOURCES_OF = {
    p.DynamicZero: ("source", "scale"),
    p.DynamicQuantize: ("source", "scale", "zero"),
    p.BlockProduct: ("source", "zero"),
    p.AsymmetricBlockProduct: ("source", "zero"),
}
_MISSING = -1


@dataclass(frozen=True, eq=False)
class Region:
    """A part of a graph and the program that computes it.

    Attributes:
        program: The program.
        inputs, outputs: The values of the graph that it reads and computes, in its order.
        tensors: Its tensors of codes, in its order.
        codes: The names of these values in the source graph.
        layers: The layers that it computes, by the numbers of their instructions.
    """

    program: p.Program
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    tensors: tuple[IntegerTensor, ...]
    codes: frozenset[str]
    layers: Mapping[int, CompiledLayer]

    @property
    def exposed(self) -> "Region":
        """The region with all tensors of codes as further outputs, decoded to float32."""
        inner: dict[ir.Value, tuple[int, IntegerTensor]] = {}
        for number, tensor in enumerate(self.tensors):
            if tensor.value not in self.outputs and _is_in_graph(tensor.value):
                inner.setdefault(tensor.value, (number, tensor))
        ports = [_encode_port(tensor.layout.sizes, tensor.layout) for _, tensor in inner.values()]
        first = len(self.program.floats) + len(self.program.outputs)
        instructions = [
            p.Dequantize(number, first + position, tensor.grid.values)
            for position, (number, tensor) in enumerate(inner.values())
        ]
        program = replace(
            self.program,
            outputs=(*self.program.outputs, *ports),
            instructions=(*self.program.instructions, *instructions),
        )
        return replace(self, program=program, outputs=(*self.outputs, *inner))

    @cached_property
    def network(self) -> Network:
        """The program on the kernels of this machine, verified."""
        return Network(self.program)


def encode_regions(
    instructions: Sequence[PlannedInstruction],
    outputs: Collection[ir.Value],
    added: frozenset[str] = frozenset(),
) -> tuple[Region, ...]:
    """Return one region per connected set of instructions with products.

    Args:
        instructions: The instructions in an order in which they can run.
        outputs: The float values that the regions have to give.
        added: The names of values that the source graph does not have.
    """
    regions = [
        _encode(part, outputs)
        for part in _group_connected(select_live_instructions(instructions, outputs))
        if any(instruction.layer is not None and instruction.layer.macs for instruction in part)
    ]
    return tuple(replace(region, codes=region.codes - added) for region in regions)


def _group_connected(
    instructions: Sequence[PlannedInstruction],
) -> Iterable[list[PlannedInstruction]]:
    """Group the instructions so that groups share no tensor; each keeps its order."""
    sets: DisjointSets[object] = DisjointSets()
    for instruction in instructions:
        for end in (*instruction.reads, instruction.writes):
            if not isinstance(end, RegionInput):
                sets.join(get_identity(end), instruction)
    parts: dict[object, list[PlannedInstruction]] = {}
    for instruction in instructions:
        parts.setdefault(sets.find(instruction), []).append(instruction)
    return parts.values()


class _Encoder:
    """Numbers of ports and tensors of one program."""

    def __init__(
        self, instructions: Sequence[PlannedInstruction], outputs: Collection[ir.Value]
    ) -> None:
        self.inputs: dict[tuple[ir.Value, Layout], tuple[int, RegionInput]] = {}
        self.floats: list[RegionOutput] = []
        self.outputs: list[RegionOutput] = []
        self.tensors: dict[object, tuple[int, IntegerTensor]] = {}
        for instruction in instructions:
            writes = instruction.writes
            if isinstance(writes, RegionOutput):
                (self.outputs if writes.value in outputs else self.floats).append(writes)
            for read in instruction.reads:
                if isinstance(read, RegionInput):
                    key = read.value, read.layout
                    self.inputs.setdefault(key, (len(self.inputs), read))
        reads = sorted(self.inputs.items(), key=lambda entry: _find_place(entry[1][1].value))
        self.inputs = {key: (number, read) for number, (key, (_, read)) in enumerate(reads)}
        self.outputs.sort(key=lambda output: _find_place(output.value))

    def encode(self, instruction: PlannedInstruction) -> p.Instruction:
        """Return an instruction whose operands are numbers."""
        numbers = [self._source(read) for read in instruction.reads]
        target = self._target(instruction.writes)
        if instruction.kind is p.Elementwise and len(numbers) == 1:
            numbers.append(_MISSING)
        names = _SOURCES_OF.get(instruction.kind) or _SOURCES[len(numbers)]
        numbers += [_MISSING] * (len(names) - len(numbers))
        sources = dict(zip(names, numbers, strict=True))
        encoded: p.Instruction = instruction.kind(**sources, target=target, **instruction.fields)
        return encoded

    def _source(self, read: RegionInput | RegionOutput | IntegerTensor) -> int:
        if isinstance(read, RegionInput):
            return self.inputs[read.value, read.layout][0]
        if isinstance(read, RegionOutput):
            return len(self.inputs) + self._float_number(read)
        return self.tensors[read.identity][0]

    def _target(self, writes: RegionOutput | IntegerTensor) -> int:
        if isinstance(writes, RegionOutput):
            return self._float_number(writes)
        return self.tensors.setdefault(writes.identity, (len(self.tensors), writes))[0]

    def _float_number(self, array: RegionOutput) -> int:
        return [*self.floats, *self.outputs].index(array)


def _encode(instructions: Sequence[PlannedInstruction], outputs: Collection[ir.Value]) -> Region:
    encoder = _Encoder(instructions, outputs)
    encoded = tuple(map(encoder.encode, instructions))
    inputs = [read for _, read in encoder.inputs.values()]
    tensors = tuple(tensor for _, tensor in encoder.tensors.values())
    program = p.Program(
        tuple(_encode_port(read.sizes, read.layout) for read in inputs),
        tuple(_encode_port(output.layout.sizes, output.layout) for output in encoder.outputs),
        tuple(map(_encode_tensor, tensors)),
        encoded,
        tuple(
            p.FloatTensor(array.layout.height, array.layout.width, array.layout.channels)
            for array in encoder.floats
        ),
    )
    layers = {
        number: instruction.layer
        for number, instruction in enumerate(instructions)
        if instruction.layer is not None
    }
    return Region(
        program,
        tuple(read.value for read in inputs),
        tuple(output.value for output in encoder.outputs),
        tensors,
        frozenset(
            get_source_name(tensor.value) for tensor in tensors if _is_in_graph(tensor.value)
        ),
        layers,
    )


def _is_in_graph(value: ir.Value) -> bool:
    """Return whether a value is one of the file; codes with a computed scale are none."""
    if get_moves_to_file(value) is None:
        return False
    return value.producer() is not None or value.is_graph_input()


def _find_place(value: ir.Value) -> int:
    """Return the place of a value among the inputs or outputs of its graph; else one after them."""
    graph = value.graph
    if graph is None:
        return 0
    if value.is_graph_input():
        return graph.inputs.index(value)
    return graph.outputs.index(value) if value.is_graph_output() else len(graph.outputs)


def _encode_port(sizes: tuple[int, ...], layout: Layout) -> p.Port:
    return p.Port(
        np.array(sizes, np.int32),
        layout.height,
        layout.width,
        layout.channels,
        int(layout.channels_first),
    )


def _encode_tensor(tensor: IntegerTensor) -> p.Tensor:
    layout, grid = tensor.layout, tensor.grid
    return p.Tensor(
        layout.height, layout.width, layout.channels, grid.lowest, grid.step, grid.levels
    )
