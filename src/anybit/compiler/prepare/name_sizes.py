# SPDX-License-Identifier: Apache-2.0
"""Names of sizes that shape inference leaves open, and that are equal to named ones.

ONNX gives new names to sizes that a Reshape or an Expand reads, and to those of a sum of two
tensors with different names. Residual sums of attention have both: their sizes are equal, because
exporters compute them from the shape of the same input.
"""

from collections.abc import Sequence
from typing import TypeAlias

import onnx_ir as ir

from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_onnx_op
from anybit.onnx.graph.shapes import get_named_sizes, is_generated, rename_sizes
from anybit.onnx.graph.sizes import SizePropagator

_Size: TypeAlias = int | str
_Sizes: TypeAlias = Sequence[_Size | None]
_LEAST_BOUNDS, _AXES = 3, 2  # starts, ends, axes; then steps


def name_sizes(model: ir.Model) -> None:
    """Give sizes the names of proven equal ones, in place. Shapes are inferred."""
    names = _Names(model)
    for node in model.graph:
        names.visit(node)
    rename_sizes(model, names.find_all())


class _Names:
    """Names of equal sizes. Nodes are visited in execution order."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._equal: dict[str, _Size] = {}
        self._least: dict[str, str] = {}
        """For the name of min(n, c), with a constant c of 1 or more, the name of n."""
        self._integers = SizePropagator(self._get_sizes)

    def find_all(self) -> dict[str, _Size]:
        """Return the names that are equal to others or to numbers, with these."""
        return {name: self._find(name) for name in self._equal}

    def visit(self, node: ir.Node) -> None:
        """Find the names of the sizes of the output of a node."""
        self._integers.evaluate(node)
        sizes = self._get_sizes(node.outputs[0]) if len(node.outputs) == 1 else None
        if node.domain or sizes is None:
            return
        for size, proven in zip(sizes, self._prove(node, sizes) or (), strict=False):
            if size is not None and proven is not None:
                self._join_names(self._find(size), self._find(proven))

    def _join_names(self, name: _Size, equal: _Size) -> None:
        if isinstance(name, str) and is_generated(name) and name != equal:
            self._equal[name] = equal

    def _find(self, size: _Size) -> _Size:
        while isinstance(size, str) and size in self._equal:
            size = self._equal[size]
        return size

    def _get_sizes(self, value: ir.Value) -> _Sizes | None:
        sizes = get_named_sizes(value, self._model)
        if sizes is None:
            return None
        return [None if size is None else self._find(size) for size in sizes]

    def _prove(self, node: ir.Node, sizes: _Sizes) -> _Sizes | None:
        """Return the proven sizes of an output that has these; None for other sizes."""
        if is_onnx_op(node, "Slice"):
            return self._slice(node, sizes)
        if is_onnx_op(node, "Reshape", "Expand"):
            target = self._integers.get(node.inputs[1]) if len(node.inputs) > 1 else None
            if target is None or target.shape != (len(sizes),):
                return None
            if node.op_type == "Expand":
                return self._broadcast(node.inputs[:1], list(target))
            return [None if size in (0, -1) else size for size in target]
        # The second input of CastLike is not broadcast.
        if has_trait(node, OpTrait.ELEMENTWISE) and not is_onnx_op(node, "CastLike"):
            return self._broadcast(node.inputs, [1] * len(sizes))
        return None

    def _broadcast(self, values: Sequence[ir.Value | None], sizes: _Sizes) -> _Sizes | None:
        """Return the sizes of tensors after they are broadcast to each other and to some sizes."""
        shapes = [sizes]
        for value in values:
            if value is not None:
                shape = self._get_sizes(value)
                if shape is None or len(shape) > len(sizes):
                    return None
                shapes.append([*[1] * (len(sizes) - len(shape)), *shape])
        return [self._join_sizes(column) for column in zip(*shapes, strict=True)]

    def _join_sizes(self, sizes: _Sizes) -> _Size | None:
        """Return the size of an axis of several tensors; None if two may be larger than 1.

        min(n, c) is broadcast to n: it is n or 1, or n is 1, and then it is 1, too.
        """
        names = {None if size is None else self._find(size) for size in sizes} - {1}
        limits = {name: self._find(self._least[name]) for name in self._least.keys() & names}
        names -= {name for name, limit in limits.items() if limit != name and limit in names}
        return names.pop() if len(names) == 1 else None

    def _slice(self, node: ir.Node, sizes: _Sizes) -> _Sizes | None:
        """Return the sizes of other axes than that of a Slice, which may be min(n, c)."""
        x, bounds = node.inputs[0], [self._integers.get(value) for value in node.inputs[1:]]
        whole = None if x is None else self._get_sizes(x)
        if whole is None or len(whole) != len(sizes) or len(bounds) < _LEAST_BOUNDS:
            return None
        axes = bounds[_AXES]
        if axes is None or axes.shape != (1,) or axes[0] not in range(-len(sizes), len(sizes)):
            return None
        axis = int(axes[0]) % len(sizes)
        size, every = sizes[axis], whole[axis]
        start, end, _, *step = (b[0] if b is not None and b.shape == (1,) else None for b in bounds)
        is_first = start == 0 and step in ([], [1]) and isinstance(every, int) and every > 0
        if is_first and isinstance(size, str) and isinstance(end, str):
            self._least[size] = end
        return [*whole[:axis], None, *whole[axis + 1 :]]
