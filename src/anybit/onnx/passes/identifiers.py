# SPDX-License-Identifier: Apache-2.0
"""C++ names of inputs, constants and nodes."""

import re
from collections.abc import Callable, Iterator

import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from anybit.onnx.graph.constants import read_array
from anybit.onnx.graph.names import NameGenerator, make_name_generator
from anybit.onnx.graph.walk import iter_values
from anybit.onnx.report import ConversionReport


class Identifiers(InPlacePass):
    """Renaming of inputs, outputs, constants and nodes to unique identifiers.

    Other characters become underscores, and reserved words get a number. Valid names stay. A remark
    lists the renamed inputs and outputs.

    Args:
        is_usable: Return whether the compiler accepts a name.
    """

    def __init__(self, is_usable: Callable[[str], bool]) -> None:
        self._is_usable = is_usable

    def call(self, model: ir.Model) -> ConversionReport:
        graph = model.graph
        unique = make_name_generator(model)
        interface = {id(value) for value in (*graph.inputs, *graph.outputs)}
        taken: set[str] = set()
        renamed: list[str] = []
        count = 0
        for item in _iter_named(graph):
            name = str(item.name or "")
            if name not in taken and self._is_usable(name):
                taken.add(name)
                continue
            if isinstance(item, ir.Value) and item.const_value is not None:
                # Renaming the value would rename its tensor, which belongs to the source file.
                item.const_value = ir.Tensor(read_array(item), dtype=item.const_value.dtype)
            item.name = self._choose_name(name, unique)
            taken.add(item.name)
            count += 1
            if id(item) in interface:
                renamed.append(f"{name} is {item.name}")
        remarks = (f"renamed for C++: {', '.join(renamed)}",) if renamed else ()
        return ConversionReport(model, bool(count), remarks=remarks)

    def _choose_name(self, name: str, unique: NameGenerator) -> str:
        word = re.sub(r"[^A-Za-z0-9_]+", "_", name, flags=re.ASCII).strip("_") or "x"
        word = f"x_{word}" if word[0].isdigit() else word
        while not self._is_usable(chosen := unique(word)):
            word = f"x_{word}"
        return chosen


def _iter_named(graph: ir.Graph) -> Iterator[ir.Value | ir.Node]:
    """Yield everything that becomes a name in C++: inputs first, because users know their names."""
    yield from graph.inputs
    outputs = set(graph.outputs)
    yield from (value for value in iter_values(graph) if value in outputs)
    yield from list(graph.initializers.values())
    yield from graph
