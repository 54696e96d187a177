# SPDX-License-Identifier: Apache-2.0
"""C source of a program."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from anybit.compiler.backends.c.arena import ALIGNMENT, Arena, Buffer, plan_arena
from anybit.compiler.backends.c.constants import format_float
from anybit.compiler.backends.c.footprint import LayerFootprint
from anybit.compiler.backends.c.identifiers import check_name, make_comment, make_identifier
from anybit.compiler.backends.c.layers import Layer, LayerEmitter, is_same_order
from anybit.compiler.backends.c.templates import read_version, render
from anybit.compiler.backends.c.types import StoredTensor, store_tensor
from anybit.compiler.backends.integer_tails import make_integer_tails
from anybit.compiler.program import program as p
from anybit.compiler.program.network import Network
from anybit.errors import ModelError, OptionError
from anybit.text import format_count

_MOST_IN_16_BITS = 2**14


@dataclass(frozen=True)
class SourceNames:
    """Names from the model, for a reader of the C code.

    Attributes:
        layers: Names of layers, by the numbers of their instructions.
        inputs, outputs: Names of the ports.
        scales: Scales of tensors, by their numbers.
        notes: Descriptions of layers for comments, by the numbers of their instructions.
        sha256: SHA-256 of the file of the model, in hexadecimal; empty if unknown.
    """

    layers: Mapping[int, str] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    scales: Mapping[int, float] = field(default_factory=dict)
    notes: Mapping[int, str] = field(default_factory=dict)
    sha256: str = ""


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
        layout: "size" stores five ternary weights in a byte, and "speed" four.
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
    if program.floats:
        raise ModelError(
            f"{name}: layers compute in floats; C code has integers only. Quantize the model with "
            "--integer-only"
        )
    integers = make_integer_tails(program)
    return _Emission(integers, name, codes, layout, labels or SourceNames()).emit()


class _Emission:
    def __init__(
        self, program: p.Program, name: str, codes: bool, layout: str, labels: SourceNames
    ) -> None:
        self.program, self.name, self.codes, self.labels = program, name, codes, labels
        self.tensors = [store_tensor(tensor) for tensor in program.tensors]
        self.emitter = LayerEmitter(
            program, self.tensors, self._select_index(), ternary=layout == "size"
        )
        self.roots = self._find_roots()
        self.outside = self._find_outside() if codes else {}
        self.numbers = [n for n, at in enumerate(program.instructions) if not self._is_free(at)]
        self.layers: list[Layer] = []
        self.constant_bytes: list[int] = []

    def emit(self) -> CSource:
        for place, number in enumerate(self.numbers):
            at = self.program.instructions[number]
            before = self.emitter.constants.bytes
            layer = self.emitter.emit(at, self._name_layer(place, number, at))
            if note := self.labels.notes.get(number):
                layer = replace(layer, text=f"/* {make_comment(note)} */\n{layer.text}")
            self.layers.append(layer)
            self.constant_bytes.append(self.emitter.constants.bytes - before)
        arena, slots = self._plan()
        files = self._render(arena, slots)
        return CSource(
            self.name,
            files,
            arena,
            tuple(self._measure(place, arena) for place in range(len(self.layers))),
            self.emitter.constants.bytes,
            sum(layer.macs for layer in self.layers),
            self.program,
            {parameter: root for root, parameter in self.outside.items()},
        )

    def _measure(self, place: int, arena: Arena) -> LayerFootprint:
        layer, number = self.layers[place], self.numbers[place]
        at = self.program.instructions[number]
        targets = self._list_targets(at)
        if targets:
            shape = self.tensors[targets[0]].shape
        else:
            port = self.program.outputs[at.target - len(self.program.floats)]
            shape = f"{port.height} x {port.width} x {port.channels}"
        return LayerFootprint(
            layer.name,
            self.labels.layers.get(number, ""),
            shape,
            layer.macs,
            at.weight_bits if isinstance(at, p.Product) else 0,
            self.constant_bytes[place],
            arena.used_at(place),
        )

    def _select_index(self) -> str:
        sizes = [tensor.elements for tensor in self.tensors]
        sizes += [
            int(np.prod(port.sizes)) for port in (*self.program.inputs, *self.program.outputs)
        ]
        for at in self.program.instructions:
            if isinstance(at, p.Product):
                sizes.append(at.weights.size * 8 // at.weight_bits)
            if isinstance(at, p.Product | p.MaxPool):
                x, w = self.tensors[at.source], at.window
                sizes.append(x.height + w.pad_top + w.pad_bottom)
                sizes.append(x.width + w.pad_left + w.pad_right)
        return "int" if max(sizes) <= _MOST_IN_16_BITS else "int32_t"

    def _find_roots(self) -> list[int]:
        """Return the tensor whose memory each tensor has; some reshapes copy nothing."""
        roots = list(range(len(self.tensors)))
        for at in self.program.instructions:
            if isinstance(at, p.Reshape):
                x, y = self.tensors[at.source], self.tensors[at.target]
                if is_same_order(at, x, y):
                    roots[at.target] = roots[at.source]
        return roots

    def _find_outside(self) -> dict[int, str]:
        """Return the tensors that the caller keeps, and their parameters.

        Raises:
            OptionError: An input or output has no codes.
        """
        outside: dict[int, str] = {}
        for at in self.program.instructions:
            if isinstance(at, p.Quantize):
                if at.source >= len(self.program.inputs):
                    raise ModelError(
                        f"tensor {at.target}: it quantizes an output; C code has integers only. "
                        "Quantize the model with --integer-only"
                    )
                parameter = self._input(at.source)
                if parameter in outside.values():
                    raise OptionError(
                        f"input {at.source} has several quantizers: --io codes needs one"
                    )
                outside[at.target] = parameter
            if isinstance(at, p.Product) and isinstance(at.tail, p.Arithmetic):
                raise OptionError(
                    f"output {at.target} has no quantizer, so it has no codes: use --io floats, or "
                    "add one to the model"
                )
        for at in self.program.instructions:
            if isinstance(at, p.Dequantize):
                root = self.roots[at.source]
                if root in outside:
                    raise OptionError(
                        f"output {at.target} has the codes of another input or output: "
                        "--io codes needs codes of its own"
                    )
                outside[root] = self._output(at.target)
        return outside

    def _is_free(self, at: p.Instruction) -> bool:
        """Return whether an instruction takes no code."""
        if isinstance(at, p.Reshape):
            return self.roots[at.target] != at.target
        return self.codes and isinstance(at, p.Quantize | p.Dequantize)

    def _name_layer(self, place: int, number: int, at: p.Instruction) -> str:
        label = make_identifier(self.labels.layers.get(number, ""))
        return f"layer{place}_{label or type(at).__name__.lower()}"

    def _input(self, number: int) -> str:
        return "in" if len(self.program.inputs) == 1 else f"in->x{number}"

    def _output(self, number: int) -> str:
        return "out" if len(self.program.outputs) == 1 else f"out->y{number}"

    # Memory

    def _plan(self) -> tuple[Arena, dict[int | str, int]]:
        """Plan the arena; return it, and the buffer of each root tensor and scratch."""
        spans: dict[int, list[int]] = {}
        for place, number in enumerate(self.numbers):
            at = self.program.instructions[number]
            for tensor in (*list_sources(at), *self._list_targets(at)):
                root = self.roots[tensor]
                if root not in self.outside:
                    spans.setdefault(root, []).append(place)
        slots: dict[int | str, int] = {}
        buffers: list[Buffer] = []
        for root, places in spans.items():
            slots[root] = len(buffers)
            name = f"t{root}"
            buffers.append(Buffer(name, self.tensors[root].bytes, min(places), max(places)))
        distances = {}
        for place, (number, layer) in enumerate(zip(self.numbers, self.layers, strict=True)):
            at = self.program.instructions[number]
            if layer.scratch:
                slots[layer.name] = len(buffers)
                buffers.append(Buffer(f"{layer.name} scratch", layer.scratch, place, place))
            if layer.distance is None or not self._list_targets(at):
                continue
            target = slots.get(self.roots[at.target])
            for tensor in list_sources(at):
                source = slots.get(self.roots[tensor])
                if source is None or target is None:
                    continue
                ends = buffers[source].last == place == buffers[target].first
                if ends and self._may_alias(tensor, at.target):
                    distances[target, source] = layer.distance
        return plan_arena(buffers, distances), slots

    def _may_alias(self, source: int, target: int) -> bool:
        """Return whether C lets elements of two types share memory: of equal ones, and of bytes."""
        types = {self.tensors[source].ctype, self.tensors[target].ctype}
        return len(types) == 1 or min(ctype.size for ctype in types) == 1

    def _list_targets(self, at: p.Instruction) -> tuple[int, ...]:
        floats = isinstance(at, p.Dequantize | p.Elementwise) or (
            isinstance(at, p.Product) and isinstance(at.tail, p.Arithmetic)
        )
        return () if floats else (at.target,)

    # Text

    def _render(self, arena: Arena, slots: Mapping[int | str, int]) -> dict[str, str]:
        helpers, constants = (
            self.emitter.helpers.render(self.emitter.index),
            self.emitter.constants.declare(),
        )
        common = {
            "name": self.name,
            "NAME": self.name.upper(),
            "summary": self._summarize(),
            "parameters": self._declare_parameters(),
            "version": read_version(),
            "refuses": any(layer.refuses for layer in self.layers),
        }
        calls = [
            self._call(layer, self.program.instructions[number], arena, slots)
            for number, layer in zip(self.numbers, self.layers, strict=True)
        ]
        source = render(
            "source.c.j2",
            **common,
            ignored=_list_ignored(calls),
            constants=constants,
            helpers=helpers,
            orders_floats=self.emitter.helpers.orders_floats,
            types={ctype.short for ctype in self.emitter.constants.types},
            layers=[layer.text for layer in self.layers],
            calls=calls,
        )
        header = render(
            "header.h.j2",
            **common,
            arena=max(arena.size, 1),
            alignment=ALIGNMENT,
            ports=self._describe_ports(),
            structs=self._declare_structs(),
            sha256=self.labels.sha256,
        )
        return {f"{self.name}.c": source + "\n", f"{self.name}.h": header + "\n"}

    def _summarize(self) -> str:
        macs = sum(layer.macs for layer in self.layers)
        return f"{format_count(len(self.layers), 'layer')}, {macs} multiplications"

    def _port_type(self, number: int, *, is_input: bool) -> str:
        tensor = self._port_tensor(number, is_input=is_input)
        return tensor.ctype.value if tensor else "float"

    def _port_tensor(self, number: int, *, is_input: bool) -> StoredTensor | None:
        parameter = self._input(number) if is_input else self._output(number)
        for root, outside in self.outside.items():
            if outside == parameter:
                return self.tensors[root]
        return None

    def _declare_parameters(self) -> str:
        one_in, one_out = len(self.program.inputs) == 1, len(self.program.outputs) == 1
        first = f"const {self._port_type(0, is_input=True)} *in"
        second = f"{self._port_type(0, is_input=False)} *out"
        if not one_in:
            first = f"const {self.name}_inputs *in"
        if not one_out:
            second = f"const {self.name}_outputs *out"
        return f"{first}, {second}, void *arena"

    def _declare_structs(self) -> str:
        texts = []
        for is_input, ports in ((True, self.program.inputs), (False, self.program.outputs)):
            if len(ports) == 1:
                continue
            fields = "".join(
                f"    {'const ' if is_input else ''}{self._port_type(i, is_input=is_input)} "
                f"*{'x' if is_input else 'y'}{i};\n"
                for i in range(len(ports))
            )
            texts.append(
                f"typedef struct {{\n{fields}}} {self.name}_{'in' if is_input else 'out'}puts;"
            )
        return "\n\n".join(texts)

    def _describe_ports(self) -> list[dict[str, object]]:
        described = []
        program, labels = self.program, self.labels
        sides = (True, program.inputs, labels.inputs), (False, program.outputs, labels.outputs)
        for is_input, ports, names in sides:
            for number, port in enumerate(ports):
                label = f" ({make_comment(names[number])})" if number < len(names) else ""
                macro = "INPUT" if is_input else "OUTPUT"
                tensor = self._port_tensor(number, is_input=is_input)
                sizes = " x ".join(map(str, port.sizes)) or "1"
                contents = f"float32, {sizes}"
                if tensor:
                    contents = f"{tensor.ctype.value}, {tensor.shape} (height, width, channels)"
                described.append(
                    {
                        "comment": f"{macro.capitalize()} {number}{label}: {contents}.",
                        "macro": macro if len(ports) == 1 else f"{macro}{number}",
                        "size": int(np.prod(port.sizes)),
                        "macros": self._list_port_macros(tensor),
                    }
                )
        return described

    def _list_port_macros(self, tensor: StoredTensor | None) -> list[str]:
        if tensor is None:
            return []
        lines = [f"ZERO_POINT ({tensor.zero})"]
        number = next(n for n, other in enumerate(self.tensors) if other is tensor)
        if number in self.labels.scales:
            lines.insert(0, f"SCALE {format_float(float(np.float32(self.labels.scales[number])))}")
        return lines

    def _call(
        self,
        layer: Layer,
        at: p.Instruction,
        arena: Arena,
        slots: Mapping[int | str, int],
    ) -> str:
        def point(tensor: int) -> str:
            root = self.roots[tensor]
            if root in self.outside:
                return self.outside[root]
            ctype = self.tensors[tensor].ctype.value
            return f"({ctype} *)(void *)(memory + {arena.offsets[slots[root]]})"

        arguments = [point(tensor) for tensor in list_sources(at)]
        if isinstance(at, p.Quantize):
            arguments = [self._input(at.source)]
        targets = self._list_targets(at)
        if targets:
            arguments.append(point(targets[0]))
        else:
            arguments.append(self._output(at.target - len(self.program.floats)))
        if layer.scratch and isinstance(at, p.Product):
            ctype = self.tensors[at.source].ctype.value
            offset = arena.offsets[slots[layer.name]]
            arguments.append(f"({ctype} *)(void *)(memory + {offset})")
        call = f"{layer.name}({', '.join(arguments)})"
        return f"if ({call}) {{ return 1; }}" if layer.refuses else f"{call};"


def list_sources(at: p.Instruction) -> tuple[int, ...]:
    """Return the tensors that an instruction reads."""
    match at:
        case p.Quantize() | p.Elementwise():
            return ()
        case p.Combine() | p.Add() | p.Multiply():
            return at.first, at.second
        case p.Product() | p.MaxPool() | p.Lookup() | p.Gather() | p.Reshape() | p.Dequantize():
            return (at.source,)


def _list_ignored(calls: Sequence[str]) -> list[str]:
    """Return the parameters that no call has."""
    words = set(re.findall(r"\w+", "\n".join(calls)))
    names = {"in": "in", "out": "out", "arena": "memory"}
    return [parameter for parameter, name in names.items() if name not in words]
