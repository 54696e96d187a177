# SPDX-License-Identifier: Apache-2.0
"""Call free sizes what the caller calls them."""

import re
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult


class NameSizes(InPlacePass):
    """Free sizes have these names in all shapes, also inside of expressions such as 4*batch."""

    def __init__(self, sizes: Sequence[Mapping[int, str]]) -> None:
        """`sizes` gives for each input what its free axes are called."""
        self._sizes = sizes

    def call(self, model: ir.Model) -> PassResult:
        names = dict(self._names(model))
        if not names:
            return PassResult(model, False)
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
        for value in _values(model):
            if value.shape is not None:
                value.shape = ir.Shape(
                    pattern.sub(lambda found: names[found[1]], size.value)
                    if isinstance(size, ir.SymbolicDim) and size.value is not None
                    else size
                    for size in value.shape
                )
        return PassResult(model, True)

    def _names(self, model: ir.Model) -> Iterator[tuple[str, str]]:
        """The names that there are, with those that are to be."""
        for value, named in zip(model.graph.inputs, self._sizes, strict=False):
            for axis, name in named.items():
                size = value.shape[axis] if value.shape is not None else None
                if isinstance(size, ir.SymbolicDim) and size.value is not None:
                    yield size.value, name


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        for node in graph:
            yield from node.outputs
