# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of the function: floats of the graph, or integer codes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anybit.compiler.backends.c.identifiers import make_comment
from anybit.compiler.backends.c.literals import format_float
from anybit.compiler.backends.c.types import StoredTensor
from anybit.compiler.program import program as p
from anybit.errors import OptionError
from anybit.text import escape_name


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


@dataclass(frozen=True, eq=False)
class Ports:
    """The inputs and outputs of a program in C.

    Attributes:
        program: The program.
        tensors: Its tensors as C stores them.
        names: Names from the model.
        outside: Tensors that are inputs and outputs as codes, and their expressions.
    """

    program: p.Program
    tensors: Sequence[StoredTensor]
    names: SourceNames
    outside: Mapping[int, str]

    def get_input(self, number: int) -> str:
        """Return the expression of an input."""
        return name_port("in", "x", number, len(self.program.inputs))

    def get_output(self, number: int) -> str:
        """Return the expression of an output."""
        return name_port("out", "y", number, len(self.program.outputs))

    def declare_parameters(self, name: str) -> str:
        """Return the parameters of the function of a network."""
        first = f"const {self._get_type(0, is_input=True)} *in"
        second = f"{self._get_type(0, is_input=False)} *out"
        if len(self.program.inputs) > 1:
            first = f"const {name}_inputs *in"
        if len(self.program.outputs) > 1:
            second = f"const {name}_outputs *out"
        return f"{first}, {second}, void *arena"

    def declare_structs(self, name: str) -> str:
        """Return the structs of several inputs or outputs."""
        texts = []
        for is_input, ports in ((True, self.program.inputs), (False, self.program.outputs)):
            if len(ports) == 1:
                continue
            fields = "".join(
                f"    {'const ' if is_input else ''}{self._get_type(i, is_input=is_input)} "
                f"*{'x' if is_input else 'y'}{i};\n"
                for i in range(len(ports))
            )
            texts.append(f"typedef struct {{\n{fields}}} {name}_{'in' if is_input else 'out'}puts;")
        return "\n\n".join(texts)

    def describe(self) -> list[dict[str, object]]:
        """Return the comment, macro prefix, size and further macros of each input and output."""
        described = []
        program, names = self.program, self.names
        sides = (True, program.inputs, names.inputs), (False, program.outputs, names.outputs)
        for is_input, ports, labels in sides:
            for number, port in enumerate(ports):
                label = f" ({make_comment(labels[number])})" if number < len(labels) else ""
                macro = "INPUT" if is_input else "OUTPUT"
                tensor = self._get_tensor(number, is_input=is_input)
                contents = f"float32, {' x '.join(map(str, port.sizes)) or '1'}"
                if tensor is not None:
                    stored = self.tensors[tensor]
                    steps = f" in steps of {stored.step}" if stored.step != 1 else ""
                    codes = f"{stored.lowest} to {stored.highest}{steps}"
                    contents = f"{stored.ctype.value}, {codes}, {stored.shape}"
                    contents += " (height, width, channels)"
                described.append(
                    {
                        "comment": f"{macro.capitalize()} {number}{label}: {contents}.",
                        "macro": macro if len(ports) == 1 else f"{macro}{number}",
                        "size": int(np.prod(port.sizes)),
                        "macros": self._list_macros(tensor),
                    }
                )
        return described

    def _get_type(self, number: int, *, is_input: bool) -> str:
        tensor = self._get_tensor(number, is_input=is_input)
        return "float" if tensor is None else self.tensors[tensor].ctype.value

    def _get_tensor(self, number: int, *, is_input: bool) -> int | None:
        expression = self.get_input(number) if is_input else self.get_output(number)
        return next((root for root, name in self.outside.items() if name == expression), None)

    def _list_macros(self, tensor: int | None) -> list[str]:
        if tensor is None:
            return []
        lines = [f"ZERO_POINT ({self.tensors[tensor].zero})"]
        if tensor in self.names.scales:
            lines.insert(0, f"SCALE {format_float(float(np.float32(self.names.scales[tensor])))}")
        return lines


def find_outside(program: p.Program, roots: Sequence[int], names: SourceNames) -> dict[int, str]:
    """Return the tensors that are inputs and outputs as codes, and their expressions.

    Args:
        program: The program.
        roots: The tensor whose memory each tensor has.
        names: Names from the model.

    Raises:
        OptionError: An input or output has no codes of its own.
    """
    outside: dict[int, str] = {}
    for at in program.instructions:
        if isinstance(at, p.Quantize):
            expression = name_port("in", "x", at.source, len(program.inputs))
            if expression in outside.values():
                raise OptionError(
                    f"{_label('input', at.source, names.inputs)} has several quantizers, and "
                    "--io codes needs one: use --io floats, or quantize it before the nodes that "
                    "read it"
                )
            outside[at.target] = expression
        if isinstance(at, p.Product) and isinstance(at.epilogue, p.Arithmetic):
            raise OptionError(
                f"{_label('output', at.target, names.outputs)} has no quantizer, so it has no "
                "codes: use --io floats, or quantize the float model with --integer-only "
                "--outputs int8"
            )
    for at in program.instructions:
        if isinstance(at, p.Dequantize):
            root = roots[at.source]
            if root in outside:
                raise OptionError(
                    f"{_label('output', at.target, names.outputs)} has the codes of another input "
                    "or output, and --io codes needs codes of its own: use --io floats, or remove "
                    "the output"
                )
            outside[root] = name_port("out", "y", at.target, len(program.outputs))
    return outside


def _label(side: str, number: int, names: Sequence[str]) -> str:
    """Return what messages call an input or output."""
    return f"{side} {number}" + (f" ({escape_name(names[number])})" if number < len(names) else "")


def name_port(parameter: str, field: str, number: int, count: int) -> str:
    """Return the expression of an input or output: the parameter, or a field if it is a struct."""
    return parameter if count == 1 else f"{parameter}->{field}{number}"
