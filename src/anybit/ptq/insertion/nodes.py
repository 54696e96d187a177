# SPDX-License-Identifier: Apache-2.0
"""Nodes that quantizers are written with."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.editor import Editor
from anybit.onnx.quantizers.grids import Match, arguments_of, attributes_of
from anybit.ptq.specs.dynamic_grid import DynamicGrid
from anybit.ptq.specs.quantize import select_operator, select_power_operator

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64


_Size: TypeAlias = int | ir.Value
"""Known, or a vector of one element or several."""


@dataclass(frozen=True)
class _Sizes:
    """How long an axis is, how many blocks that are, and their length, and what the last lacks."""

    length: _Size
    count: _Size
    whole: _Size
    missing: _Size


class Nodes:
    """Writes nodes before another one of a model.

    Args:
        model: The model.
        editor: What writes into it.
        before: The node.
        name: What names begin with.
    """

    def __init__(self, model: ir.Model, editor: Editor, before: ir.Node, name: str) -> None:
        self._model, self._editor = model, editor
        self._before, self._name = before, name

    def quantized(self, x: ir.Value, found: Match, scale: ir.Value | None = None) -> ir.Value:
        """The call of an operator, with a computed scale if one is given."""
        operator = found.operator
        self._model.graph.opset_imports.setdefault(operator.onnx_domain, operator.version)
        names = [declared.name for declared in operator.inputs[1:]]
        parameters = [
            None if array is None else self._editor.parameter(self._name, role, array, _FLOAT)
            for role, array in zip(names, arguments_of(found), strict=True)
        ]
        if scale is not None:
            parameters[0] = scale
        return self._editor.insert(
            self._before,
            operator.onnx_name,
            [x, *parameters],
            f"{self._name}_quantized",
            like=x,
            dtype=_FLOAT,
            attributes=attributes_of(found),
            domain=operator.onnx_domain,
        )

    def in_blocks(self, x: ir.Value, grid: DynamicGrid) -> ir.Value:
        """A tensor in blocks whose scales follow from it. The model has opset 18 or newer."""
        axis, sizes = grid.axis, self._sizes(x, grid)
        if sizes.count == 1:
            return self._scaled(x, grid, axis)
        whole = x if sizes.missing == 0 else self._padded(x, grid, sizes.missing)
        cut = self._reshaped(whole, x, grid, [sizes.count, grid.format.size])
        rounded = self._scaled(cut, grid, axis + 1)
        joined = self._reshaped(rounded, x, grid, [sizes.whole])
        if sizes.missing != 0:
            starts, ends, axes = (
                self._vector([0]),
                self._vector([sizes.length]),
                self._vector([axis]),
            )
            joined = self._insert("Slice", [joined, starts, ends, axes], "short")
        joined.shape = None if x.shape is None else x.shape.copy()
        return joined

    def _sizes(self, x: ir.Value, grid: DynamicGrid) -> _Sizes:
        """Of the axis that is cut; computed where it is not known."""
        block, length = grid.format.size, grid.sizes[grid.axis]
        if length is not None:
            count = -(-length // block)
            return _Sizes(length, count, count * block, count * block - length)
        of = [ir.AttrInt64("start", grid.axis), ir.AttrInt64("end", grid.axis + 1)]
        known = self._insert("Shape", [x], "length", dtype=_INT64, attributes=of)
        more = self._insert("Add", [known, self._vector([block - 1])], "up", dtype=_INT64)
        number = self._insert("Div", [more, self._vector([block])], "count", dtype=_INT64)
        whole = self._insert("Mul", [number, self._vector([block])], "whole", dtype=_INT64)
        missing = self._insert("Sub", [whole, known], "missing", dtype=_INT64)
        return _Sizes(known, number, whole, missing)

    def _scaled(self, cut: ir.Value, grid: DynamicGrid, axis: int) -> ir.Value:
        """Each block by its own scale."""
        inf, least, factor = (
            self._editor.parameter(self._name, role, np.asarray(number), _FLOAT)
            for role, number in (
                ("infinity", np.inf),
                ("least", grid.smallest_magnitude),
                ("factor", grid.scale_factor),
            )
        )
        magnitudes = self._insert("Abs", [cut], "magnitudes", like=cut)
        # ReduceMax of some runtimes passes NaN over.
        isnan = self._insert("IsNaN", [magnitudes], "isnan", like=cut, dtype=ir.DataType.BOOL)
        marked = self._insert("Where", [isnan, inf, magnitudes], "marked", like=cut)
        reach = self._insert("ReduceMax", [marked, self._vector([axis])], "reach")
        limited = self._insert("Max", [reach, least], "limited")
        power = self.quantized(limited, select_power_operator(grid))
        scale = self._insert("Mul", [power, factor], "scale")
        return self.quantized(cut, select_operator(grid.element_grid), scale)

    def _padded(self, x: ir.Value, grid: DynamicGrid, missing: _Size) -> ir.Value:
        rank, axis = len(grid.sizes), grid.axis
        pads = self._vector([*[0] * (rank + axis), missing, *[0] * (rank - 1 - axis)])
        return self._insert("Pad", [x, pads], "filled")

    def _reshaped(
        self, value: ir.Value, x: ir.Value, grid: DynamicGrid, sizes: Sequence[_Size]
    ) -> ir.Value:
        """With other sizes in the place of the axis, and those of x elsewhere."""
        before, behind = grid.sizes[: grid.axis], grid.sizes[grid.axis + 1 :]
        last: list[_Size] = [each for each in behind if each is not None]
        if len(last) < len(behind):
            of = [ir.AttrInt64("start", grid.axis + 1)]
            last = [self._insert("Shape", [x], "behind", dtype=_INT64, attributes=of)]
        # 0 stands for the size that is there.
        shape = self._vector([*[0] * len(before), *sizes, *last])
        result = self._insert("Reshape", [value, shape], "blocks")
        result.shape = ir.Shape(
            [*before, *(each if isinstance(each, int) else None for each in sizes), *behind]
        )
        return result

    def _vector(self, parts: Sequence[_Size]) -> ir.Value:
        """Integers behind one another, of which some may be computed."""
        found = []
        for constant, each in groupby(parts, lambda part: isinstance(part, int)):
            if constant:
                numbers = np.asarray([*each], np.int64)
                found.append(
                    self._editor.shared_constant("integers", f"{self._name}_integers", numbers)
                )
            else:
                found += [part for part in each if isinstance(part, ir.Value)]
        if len(found) == 1:
            return found[0]
        along = [ir.AttrInt64("axis", 0)]
        return self._insert("Concat", found, "integers", dtype=_INT64, attributes=along)

    def _insert(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        what: str,
        *,
        like: ir.Value | None = None,
        dtype: ir.DataType = _FLOAT,
        attributes: Sequence[ir.Attr] = (),
    ) -> ir.Value:
        """A node whose result has an unknown shape, or that of another."""
        return self._editor.insert(
            self._before,
            kind,
            inputs,
            f"{self._name}_{what}",
            like=like or ir.Value(name=None),
            dtype=dtype,
            attributes=attributes,
        )
