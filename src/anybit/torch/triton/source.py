# SPDX-License-Identifier: Apache-2.0
"""Source of Triton kernels that compute expressions, one statement per operation.

A tile has up to two axes, n (the fastest) and m. The outer axes have one index per tile.
A pointer has the axes along which an array varies; along the others an element is loaded once.

The source consists of text in this file, of names of our parameters and of numbers.
"""

import functools
import linecache
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from anybit.ops.expression import iterate_operands_first
from anybit.torch.triton.traced import LIMIT, Traced

_STATEMENTS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "shl": "{0} << {1}",
    "shr": "{0} >> {1}",
    "abs": "tl.abs({0})",
    "where": "tl.where({0}, {1}, {2})",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "cast": "{0}.to(tl.{type})",
    "bitcast": "{0}.to(tl.{type}, bitcast=True)",
}
# Triton's own division of float32 is not rounded correctly.
_DIVISIONS = {"float32": "divide({0}, {1})", "float64": "{0} / {1}"}


@dataclass(frozen=True)
class Pointer:
    """An array in memory: its name and its strides along the outer axes, m and n.

    Along axes of stride 0 the array is repeated.
    """

    name: str
    strides: tuple[int, ...]

    @property
    def along_m(self) -> bool:
        return self.strides[-2] != 0

    @property
    def along_n(self) -> bool:
        return self.strides[-1] != 0

    @property
    def axes(self) -> list[str]:
        """The names of the axes with a stride."""
        names = [*map(str, range(len(self.strides) - 2)), "m", "n"]
        return [name for name, stride in zip(names, self.strides, strict=True) if stride]

    @property
    def stride_names(self) -> list[str]:
        """The names of the strides that a kernel takes."""
        return [f"{self.name}_stride_{axis}" for axis in self.axes]

    @property
    def stride_values(self) -> list[int]:
        """The strides that a kernel takes."""
        return [stride for stride in self.strides if stride]


@dataclass(frozen=True)
class Output:
    """Value to store, and the array to store it in.

    An output that is `summed` has one number per tile, or per row or column of a tile if its
    pointer has a stride along m or n. These numbers are contiguous.
    """

    pointer: Pointer
    value: Traced
    summed: bool

    @property
    def stride_names(self) -> list[str]:
        return [] if self.summed else self.pointer.stride_names

    @property
    def stride_values(self) -> list[int]:
        return [] if self.summed else self.pointer.stride_values


@dataclass(frozen=True)
class Shape:
    """Properties of the shape in the source: outer axes, one or two tile axes, uneven ends."""

    outer_axes: int
    two_axes: bool
    uneven: bool


def generate_kernel(
    name: str, shape: Shape, inputs: Iterable[Pointer | None], outputs: list[Output]
) -> str:
    """Return the source of a kernel.

    Its parameters are pointers, sizes and strides, in this order: inputs that are not None,
    outputs; size_n, size_m, blocks_n, blocks_m, the sizes of outer axes; the strides of each
    pointer; the tile sizes TILE_M and TILE_N. It calls `add`, and `divide` for float32.
    """
    return _Writer(name, shape, list(inputs), outputs).text()


