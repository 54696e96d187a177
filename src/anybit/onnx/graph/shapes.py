# SPDX-License-Identifier: Apache-2.0
"""Shapes that follow from a model's inputs and constants, and those that it merely declares.

A file may declare for a value inside it, or for an output, what was true before somebody edited
the file. Runtimes hold nobody to that, so nothing may be computed from it.
"""

from collections.abc import Iterator
from typing import TypeAlias

import onnx_ir as ir

from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.walk import graphs_in

Sizes: TypeAlias = tuple[int | None, ...]

_FOLLOWS = "anybit.follows"


def declarable(model: ir.Model) -> Iterator[ir.Value]:
    """The values whose declared shapes nobody is held to: all but inputs and initializers."""
    for graph in graphs_in(model):
        if graph is not model.graph:
            yield from graph.inputs
        for node in graph:
            yield from node.outputs


def note(value: ir.Value, shape: ir.Shape | None) -> None:
    """Keep what follows for a value; None if nothing does."""
    value.meta[_FOLLOWS] = None if shape is None else shape.copy()


def is_noted(value: ir.Value) -> bool:
    """Whether it was asked what follows for the value: it was there when shapes were inferred."""
    return _FOLLOWS in value.meta


def noted(value: ir.Value) -> ir.Shape | None:
    """The shape that was seen to follow, unless the value has lost its shape since."""
    shape = value.meta.get(_FOLLOWS)
    return shape if isinstance(shape, ir.Shape) and value.shape is not None else None


def sizes_that_follow(value: ir.Value, model: ir.Model) -> Sizes | None:
    """The sizes that a value is certain to have; None for those that are free or not known."""
    sizes = named_sizes_that_follow(value, model)
    known = (size if isinstance(size, int) else None for size in sizes or ())
    return None if sizes is None else tuple(known)


def named_sizes_that_follow(
    value: ir.Value, model: ir.Model
) -> tuple[int | str | None, ...] | None:
    """The same, with the names of those that are free: `Model.run` holds those of inputs together.

    What inference calls by one name is of one size, too.
    """
    if is_constant(value) and value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    shape = noted(value)
    if value.is_graph_input() and value.graph is model.graph:
        shape = value.shape  # runtimes hold inputs to it
    return None if shape is None else sizes_of(shape)


def sizes_of(shape: ir.Shape) -> tuple[int | str | None, ...]:
    """Numbers, and of free sizes their names, or None where they have none."""
    return tuple(size if isinstance(size, int) else size.value for size in shape)


def has_free_sizes(model: ir.Model) -> bool:
    """Whether the inputs leave more open than how many rows there are: even how many axes."""
    shapes = [each.shape for each in model.graph.inputs if not each.is_initializer()]
    return any(
        shape is None or not all(isinstance(size, int) for size in shape[1:]) for shape in shapes
    )


def merged(follows: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """What follows, and what is declared where nothing does."""
    if follows is None or declared is None or len(follows) != len(declared):
        return declared if follows is None else follows
    return ir.Shape([_merged_size(*pair) for pair in zip(follows, declared, strict=True)])


def _merged_size(
    follows: int | ir.SymbolicDim, declared: int | ir.SymbolicDim
) -> int | ir.SymbolicDim:
    if isinstance(follows, int) or (isinstance(declared, int) and _is_free(follows)):
        return follows
    return declared if isinstance(declared, int) or _is_free(declared) else follows


def _is_free(size: int | ir.SymbolicDim) -> bool:
    """Whether it is a size that the model names; inference calls those that it does not know unk__0
    and so on, differently each time."""
    return isinstance(size, ir.SymbolicDim) and not str(size.value or "unk__").startswith("unk__")


def contradicts(follows: ir.Shape, declared: ir.Shape) -> bool:
    """Whether a declared shape cannot be true."""
    if len(follows) != len(declared):
        return True
    pairs = zip(follows, declared, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def claims_more(follows: ir.Shape, declared: ir.Shape) -> bool:
    """Whether a declared shape fixes a size that the model leaves free."""
    if len(follows) != len(declared):
        return False
    pairs = zip(follows, declared, strict=True)
    return any(_is_free(size) and isinstance(claimed, int) for size, claimed in pairs)
