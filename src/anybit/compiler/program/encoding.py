# SPDX-License-Identifier: Apache-2.0
"""Encoding of programs: a list of words, and three arrays that the words point into."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import numpy as np

from anybit.compiler.program.open_bits import list_steps
from anybit.compiler.program.program import (
    EPILOGUES,
    INSTRUCTIONS,
    Bytes,
    Epilogue,
    Floats,
    FloatTensor,
    Instruction,
    Integers,
    Program,
)
from anybit.compiler.program.versions import FIRST_VERSION, SINCE, SINCE_OPERATION
from anybit.onnx.graph.constants import Array


@dataclass(frozen=True, eq=False)
class Encoded:
    """A program as the inputs of a node.

    Attributes:
        words: int64: the version, then the records of the program, field by field. A number is one
            word. An array is two: its start in its store, and its length. A list of records is
            their number and then all of them. An instruction or an epilogue begins with its number
            in INSTRUCTIONS or EPILOGUES.
        bytes, integers, floats: The stores.
    """

    words: np.ndarray[Any, np.dtype[np.int64]]
    bytes: Bytes
    integers: Integers
    floats: Floats

    def equals(self, other: "Encoded") -> bool:
        """Return whether two encoded programs are equal, bit for bit."""
        names = [field.name for field in fields(self)]
        mine, its = ([getattr(program, name) for name in names] for program in (self, other))
        pairs = zip(mine, its, strict=True)
        return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def encode(program: Program) -> Encoded:
    """Encode a program."""
    stores, version = _Stores(), _find_version(program)
    words = [version]
    for name, kind in list_fields(Program):
        if name != "floats" or version >= SINCE[FloatTensor]:
            words += _encode_field(getattr(program, name), kind, stores)
    return Encoded(np.array(words, np.int64), *stores.arrays())


def _find_version(program: Program) -> int:
    """Return the least version that has all records of a program."""
    epilogues = [getattr(instruction, "epilogue", None) for instruction in program.instructions]
    records = (*program.instructions, *epilogues, *program.floats)
    steps = [step for instruction in program.instructions for step in list_steps(instruction)]
    return max(
        *(SINCE.get(type(record), FIRST_VERSION) for record in records),
        *(SINCE_OPERATION.get(step.operation, FIRST_VERSION) for step in steps),
    )


def list_fields(record: type[Any]) -> list[tuple[str, str]]:
    """Return the fields of a record and their kinds, as the native side declares them."""
    hints = get_type_hints(record)
    return [(field.name, _name_kind(hints[field.name])) for field in fields(record)]


def _name_kind(hint: Any) -> str:
    if hint is int:
        return "integer"
    if hint in _STORES:
        return _STORES[hint]
    if hint == Epilogue:
        return "epilogue"
    if is_dataclass(hint):
        return hint.__name__  # type: ignore[union-attr]
    (element, _) = get_args(hint)  # tuple[X, ...]
    return "instructions" if element == Instruction else f"{element.__name__}s"


_STORES = {Bytes: "bytes", Integers: "integers", Floats: "floats"}


class _Stores:
    """The concatenated arrays of a program; equal ones are stored once."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Any]] = {name: [] for name in _STORES.values()}
        self._sizes = dict.fromkeys(_STORES.values(), 0)
        self._known: dict[tuple[str, bytes], int] = {}

    def place(self, store: str, array: Any) -> tuple[int, int]:
        """Return the start of an array in its store, and its length."""
        flat = np.ascontiguousarray(array).ravel()
        key = store, flat.tobytes()
        if key not in self._known:
            self._known[key] = self._sizes[store]
            self._parts[store].append(flat)
            self._sizes[store] += flat.size
        return self._known[key], flat.size

    def arrays(self) -> tuple[Bytes, Integers, Floats]:
        dtypes = {"bytes": np.uint8, "integers": np.int32, "floats": np.float32}
        bytes_, integers, floats = (
            np.concatenate([np.zeros(0, dtype), *self._parts[name]]).astype(dtype, copy=False)
            for name, dtype in dtypes.items()
        )
        return bytes_, integers, floats


def _encode_record(record: Any, stores: _Stores) -> Iterator[int]:
    for name, kind in list_fields(type(record)):
        yield from _encode_field(getattr(record, name), kind, stores)


def _encode_field(value: Any, kind: str, stores: _Stores) -> Iterator[int]:
    if kind == "integer":
        yield int(value)
    elif kind in _STORES.values():
        yield from stores.place(kind, value)
    elif isinstance(value, tuple):
        yield len(value)
        for record in value:
            yield from _encode_tagged(record, stores)
    else:
        yield from _encode_tagged(value, stores)


def _encode_tagged(record: Any, stores: _Stores) -> Iterator[int]:
    for family in (INSTRUCTIONS, EPILOGUES):
        if type(record) in family:
            yield family.index(type(record))
    yield from _encode_record(record, stores)


_MANY_BITS = 4
"""From this number of bits on, all signed integers are listed as weights, to share one list."""


def pack_weights(weights: Array) -> tuple[int, Array, Array]:
    """Pack weights as indices of few bits without gaps.

    Args:
        weights: Integers within -128..127.

    Returns:
        The bits of an index, the bytes of all indices, and the weight of every index.
    """
    shifted = (weights.ravel() + 128).astype(np.uint8)
    values = np.flatnonzero(np.bincount(shifted, minlength=256))
    bits = max(1, (len(values) - 1).bit_length())
    signed = np.arange(128 - (1 << bits - 1), 128 + (1 << bits - 1))
    if bits >= _MANY_BITS and signed[0] <= values[0] and values[-1] <= signed[-1]:
        values = signed
    indices_of = np.zeros(256, np.uint8)
    indices_of[values] = np.arange(len(values))
    return bits, pack_indices(indices_of[shifted], bits), (values - 128).astype(np.int32)


def pack_indices(indices: Array, bits: int) -> Array:
    """Concatenate numbers of `bits` bits, the first in the lowest bits."""
    count = 8 // bits
    if count * bits != 8:
        flags = (indices[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
        return np.packbits(flags.ravel(), bitorder="little")
    padded = np.pad(indices, (0, -indices.size % count)).reshape(-1, count)
    joined = np.zeros(len(padded), np.uint8)
    for position in range(count):
        joined |= padded[:, position] << np.uint8(position * bits)
    return joined