class _Writer:
    def __init__(
        self, name: str, shape: Shape, inputs: list[Pointer | None], outputs: list[Output]
    ) -> None:
        self._name = name
        self._shape = shape
        self._inputs = inputs
        self._outputs = outputs
        self._lines: list[str] = []
        self._written: dict[Traced, str] = {}
        self._names: dict[str, str] = {}

    def text(self) -> str:
        inputs = [pointer for pointer in self._inputs if pointer is not None]
        parameters = [pointer.name for pointer in inputs]
        parameters += [output.pointer.name for output in self._outputs]
        parameters += ["size_n", "size_m", "blocks_n", "blocks_m"]
        parameters += [f"size_{axis}" for axis in range(self._shape.outer_axes)]
        for pointer in inputs:
            parameters += pointer.stride_names
        for output in self._outputs:
            parameters += output.stride_names
        parameters += ["TILE_M: tl.constexpr", "TILE_N: tl.constexpr"]
        self._write_offsets()
        for output in self._outputs:
            self._store(output)
        lines = "".join(f"    {line}\n" for line in self._lines)
        return f"def {self._name}({', '.join(parameters)}):\n{lines}"

    def _write_offsets(self) -> None:
        """Write the statements for the offsets of the tile's elements."""
        write = self._lines.append
        # Arrays may have more elements than 32 bits count.
        write("rest = tl.program_id(0).to(tl.int64)")
        if not self._shape.two_axes and not self._shape.outer_axes:
            write("block_n = rest")
        else:
            write("block_n = rest % blocks_n")
            write("rest = rest // blocks_n")
            write("block_m = rest % blocks_m")
            write("rest = rest // blocks_m")
        for axis in reversed(range(self._shape.outer_axes)):
            write(f"outer_{axis} = rest % size_{axis}")
            write(f"rest = rest // size_{axis}")
        write("n = block_n * TILE_N + tl.arange(0, TILE_N)")
        write("in_n = n < size_n")
        if self._shape.two_axes:
            write("m = block_m * TILE_M + tl.arange(0, TILE_M)")
            write("in_m = m < size_m")

    def _format_address(self, pointer: Pointer) -> str:
        """Return the addresses of an array's elements in the tile."""
        places = {"m": "m[:, None]", "n": "n[None, :]"} if self._shape.two_axes else {"n": "n"}
        terms = [
            f"{places.get(axis, f'outer_{axis}')} * {stride}"
            for axis, stride in zip(pointer.axes, pointer.stride_names, strict=True)
        ]
        return " + ".join([pointer.name, *terms])

    def _mask(self, along_m: bool, along_n: bool, *, flat: bool = False) -> str:
        """Return the argument that masks elements outside of the array; "" if there are none."""
        if not self._shape.uneven:
            return ""
        flat = flat or not self._shape.two_axes
        inside = ["in_m" if flat else "in_m[:, None]"] if along_m and self._shape.two_axes else []
        inside += ["in_n" if flat else "in_n[None, :]"] if along_n else []
        return f", mask={' & '.join(inside)}" if inside else ""

    def _load(self, place: int) -> str:
        pointer = self._inputs[place]
        assert pointer is not None
        mask = self._mask(pointer.along_m, pointer.along_n)
        return f"tl.load({self._format_address(pointer)}{mask})"

    def _store(self, output: Output) -> None:
        value, pointer = self.name_of(output.value), output.pointer
        if output.summed:
            self._store_sum(pointer, value)
            return
        stored = f"{value}.to({pointer.name}.dtype.element_ty)"
        self._lines.append(
            f"tl.store({self._format_address(pointer)}, {stored}{self._mask(True, True)})"
        )

    def _store_sum(self, pointer: Pointer, value: str) -> None:
        two = self._shape.two_axes
        value = self._assign(
            f"tl.broadcast_to({value}, {'[TILE_M, TILE_N]' if two else '[TILE_N]'})"
        )
        if self._shape.uneven:
            inside = "in_m[:, None] & in_n[None, :]" if two else "in_n"
            value = self._assign(f"tl.where({inside}, {value}, 0.0)")
        if not pointer.along_n:
            value = self._assign(f"tl.reduce({value}, {int(two)}, add)")
        if two and not pointer.along_m:
            value = self._assign(f"tl.reduce({value}, 0, add)")
        whole = two and pointer.along_m and pointer.along_n
        rows = "size_m" if pointer.along_m else "blocks_m"
        columns = "size_n" if pointer.along_n else "blocks_n"
        row = "m" if pointer.along_m else "block_m"
        column = "n" if pointer.along_n else "block_n"
        if whole:
            row, column = "m[:, None]", "n[None, :]"
        at = "0"
        for axis in range(self._shape.outer_axes):
            at = f"({at} * size_{axis} + outer_{axis})"
        if two or self._shape.outer_axes:
            at = f"({at} * {rows} + {row}) * {columns}"
        at = f"{pointer.name} + {at} + {column}"
        mask = self._mask(pointer.along_m, pointer.along_n, flat=not whole)
        self._lines.append(f"tl.store({at}, {value}{mask})")

    def name_of(self, value: Traced) -> str:
        for node in iterate_operands_first(value, self._written):
            self._written[node] = self._value(node)
        return self._written[value]

    def _value(self, node: Traced) -> str:
        if node.operation == "input":
            return self._assign(self._load(node.literal))
        if node.operation == "constant":
            return self._constant(node, node.machine_type)
        operands = [self._operand(operand, node) for operand in node.operands]
        if node.operation == "reshape":
            return operands[0]
        if node.operation == "div":
            return self._assign(_DIVISIONS[node.dtype].format(*operands))
        statement = _STATEMENTS[node.operation]
        return self._assign(statement.format(*operands, type=node.machine_type))

    def _operand(self, operand: Traced, user: Traced) -> str:
        """Return the operand's name; int64 operands of a varying user are clipped to 32 bits."""
        name = self._written[operand]
        if operand.dtype != "int64" or operand.varies or not user.varies:
            return name
        if operand.operation == "constant":
            return self._constant(operand, "int32")
        if not operand.small:
            name = self._assign(f"tl.minimum(tl.maximum({name}, {-LIMIT}), {LIMIT})")
        return self._assign(f"{name}.to(tl.int32)")

    def _constant(self, node: Traced, machine_type: str) -> str:
        number = repr(node.literal)
        if machine_type.startswith("float") and number.strip("-") in ("inf", "nan"):
            number = f'float("{number}")'
        return self._assign(f"tl.full((), {number}, tl.{machine_type})")

    def _assign(self, statement: str) -> str:
        """Return the name of a statement's value. Equal statements are written once."""
        if statement not in self._names:
            name = self._names[statement] = f"v{len(self._names)}"
            self._lines.append(f"{name} = {statement}")
        return self._names[statement]


_ADD = """\
def add(first, second):
    return first + second
"""
_DIVIDE = """\
def divide(first, second):
    return tl.div_rn(first, second)
"""


@functools.cache
def compile_kernel(name: str, text: str, interpret: bool) -> Any:
    """Return the kernel of a source text; Triton caches its output on disk by a hash of it.

    `interpret`, which Triton reads from the environment, says that the kernel is for the CPU.

    Raises:
        ImportError: Triton is missing.
    """
    try:
        import triton
        import triton.language as tl
    except ImportError as error:
        raise ImportError(
            'kernels for GPUs need Triton; install it with pip install "anybit[triton]"'
        ) from error
    names = {
        "tl": tl,
        "add": triton.jit(_define_function("add", _ADD, {"tl": tl})),
        "divide": triton.jit(_define_function("divide", _DIVIDE, {"tl": tl})),
    }
    return triton.jit(_define_function(name, text, names))


def _define_function(name: str, text: str, names: dict[str, Any]) -> Any:
    """Define a function. Triton reads its text from `linecache`, as tracebacks do."""
    file = f"<anybit {name} {sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = {"__name__": __name__, **names}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]
