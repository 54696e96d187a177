# SPDX-License-Identifier: Apache-2.0
"""Sizes of values, and why those of some are unknown before the graph runs."""

import math
from functools import cached_property

import onnx_ir as ir

from anybit.compiler.prepare.flatten_rows import get_merged_sizes
from anybit.compiler.reason import Reason
from anybit.onnx.files.sample_shapes import find_sample_shape
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.shapes import (
    get_inferred_shape,
    get_named_sizes,
    get_proven_sizes,
    get_sizes,
    has_dynamic_sizes,
)
from anybit.onnx.graph.sizes import SizePropagator
from anybit.text import format_shape as format_sizes

_IMAGE_AXES = 3  # besides the rows
_MOST_INPUTS = 3
_MOST_ELEMENTS = 2**28  # of a row


class RowShapes:
    """Numbers and sizes of the rows of values of one graph, whose shapes have been inferred."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._diagnosis = ShapeDiagnosis(model)
        self._merged: dict[str, tuple[int | str, ...]] = {}
        """The sizes whose product is the number of rows of a name."""
        for value in (value for node in model.graph for value in node.outputs):
            name, sizes = self._get_first_size(value), get_merged_sizes(value)
            if isinstance(name, str) and sizes is not None:
                self._merged[name] = sizes

    def rows(self, value: ir.Value) -> object:
        """Return a key for the number of rows: equal only where the numbers certainly are.

        Two dynamic sizes of a file may differ unless they have one name, and two merged ones unless
        the names before that are the same.
        """
        first = self._get_first_size(value)
        if first is None:
            return value
        return self._merged.get(first, first) if isinstance(first, str) else first

    def _get_first_size(self, value: ir.Value) -> int | str | None:
        shape = value.shape if value.is_graph_input() else get_inferred_shape(value)
        first = None if shape is None or not len(shape) else get_sizes(shape)[0]
        return None if first == "" else first

    def sizes(self, value: ir.Value) -> tuple[int, ...] | Reason:
        """Return the sizes after the rows, or why a program cannot hold the value."""
        sizes = get_proven_sizes(value, self._model)
        if sizes is None or None in sizes[1:]:
            return Reason(self._diagnosis.explain(value))
        if len(sizes) < 2:
            shape = format_sizes((1, *sizes, *[1] * (1 - len(sizes))))
            return Reason(f"a tensor without rows and channels: give it two axes, such as {shape}")
        inner = tuple(size for size in sizes[1:] if size is not None)
        if math.prod(inner) > _MOST_ELEMENTS:
            return Reason("its rows have too many elements")
        if min(inner) < 1:
            return Reason("it has no elements: the sizes before it are too small")
        if len(inner) > 3:
            return Reason("it has more than 4 axes: rows, channels, height and width")
        return inner


class ShapeDiagnosis:
    """Reasons for unknown sizes in one graph, whose shapes have been inferred."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._stopped: dict[ir.Value, ir.Node | None] = {}

    def explain(self, value: ir.Value) -> str:
        """Return the node that stops inference, or the inputs that do, and the remedy."""
        node = self._find_stop(value)
        cause = "input sizes are dynamic" if node is None else self._describe(node)
        return f"its shape is unknown at compile time: {cause}{self._remedy}"

    def _find_stop(self, value: ir.Value) -> ir.Node | None:
        """Return the first node with unknown output sizes; None if inputs have dynamic sizes."""
        path: list[ir.Value] = []
        stop = None
        while value not in self._stopped:
            path.append(value)
            node = value.producer()
            unknown = [] if node is None else [x for x in node.inputs if self._is_unknown(x)]
            if not unknown or unknown[0] is None:
                stop = node
                break
            value = unknown[0]
        else:
            stop = self._stopped[value]
        self._stopped.update(dict.fromkeys(path, stop))
        return stop

    def _is_unknown(self, value: ir.Value | None) -> bool:
        """Return whether more than the number of rows is unknown."""
        if value is None:
            return False
        sizes = get_proven_sizes(value, self._model)
        return sizes is None or None in sizes[1:]

    def _describe(self, node: ir.Node) -> str:
        for value in node.inputs[1:]:
            if value is None or is_constant(value) or value.dtype == ir.DataType.FLOAT:
                continue
            sizes = self._sizes.get(value)
            if sizes is not None and any(size is not None for size in sizes.flat):
                return (
                    f"{describe(node)} computes {format_sizes(sizes.flat)}, "
                    "and more than one of these is dynamic"
                )
            origin = self._origin(value)
            if origin is not None:
                return f"{describe(node)} takes it from {describe(origin)}, which computes it"
            return f"{describe(node)} takes it from the input {value.name!r}"
        return f"shape inference fails at {describe(node)}"

    def _origin(self, value: ir.Value) -> ir.Node | None:
        """Return the node that computes integers of unknown values; None if an input has them."""
        visited = set()
        while (node := value.producer()) is not None:
            visited.add(value)
            computed = [
                x
                for x in node.inputs
                if x is not None
                and x not in visited
                and not is_constant(x)
                and x.dtype in (ir.DataType.INT32, ir.DataType.INT64)
                and self._is_computed(x)
            ]
            if not computed:
                return node
            value = computed[0]
        return None

    def _is_computed(self, value: ir.Value) -> bool:
        sizes = self._sizes.get(value)
        return sizes is None or None in sizes.flat

    @cached_property
    def _sizes(self) -> SizePropagator:
        sizes = SizePropagator(lambda value: get_named_sizes(value, self._model))
        for node in self._model.graph:
            sizes.evaluate(node)
        return sizes

    @cached_property
    def _remedy(self) -> str:
        inputs = [x for x in self._model.graph.inputs if not x.is_initializer()]
        if has_dynamic_sizes(self._model):
            dynamic = [x for x in inputs if self._is_unknown(x)]
            options = " ".join(
                f"--shape {x.name}={_describe_sizes(x, self._model)}"
                for x in dynamic[:_MOST_INPUTS]
            )
            return f"; give sizes such as {options}{' ...' if len(dynamic) > _MOST_INPUTS else ''}"
        fixed = all(x.shape is not None and x.shape.is_static() for x in inputs)
        return "" if fixed else "; fixing the batch size may help: anybit clean --batch 1"


def _describe_sizes(value: ir.Value, model: ir.Model) -> str:
    """Return sizes as --shape takes them: of the calibration data, else with examples."""
    recorded = find_sample_shape(model, value)
    if recorded is not None:
        return ",".join(map(str, recorded))
    if value.shape is None:
        return "1,3,224,224"
    first, *others = value.shape if len(value.shape) else [1]
    example = 224 if len(others) == _IMAGE_AXES else 128
    sizes = [first if isinstance(first, int) else 1, *others]
    return ",".join(str(size) if isinstance(size, int) else str(example) for size in sizes)
