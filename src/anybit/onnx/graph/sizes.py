# SPDX-License-Identifier: Apache-2.0
"""Integers that a graph computes from shapes, of which some are known before it runs.

Of a tensor of shape [batch, 5, 3] the last two sizes are known. What a file computes from them, the
targets of its Reshapes above all, is followed here element by element.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array, array_of, is_constant

Partial: TypeAlias = npt.NDArray[Any]
"""Python integers in an array of rank 0 or 1, None where one is not known."""

# Shapes have few sizes; what is longer is not a shape.
_MOST_ELEMENTS = 64
_LIMIT = 2**63


class Sizes:
    """What is known of such integers. Nodes are asked about in the order in which they run."""

    def __init__(self, shape_of: Callable[[ir.Value], Sequence[int | None] | None]) -> None:
        """`shape_of` gives the sizes of a value, as far as they can be relied on."""
        self._shape_of = shape_of
        self._known: dict[ir.Value, Partial] = {}

    def follow(self, node: ir.Node) -> Array | None:
        """What the node gives, if all of it is known. What is known is kept for its readers."""
        rule = None if node.domain or len(node.outputs) != 1 else _RULES.get(node.op_type)
        if rule is None or not node.inputs:
            return None
        try:
            found = rule(self, node)
        except ModelError:  # of an attribute, or of a file: whoever runs the model will say so
            return None
        if found is None or found.ndim > 1 or found.size > _MOST_ELEMENTS:
            return None
        self._known[node.outputs[0]] = found
        return None if None in found.flat else found.astype(np.int64)

    def of(self, value: ir.Value | None) -> Partial | None:
        """What is known of a value; None if it is not an array of a few int64."""
        if value is None:
            return None
        if is_constant(value):
            tensor = value.const_value
            small = tensor is not None and tensor.size <= _MOST_ELEMENTS
            if not small or value.dtype != ir.DataType.INT64:
                return None
            return array_of(value).astype(object)
        if value in self._known:
            return self._known[value]
        shape = self._shape_of(value) if value.dtype == ir.DataType.INT64 else None
        if shape is None or len(shape) > 1 or not all(_is_small(size) for size in shape):
            return None
        return np.full([size for size in shape if size is not None], None, object)

    def _whole(self, value: ir.Value | None) -> list[int] | None:
        """The elements of a value of which all are known."""
        found = self.of(value)
        return None if found is None or None in found.flat else [int(size) for size in found.flat]

    def _shape(self, node: ir.Node) -> Partial | None:
        value = node.inputs[0]
        sizes = None if value is None else self._shape_of(value)
        if sizes is None:
            return None
        start, end = attribute_of(node, "start", 0), attribute_of(node, "end", len(sizes))
        return _partial(sizes[start:end])

    def _same(self, node: ir.Node) -> Partial | None:
        return self.of(node.inputs[0])

    def _cast(self, node: ir.Node) -> Partial | None:
        return self._same(node) if attribute_of(node, "to", 0) == ir.DataType.INT64 else None

    def _sliced(self, node: ir.Node) -> Partial | None:
        data, given = self.of(node.inputs[0]), [self._whole(each) for each in node.inputs[1:]]
        known = [each for each in given if each is not None]
        if data is None or data.ndim != 1 or not 2 <= len(known) == len(given):
            return None
        starts, ends, axes, steps = (*known, *([0], [1])[len(known) - 2 :])
        if not len(starts) == len(ends) == 1 or axes not in ([0], [-1]) or steps != [1]:
            return None
        return data[starts[0] : ends[0]]

    def _gathered(self, node: ir.Node) -> Partial | None:
        data, places = self.of(node.inputs[0]), self.of(_second(node))
        if data is None or data.ndim != 1 or places is None or None in places.flat:
            return None
        if not all(-data.size <= place < data.size for place in places.flat):
            return None
        return np.asarray(data[places.astype(np.int64)], object)

    def _joined(self, node: ir.Node) -> Partial | None:
        parts = [self.of(each) for each in node.inputs]
        known = [part for part in parts if part is not None and part.ndim == 1]
        if len(known) < len(parts) or sum(part.size for part in known) > _MOST_ELEMENTS:
            return None
        return np.concatenate(known)

    def _squeezed(self, node: ir.Node) -> Partial | None:
        data = self.of(node.inputs[0])
        axes = self._axes(node)
        fits = data is not None and data.shape == (1,) and axes in (None, 1)
        return data.reshape(()) if data is not None and fits else None

    def _unsqueezed(self, node: ir.Node) -> Partial | None:
        data = self.of(node.inputs[0])
        fits = data is not None and data.ndim == 0 and self._axes(node) == 1
        return data.reshape(1) if data is not None and fits else None

    def _axes(self, node: ir.Node) -> int | None:
        """How many axes a Squeeze or an Unsqueeze names; None for none, -1 if that is not known."""
        if "axes" in node.attributes:  # before opset 13
            return len(attribute_of(node, "axes", ()))
        if len(node.inputs) < 2 or node.inputs[1] is None:
            return None
        axes = self._whole(node.inputs[1])
        return -1 if axes is None else len(axes)

    def _reshaped(self, node: ir.Node) -> Partial | None:
        data, target = self.of(node.inputs[0]), self._whole(_second(node))
        if data is None or target is None:
            return None
        fits = target in ([-1], [data.size]) or (not target and data.size == 1)
        return data.reshape(target) if fits else None

    def _combined(self, node: ir.Node) -> Partial | None:
        first, second = self.of(node.inputs[0]), self.of(_second(node))
        if first is None or second is None:
            return None
        if first.size != second.size and 1 not in (first.size, second.size):
            return None
        return np.asarray(np.frompyfunc(_COMBINED[node.op_type], 2, 1)(first, second), object)


def _second(node: ir.Node) -> ir.Value | None:
    return node.inputs[1] if len(node.inputs) > 1 else None


def _is_small(size: int | None) -> bool:
    return size is not None and 0 <= size <= _MOST_ELEMENTS


def _partial(sizes: Sequence[int | None]) -> Partial:
    found = np.empty(len(sizes), object)
    found[:] = sizes
    return found


def _of_known(compute: Callable[[int, int], int | None]) -> Callable[[Any, Any], int | None]:
    def combined(first: int | None, second: int | None) -> int | None:
        found = None if first is None or second is None else compute(first, second)
        # Beyond that the runtime's integers wrap around.
        return found if found is not None and -_LIMIT <= found < _LIMIT else None

    return combined


_COMBINED = {
    "Add": _of_known(lambda first, second: first + second),
    "Sub": _of_known(lambda first, second: first - second),
    "Mul": _of_known(lambda first, second: first * second),
    # ONNX rounds toward zero; sizes are not negative.
    "Div": _of_known(lambda a, b: a // b if a >= 0 and b > 0 else None),
}
_RULES: dict[str, Callable[[Sizes, ir.Node], Partial | None]] = {
    "Shape": Sizes._shape,
    "Identity": Sizes._same,
    "Cast": Sizes._cast,
    "Slice": Sizes._sliced,
    "Gather": Sizes._gathered,
    "Concat": Sizes._joined,
    "Squeeze": Sizes._squeezed,
    "Unsqueeze": Sizes._unsqueezed,
    "Reshape": Sizes._reshaped,
    **dict.fromkeys(_COMBINED, Sizes._combined),
}
