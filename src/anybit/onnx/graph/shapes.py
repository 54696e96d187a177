# SPDX-License-Identifier: Apache-2.0
"""Inferred shapes, as opposed to declared ones.

A declared shape of an inner value or an output may be outdated after an edit of the file.
Runtimes do not check it, so nothing may be computed from it.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import onnx_ir as ir

from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.walk import iter_graphs

Sizes: TypeAlias = tuple[int | None, ...]

_INFERRED = "anybit.inferred_shape"


def iter_declarable(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the values whose declared shapes are not enforced: all but inputs and initializers."""
    for graph in iter_graphs(model):
        if graph is not model.graph:
            yield from graph.inputs
        for node in graph:
            yield from node.outputs


def record_shape(value: ir.Value, shape: ir.Shape | None) -> None:
    """Record the inferred shape of a value; None if it is unknown."""
    value.meta[_INFERRED] = None if shape is None else shape.copy()


def is_inferred(value: ir.Value) -> bool:
    """Return whether shape inference has visited a value."""
    return _INFERRED in value.meta


def get_inferred_shape(value: ir.Value) -> ir.Shape | None:
    """Return the inferred shape of a value, unless the value has lost its shape since."""
    shape = value.meta.get(_INFERRED)
    return shape if isinstance(shape, ir.Shape) and value.shape is not None else None


def get_proven_sizes(value: ir.Value, model: ir.Model) -> Sizes | None:
    """Return the proven sizes of a value; None for dynamic or unknown sizes."""
    sizes = get_named_sizes(value, model)
    numbers = (size if isinstance(size, int) else None for size in sizes or ())
    return None if sizes is None else tuple(numbers)


def get_named_sizes(value: ir.Value, model: ir.Model) -> tuple[int | str | None, ...] | None:
    """Return the proven sizes of a value, with the names of dynamic sizes.

    `Model.run` checks that equal names of inputs have equal sizes; inference does so by
    construction.
    """
    if is_constant(value) and value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    shape = get_inferred_shape(value)
    if value.is_graph_input() and value.graph is model.graph:
        shape = value.shape  # runtimes check inputs
    return None if shape is None else get_sizes(shape)


def get_sizes(shape: ir.Shape) -> tuple[int | str | None, ...]:
    """Return the sizes of a shape: numbers, names of dynamic sizes, or None for unnamed ones."""
    return tuple(size if isinstance(size, int) else size.value for size in shape)


def has_dynamic_sizes(model: ir.Model) -> bool:
    """Return whether the inputs leave more than the number of rows open, such as the rank."""
    shapes = [value.shape for value in model.graph.inputs if not value.is_initializer()]
    return any(
        shape is None or not all(isinstance(size, int) for size in shape[1:]) for shape in shapes
    )


def merge_shapes(inferred: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Return the inferred sizes, completed by the declared ones.

    Declared names of an earlier inference are dropped: this one may have given them to other sizes.
    """
    if inferred is None:
        return None if declared is None else ir.Shape(map(_drop_generated_name, declared))
    if declared is None or len(inferred) != len(declared):
        return inferred
    return ir.Shape([_merge_sizes(*pair) for pair in zip(inferred, declared, strict=True)])


def _merge_sizes(
    inferred: int | ir.SymbolicDim, declared: int | ir.SymbolicDim
) -> int | ir.SymbolicDim:
    if isinstance(inferred, int) or (isinstance(declared, int) and _is_dynamic(inferred)):
        return inferred
    return declared if isinstance(declared, int) or _is_dynamic(declared) else inferred


def _drop_generated_name(size: int | ir.SymbolicDim) -> int | ir.SymbolicDim | None:
    return size if isinstance(size, int) or _is_dynamic(size) else None


def _is_dynamic(size: int | ir.SymbolicDim) -> bool:
    """Return whether the model names a size."""
    return isinstance(size, ir.SymbolicDim) and bool(size.value) and not is_generated(size.value)


def is_generated(name: str | None) -> bool:
    """Return whether inference named a size: unk__0 and so on."""
    return str(name).startswith("unk__")


def rename_sizes(model: ir.Model, sizes: Mapping[str, int | str]) -> None:
    """Replace names of inferred sizes by proven numbers or names; numbers of declared ones, too."""
    if not sizes:
        return
    for value in iter_declarable(model):
        inferred = get_inferred_shape(value)
        if inferred is None or value.shape is None:
            continue
        proven = [sizes.get(str(size), size) for size in get_sizes(inferred)]
        if proven != list(get_sizes(inferred)):
            declared = [
                size if isinstance(size, int) else old
                for size, old in zip(proven, value.shape, strict=True)
            ]
            record_shape(value, ir.Shape(proven))
            value.shape = ir.Shape(declared)


def contradicts(inferred: ir.Shape, declared: ir.Shape) -> bool:
    """Return whether a declared shape contradicts the inferred one."""
    if len(inferred) != len(declared):
        return True
    pairs = zip(inferred, declared, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def claims_more(inferred: ir.Shape, declared: ir.Shape) -> bool:
    """Return whether a declared shape fixes a size that the model leaves dynamic."""
    if len(inferred) != len(declared):
        return False
    pairs = zip(inferred, declared, strict=True)
    return any(_is_dynamic(size) and isinstance(claimed, int) for size, claimed in pairs)
