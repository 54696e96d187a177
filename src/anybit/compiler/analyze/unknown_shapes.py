# SPDX-License-Identifier: Apache-2.0
"""Why the sizes of a value are not known before a graph runs, and what to do about it."""

from functools import cached_property

import onnx_ir as ir

from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.names import described
from anybit.onnx.graph.shapes import has_free_sizes, named_sizes_that_follow, sizes_that_follow
from anybit.onnx.graph.sizes import Sizes
from anybit.text import sizes as sizes_in_words

_IMAGE_AXES = 3  # besides the rows
_MOST_INPUTS = 3


class ShapeBlame:
    """What is asked about values of one graph, whose shapes have been inferred."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._stopped: dict[ir.Value, ir.Node | None] = {}

    def why(self, value: ir.Value) -> str:
        """The node that stops inference, or the inputs that leave it open, and the remedy."""
        node = self._stopping(value)
        what = "those of inputs are free" if node is None else self._about(node)
        return f"its sizes are not known before it runs: {what}{self._remedy}"

    def _stopping(self, value: ir.Value) -> ir.Node | None:
        """The node whose inputs are of known sizes, and its results not; None if inputs are not."""
        path: list[ir.Value] = []
        found = None
        while value not in self._stopped:
            path.append(value)
            node = value.producer()
            before = [] if node is None else [each for each in node.inputs if self._is_open(each)]
            if not before or before[0] is None:
                found = node
                break
            value = before[0]
        else:
            found = self._stopped[value]
        self._stopped.update(dict.fromkeys(path, found))
        return found

    def _is_open(self, value: ir.Value | None) -> bool:
        """Whether more than the number of its rows is open."""
        if value is None:
            return False
        sizes = sizes_that_follow(value, self._model)
        return sizes is None or None in sizes[1:]

    def _about(self, node: ir.Node) -> str:
        for value in node.inputs[1:]:
            if value is None or is_constant(value) or value.dtype == ir.DataType.FLOAT:
                continue
            known = self._sizes.of(value)
            if known is not None and any(size is not None for size in known.flat):
                return (
                    f"{described(node)} computes {sizes_in_words(known.flat)}, "
                    "of which more than one is open"
                )
            origin = self._origin(value)
            if origin is not None:
                return f"{described(node)} takes them from {described(origin)}, which computes them"
            return f"{described(node)} takes them from the input {value.name!r}"
        return f"nothing says what sizes {described(node)} gives"

    def _origin(self, value: ir.Value) -> ir.Node | None:
        """Where integers come from that nothing is known of; None if from an input."""
        seen = set()
        while (node := value.producer()) is not None:
            seen.add(value)
            before = [
                each
                for each in node.inputs
                if each is not None
                and each not in seen
                and not is_constant(each)
                and each.dtype in (ir.DataType.INT32, ir.DataType.INT64)
                and self._is_computed(each)
            ]
            if not before:
                return node
            value = before[0]
        return None

    def _is_computed(self, value: ir.Value) -> bool:
        known = self._sizes.of(value)
        return known is None or None in known.flat

    @cached_property
    def _sizes(self) -> Sizes:
        sizes = Sizes(lambda value: named_sizes_that_follow(value, self._model))
        for node in self._model.graph:
            sizes.follow(node)
        return sizes

    @cached_property
    def _remedy(self) -> str:
        inputs = [each for each in self._model.graph.inputs if not each.is_initializer()]
        if has_free_sizes(self._model):
            free = [each for each in inputs if self._is_open(each)]
            options = " ".join(
                f"--shape {each.name}={_sizes_of(each)}" for each in free[:_MOST_INPUTS]
            )
            return f"; give sizes such as {options}{' ...' if len(free) > _MOST_INPUTS else ''}"
        fixed = all(each.shape is not None and each.shape.is_static() for each in inputs)
        return "" if fixed else "; they may follow where rows are fixed: anybit clean --batch 1"


def _sizes_of(value: ir.Value) -> str:
    """Return sizes as --shape takes them, with examples in the place of those that are free."""
    if value.shape is None:
        return "1,3,224,224"
    first, *others = value.shape if len(value.shape) else [1]
    example = 224 if len(others) == _IMAGE_AXES else 128
    sizes = [first if isinstance(first, int) else 1, *others]
    return ",".join(str(size) if isinstance(size, int) else str(example) for size in sizes)
