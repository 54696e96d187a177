# SPDX-License-Identifier: Apache-2.0
"""Integers that a graph computes from shapes, partially known before it runs.

A tensor of shape [batch, 5, 3] has two sizes that are known in advance. Computations with them,
above all targets of Reshapes, are evaluated element by element.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array

Partial: TypeAlias = npt.NDArray[Any]
"""Array of rank 0 or 1: Python integers, names of dynamic sizes, None for unknown sizes."""

# Shapes have few sizes; longer vectors are not shapes.
_MOST_ELEMENTS = 64
# Beyond these the runtime's integers wrap around.
_LIMITS = {ir.DataType.INT32: 2**31, ir.DataType.INT64: 2**63}


class SizePropagator:
    """Partially known integers. Nodes are visited in execution order."""

    def __init__(self, shape_of: Callable[[ir.Value], Sequence[int | str | None] | None]) -> None:
        """Store `shape_of`, which returns the reliable sizes of a value.

        It may return names of dynamic sizes: they stay unless something is computed from them.
        """
        self._shape_of = shape_of
        self._integers: dict[ir.Value, Partial] = {}
        self._types: dict[ir.Value, ir.DataType] = {}

    def evaluate(self, node: ir.Node) -> Array | None:
        """Evaluate a node; return its output if all of it is known. Partial results are stored."""
        rule = None if node.domain or len(node.outputs) != 1 else _RULES.get(node.op_type)
        if rule is None or not node.inputs:
            return None
        try:
            integers = rule(self, node)
        except ModelError:  # in an attribute or a file; running the model reports it
            return None
        if integers is None or integers.ndim > 1 or integers.size > _MOST_ELEMENTS:
            return None
        dtype = self._infer_output_type(node)
        if dtype not in _LIMITS:
            return None
        self._types[node.outputs[0]] = dtype
        self._integers[node.outputs[0]] = integers = _limit(integers, _LIMITS[dtype])
        return integers.astype(dtype.numpy()) if are_all_known(integers) else None

    def get(self, value: ir.Value | None) -> Partial | None:
        """Return the known integers of a value; None if it is not an array of a few integers."""
        if value is None:
            return None
        if is_constant(value):
            tensor = value.const_value
            small = tensor is not None and tensor.size <= _MOST_ELEMENTS
            if not small or value.dtype not in _LIMITS:
                return None
            return read_array(value).astype(object)
        if value in self._integers:
            return self._integers[value]
        shape = self._shape_of(value) if value.dtype in _LIMITS else None
        sizes = [size for size in shape or () if _is_small(size)]
        if shape is None or len(shape) > 1 or len(sizes) < len(shape):
            return None
        return np.full(sizes, None, object)

    def _get_type(self, value: ir.Value | None) -> ir.DataType | None:
        return None if value is None else self._types.get(value, value.dtype)

    def _infer_output_type(self, node: ir.Node) -> ir.DataType | None:
        """Return the type of the output; files may declare another type, or none."""
        if node.op_type == "Shape":
            return ir.DataType.INT64
        if node.op_type == "Cast":
            return ir.DataType(get_attribute(node, "to", 0))
        return self._get_type(node.inputs[0])

    def _get_whole(self, value: ir.Value | None) -> list[int] | None:
        """Return the elements of a value if all are known."""
        integers = self.get(value)
        return (
            [int(size) for size in integers.flat]
            if integers is not None and are_all_known(integers)
            else None
        )

    def _evaluate_shape(self, node: ir.Node) -> Partial | None:
        value = node.inputs[0]
        sizes = None if value is None else self._shape_of(value)
        if sizes is None:
            return None
        start, end = get_attribute(node, "start", 0), get_attribute(node, "end", len(sizes))
        return _to_partial(sizes[start:end])

    def _evaluate_identity(self, node: ir.Node) -> Partial | None:
        return self.get(node.inputs[0])

    def _evaluate_cast(self, node: ir.Node) -> Partial | None:
        return self._evaluate_identity(node) if get_attribute(node, "to", 0) in _LIMITS else None

    def _evaluate_slice(self, node: ir.Node) -> Partial | None:
        data, operands = (
            self.get(node.inputs[0]),
            [self._get_whole(value) for value in node.inputs[1:]],
        )
        bounds = [numbers for numbers in operands if numbers is not None]
        if data is None or data.ndim != 1 or not 2 <= len(bounds) == len(operands):
            return None
        starts, ends, axes, steps = (*bounds, *([0], [1])[len(bounds) - 2 :])
        if not len(starts) == len(ends) == 1 or axes not in ([0], [-1]) or steps != [1]:
            return None
        return data[starts[0] : ends[0]]

    def _evaluate_gather(self, node: ir.Node) -> Partial | None:
        data, places = self.get(node.inputs[0]), self.get(_get_second_input(node))
        if data is None or data.ndim != 1 or places is None or not are_all_known(places):
            return None
        if not all(-data.size <= place < data.size for place in places.flat):
            return None
        return np.asarray(data[places.astype(np.int64)], object)

    def _evaluate_concat(self, node: ir.Node) -> Partial | None:
        parts = [self.get(value) for value in node.inputs]
        vectors = [part for part in parts if part is not None and part.ndim == 1]
        if len(vectors) < len(parts) or sum(part.size for part in vectors) > _MOST_ELEMENTS:
            return None
        return np.concatenate(vectors)

    def _evaluate_squeeze(self, node: ir.Node) -> Partial | None:
        data = self.get(node.inputs[0])
        axes = self._count_axes(node)
        fits = data is not None and data.shape == (1,) and axes in (None, 1)
        return data.reshape(()) if data is not None and fits else None

    def _evaluate_unsqueeze(self, node: ir.Node) -> Partial | None:
        data = self.get(node.inputs[0])
        fits = data is not None and data.ndim == 0 and self._count_axes(node) == 1
        return data.reshape(1) if data is not None and fits else None

    def _count_axes(self, node: ir.Node) -> int | None:
        """Return the number of axes of a Squeeze or Unsqueeze; None without axes, -1 if unknown."""
        if "axes" in node.attributes:  # before opset 13
            return len(get_attribute(node, "axes", ()))
        if len(node.inputs) < 2 or node.inputs[1] is None:
            return None
        axes = self._get_whole(node.inputs[1])
        return -1 if axes is None else len(axes)

    def _evaluate_reshape(self, node: ir.Node) -> Partial | None:
        data, target = self.get(node.inputs[0]), self._get_whole(_get_second_input(node))
        if data is None or target is None:
            return None
        fits = target in ([-1], [data.size]) or (not target and data.size == 1)
        return data.reshape(target) if fits else None

    def _evaluate_arithmetic(self, node: ir.Node) -> Partial | None:
        first, second = self.get(node.inputs[0]), self.get(_get_second_input(node))
        if first is None or second is None:
            return None
        if first.size != second.size and 1 not in (first.size, second.size):
            return None
        return np.asarray(np.frompyfunc(_COMBINED[node.op_type], 2, 1)(first, second), object)


def are_all_known(sizes: Partial) -> bool:
    """Return whether all integers are known."""
    return all(isinstance(size, int) for size in sizes.flat)


def _limit(integers: Partial, limit: int) -> Partial:
    """Return the integers, without those that wrap around in the runtime."""
    kept = [
        None if isinstance(size, int) and not -limit <= size < limit else size
        for size in integers.flat
    ]
    return _to_partial(kept).reshape(integers.shape)


def _get_second_input(node: ir.Node) -> ir.Value | None:
    return node.inputs[1] if len(node.inputs) > 1 else None


def _is_small(size: int | str | None) -> TypeGuard[int]:
    return isinstance(size, int) and 0 <= size <= _MOST_ELEMENTS


def _to_partial(sizes: Sequence[int | str | None]) -> Partial:
    array = np.empty(len(sizes), object)
    array[:] = sizes
    return array


def _skip_unknown(compute: Callable[[int, int], int | None]) -> Callable[[Any, Any], int | None]:
    def combined(first: int | str | None, second: int | str | None) -> int | None:
        if not isinstance(first, int) or not isinstance(second, int):
            return None
        return compute(first, second)

    return combined


_COMBINED = {
    "Add": _skip_unknown(lambda first, second: first + second),
    "Sub": _skip_unknown(lambda first, second: first - second),
    "Mul": _skip_unknown(lambda first, second: first * second),
    # ONNX rounds toward zero; sizes are not negative.
    "Div": _skip_unknown(lambda a, b: a // b if a >= 0 and b > 0 else None),
}
_RULES: dict[str, Callable[[SizePropagator, ir.Node], Partial | None]] = {
    "Shape": SizePropagator._evaluate_shape,
    "Identity": SizePropagator._evaluate_identity,
    "Cast": SizePropagator._evaluate_cast,
    "Slice": SizePropagator._evaluate_slice,
    "Gather": SizePropagator._evaluate_gather,
    "Concat": SizePropagator._evaluate_concat,
    "Squeeze": SizePropagator._evaluate_squeeze,
    "Unsqueeze": SizePropagator._evaluate_unsqueeze,
    "Reshape": SizePropagator._evaluate_reshape,
    **dict.fromkeys(_COMBINED, SizePropagator._evaluate_arithmetic),
}
