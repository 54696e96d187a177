# SPDX-License-Identifier: Apache-2.0
"""The caller's names of dynamic sizes."""

import re
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult


class NameSizes(InPlacePass):
    """Renaming of dynamic sizes in all shapes, also in expressions such as 4*batch."""

    def __init__(self, sizes: Sequence[Mapping[int, str]]) -> None:
        """Store the names of the dynamic axes of each input."""
        self._sizes = sizes

    def call(self, model: ir.Model) -> PassResult:
        names = dict(self._iter_names(model))
        if not names:
            return PassResult(model, False)
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
        for value in _iter_values(model):
            if value.shape is not None:
                value.shape = ir.Shape(
                    pattern.sub(lambda match: names[match[1]], size.value)
                    if isinstance(size, ir.SymbolicDim) and size.value is not None
                    else size
                    for size in value.shape
                )
        return PassResult(model, True)

    def _iter_names(self, model: ir.Model) -> Iterator[tuple[str, str]]:
        """Yield (old name, new name)."""
        for value, named in zip(model.graph.inputs, self._sizes, strict=False):
            for axis, name in named.items():
                size = value.shape[axis] if value.shape is not None else None
                if isinstance(size, ir.SymbolicDim) and size.value is not None:
                    yield size.value, name


def _iter_values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        for node in graph:
            yield from node.outputs
