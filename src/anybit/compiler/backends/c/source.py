# SPDX-License-Identifier: Apache-2.0
"""C source of a program."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anybit.compiler.backends.c.arena import ALIGNMENT, Arena
from anybit.compiler.backends.c.epilogues import CommonScaling
from anybit.compiler.backends.c.footprint import LayerFootprint
from anybit.compiler.backends.c.identifiers import check_name, make_comment, make_identifier
from anybit.compiler.backends.c.layers import Layer, LayerEmitter
from anybit.compiler.backends.c.layout import wrap_lines
from anybit.compiler.backends.c.memory import (
    MemoryPlan,
    Step,
    find_roots,
    list_targets,
    plan_memory,
)
from anybit.compiler.backends.c.ports import Ports, SourceNames, find_outside
from anybit.compiler.backends.c.refusals import check_integers
from anybit.compiler.backends.c.sharing import define_layers
from anybit.compiler.backends.c.templates import read_version, render
from anybit.compiler.backends.c.types import StoredTensor, find_type, store_tensor
from anybit.compiler.backends.integer_epilogues import make_integer_epilogues
from anybit.compiler.program import program as p
from anybit.compiler.program.network import Network
from anybit.compiler.program.operands import list_tensor_sources
from anybit.errors import ModelError
from anybit.text import format_count

_MOST_IN_16_BITS = 2**14

_DENSITY = 7
"""Characters of the text of a function per byte of code, about."""


@dataclass(frozen=True)
class CSource:
    """A network in C.

    Attributes:
        name: The name of the network, with which its functions begin.
        files: The text of each file, by its name.
        arena: The places of its buffers.
        layers: Its functions, in the order of the instructions that are computed.
        constant_bytes: Size of weights, thresholds and tables.
        macs: Multiplications per run.
        program: The program that it computes.
        outside: The tensors that are inputs and outputs as codes, by their C expressions.
    """

    name: str
    files: Mapping[str, str]
    arena: Arena
    layers: tuple[LayerFootprint, ...]
    constant_bytes: int
    macs: int
    program: p.Program
    outside: Mapping[str, int]


def emit_c(
    program: p.Program,
    name: str,
    *,
    codes: bool = False,
    layout: str = "size",
    labels: SourceNames | None = None,
) -> CSource:
    """Emit the C files of a program.

    Args:
        program: The program.
        name: Name of the network, an identifier.
        codes: Whether inputs and outputs are integer codes, height x width x channels, and not
            float32 in the order of the graph.
        layout: "size" lets layers share functions and stores five ternary weights in a byte;
            "speed" gives each layer its own, and stores four.
        labels: Names from the model.

    Raises:
        ModelError: The program is damaged, or computes in floats between its inputs and outputs.
        OptionError: The name is not an identifier.
    """
    check_name(name)
    try:
        Network(program)
    except ValueError as error:
        raise ModelError(f"{name}: the program is damaged: {error}") from error
    check_integers(program, name, labels or SourceNames())
    integers = make_integer_epilogues(program)
    scalings: list[CommonScaling | None] = [None]
    if layout == "size" and len(_list_scaled(integers)) > 1:
        scalings.append(_find_common(integers))
    emissions = [
        _Emission(integers, name, codes, layout, labels or SourceNames(), common)
        for common in scalings
    ]
    return min(emissions, key=lambda emission: emission.flash).emit()


class _Emission:
    """Functions, memory and files of one network."""

    def __init__(
        self,
        program: p.Program,
        name: str,
        codes: bool,
        layout: str,
        names: SourceNames,
        common: CommonScaling | None,
    ) -> None:
        self.program, self.name, self.codes, self.names = program, name, codes, names
        tensors = [store_tensor(tensor) for tensor in program.tensors]
        index = _select_index(program, tensors)
        small = layout == "size"
        self.emitter = LayerEmitter(program, tensors, index, small=small, common=common)
        self.roots = find_roots(program, tensors)
        outside = find_outside(program, self.roots, names) if codes else {}
        self.ports = Ports(program, tensors, names, outside)
        self.numbers = [n for n, at in enumerate(program.instructions) if not self._is_free(at)]
        self.steps: list[Step] = []
        self.constant_bytes: list[int] = []
        for place, number in enumerate(self.numbers):
            at = self.program.instructions[number]
            before = self.emitter.constants.bytes
            layer = self.emitter.emit(at, self._name_layer(place, number, at))
            if note := self.names.notes.get(number):
                layer = replace(layer, comment=f"{layer.comment}\n{make_comment(note)}")
            self.steps.append((at, layer))
            self.constant_bytes.append(self.emitter.constants.bytes - before)
        self.code = define_layers([layer for _, layer in self.steps], shares=small)

    def emit(self) -> CSource:
        outside = self.ports.outside
        memory = plan_memory(self.steps, self.emitter.tensors, self.roots, outside)
        return CSource(
            self.name,
            self._render(memory),
            memory.arena,
            tuple(self._measure(place, memory.arena) for place in range(len(self.steps))),
            self.emitter.constants.bytes,
            self.macs,
            self.program,
            {expression: root for root, expression in outside.items()},
        )

    @property
    def flash(self) -> float:
        """An estimate of the bytes of constants and code."""
        return self.emitter.constants.bytes + sum(len(code.text) for code in self.code) / _DENSITY

    @property
    def macs(self) -> int:
        """Multiplications per run."""
        return sum(layer.macs for _, layer in self.steps)

    def _is_free(self, at: p.Instruction) -> bool:
        """Return whether an instruction takes no code."""
        if isinstance(at, p.Reshape):
            return self.roots[at.target] != at.target
        return self.codes and isinstance(at, p.Quantize | p.Dequantize)

    def _name_layer(self, place: int, number: int, at: p.Instruction) -> str:
        label = make_identifier(self.names.layers.get(number, ""))
        return f"layer{place}_{label or type(at).__name__.lower()}"

    def _measure(self, place: int, arena: Arena) -> LayerFootprint:
        (at, layer), number = self.steps[place], self.numbers[place]
        targets = list_targets(at)
        if targets:
            shape = self.emitter.tensors[targets[0]].shape
        else:
            port = self.program.outputs[at.target]
            shape = f"{port.height} x {port.width} x {port.channels}"
        return LayerFootprint(
            layer.name,
            self.names.layers.get(number, ""),
            shape,
            layer.macs,
            at.weight_bits if isinstance(at, p.Product) else 0,
            self.constant_bytes[place],
            arena.used_at(place),
        )

    def _render(self, memory: MemoryPlan) -> dict[str, str]:
        emitter = self.emitter
        helpers, constants = emitter.helpers.render(emitter.index), emitter.constants.declare()
        common = {
            "name": self.name,
            "NAME": self.name.upper(),
            "summary": f"{format_count(len(self.steps), 'layer')}, {self.macs} multiplications",
            "parameters": self.ports.declare_parameters(self.name),
            "version": read_version(),
            "refuses": any(layer.refuses for _, layer in self.steps),
        }
        calls = [
            self._call(at, layer, code.call, memory)
            for (at, layer), code in zip(self.steps, self.code, strict=True)
        ]
        source = render(
            "source.c.j2",
            **common,
            ignored=_list_ignored(calls),
            constants=constants,
            flash=emitter.constants.bytes,
            largest=emitter.constants.largest,
            helpers=helpers,
            orders_floats=emitter.helpers.orders_floats,
            has_levels=emitter.helpers.has_levels,
            types={ctype.short for ctype in emitter.constants.types},
            layers=[code.text for code in self.code if code.text],
            shares=any("&" in code.call for code in self.code),
            calls=calls,
        )
        header = render(
            "header.h.j2",
            **common,
            arena=max(memory.arena.size, 1),
            alignment=ALIGNMENT,
            ports=self.ports.describe(),
            structs=self.ports.declare_structs(self.name),
            sha256=self.names.sha256,
        )
        files = {f"{self.name}.c": source, f"{self.name}.h": header}
        return {file: wrap_lines(text) + "\n" for file, text in files.items()}

    def _call(self, at: p.Instruction, layer: Layer, start: str, memory: MemoryPlan) -> str:
        arguments = [memory.point(tensor) for tensor in list_tensor_sources(at)]
        if isinstance(at, p.Quantize):
            arguments = [self.ports.get_input(at.source)]
        targets = list_targets(at)
        if targets:
            arguments.append(memory.point(targets[0]))
        else:
            arguments.append(self.ports.get_output(at.target))
        if layer.scratch and isinstance(at, p.Product):
            arguments.append(memory.point_scratch(layer, memory.tensors[at.source].ctype))
        call = f"{start}{', '.join(arguments)})"
        return f"if ({call}) {{ return 1; }}" if layer.refuses else f"{call};"


def _list_scaled(program: p.Program) -> list[p.Scaled]:
    epilogues = [at.epilogue for at in program.instructions if isinstance(at, p.Product)]
    return [epilogue for epilogue in epilogues if isinstance(epilogue, p.Scaled)]


def _find_common(program: p.Program) -> CommonScaling:
    """Return a form for the multiplications and shifts of all layers."""
    tensors = program.tensors
    channels = max(tensor.channels for tensor in tensors)
    keys = max(tensor.channels * tensor.levels for tensor in tensors)
    negative = any(bool(np.any(epilogue.multipliers < 0)) for epilogue in _list_scaled(program))
    return CommonScaling(channels, find_type(0, keys - 1), negative)


def _select_index(program: p.Program, tensors: Sequence[StoredTensor]) -> str:
    """Return the type of indices that 16 bits, or 32, hold."""
    sizes = [tensor.elements for tensor in tensors]
    sizes += [int(np.prod(port.sizes)) for port in (*program.inputs, *program.outputs)]
    for at in program.instructions:
        if isinstance(at, p.Product):
            y = (program.outputs if not list_targets(at) else tensors)[at.target]
            filled = 4 * y.channels  # rows of weights take whole words
            sizes.append(at.weights.size * 8 // at.weight_bits + filled)
        if isinstance(at, p.Product | p.MaxPool):
            x, w = tensors[at.source], at.window
            sizes.append(x.height + w.pad_top + w.pad_bottom)
            sizes.append(x.width + w.pad_left + w.pad_right)
    return "int" if max(sizes) <= _MOST_IN_16_BITS else "int32_t"


def _list_ignored(calls: Sequence[str]) -> list[str]:
    """Return the parameters that no call has."""
    words = set(re.findall(r"\w+", "\n".join(calls)))
    names = {"in": "in", "out": "out", "arena": "memory"}
    return [parameter for parameter, name in names.items() if name not in words]
