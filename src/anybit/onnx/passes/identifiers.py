# SPDX-License-Identifier: Apache-2.0
"""Names of inputs, constants and nodes that C++ takes."""

import re
from collections.abc import Collection, Iterator

import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from anybit.onnx.graph.constants import array_of
from anybit.onnx.graph.names import Names, names_of
from anybit.onnx.graph.walk import values_in
from anybit.onnx.report import Report

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Identifiers(InPlacePass):
    """Inputs, outputs, constants and nodes are called by identifiers, no two by the same one.

    Other characters become underscores, and reserved words get a number. Names that are fine stay.
    A remark names the inputs and outputs that were renamed.

    Args:
        reserved: Names that the compiler does not take.
        pattern: What matches it is reserved, too.
    """

    def __init__(self, reserved: Collection[str], pattern: re.Pattern[str]) -> None:
        self._reserved, self._pattern = reserved, pattern

    def call(self, model: ir.Model) -> Report:
        graph = model.graph
        unique = names_of(model)
        given = {id(value) for value in (*graph.inputs, *graph.outputs)}
        taken: set[str] = set()
        renamed: list[str] = []
        count = 0
        for item in _named(graph):
            name = str(item.name or "")
            if name not in taken and self.is_taken(name):
                taken.add(name)
                continue
            if isinstance(item, ir.Value) and item.const_value is not None:
                # A new name would reach the tensor, and with it the file it was read from.
                item.const_value = ir.Tensor(array_of(item), dtype=item.const_value.dtype)
            item.name = self._free(name, unique)
            taken.add(item.name)
            count += 1
            if id(item) in given:
                renamed.append(f"{name} is {item.name}")
        remarks = (f"renamed for C++: {', '.join(renamed)}",) if renamed else ()
        return Report(model, bool(count), remarks=remarks)

    def is_taken(self, name: str) -> bool:
        """Return whether a name may stay: an identifier that is not reserved."""
        if not _WORD.fullmatch(name) or self._pattern.fullmatch(name):
            return False
        return name not in self._reserved

    def _free(self, name: str, unique: Names) -> str:
        word = re.sub(r"[^A-Za-z0-9_]+", "_", name, flags=re.ASCII).strip("_") or "x"
        word = word if _WORD.fullmatch(word) else f"x_{word}"
        while not self.is_taken(chosen := unique(word)):
            word = f"x_{word}"
        return chosen


def _named(graph: ir.Graph) -> Iterator[ir.Value | ir.Node]:
    """What becomes a name in C++: inputs first, whose names people know."""
    yield from graph.inputs
    outputs = set(graph.outputs)
    yield from (value for value in values_in(graph) if value in outputs)
    yield from list(graph.initializers.values())
    yield from graph
