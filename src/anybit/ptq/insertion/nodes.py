# SPDX-License-Identifier: Apache-2.0
"""Nodes of quantizers, also of those with computed scales per row."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.quantizers.grids import GridMatch, list_arguments, make_attributes
from anybit.ptq.graph.blocks import BlockLayout
from anybit.ptq.specs.dynamic_grid import DynamicIntegerGrid
from anybit.ptq.specs.quantize import select_operator

_FLOAT = ir.DataType.FLOAT
# The first opset in which the bounds of Slice are inputs, not attributes.
_SLICE_WITH_INPUTS = 10


class NodeWriter:
    """Insertion of the nodes of quantizers before a node of a model.

    Args:
        model: The model.
        editor: The editor of the model.
        before: The node.
        name: The prefix of names.
    """

    def __init__(self, model: ir.Model, editor: Editor, before: ir.Node, name: str) -> None:
        self._model, self._editor = model, editor
        self._before, self._name = before, name

    def quantize(
        self, x: ir.Value, operator: GridMatch, computed: Sequence[ir.Value] = ()
    ) -> ir.Value:
        """Insert the call of an operator, and return its output.

        Computed values replace the first parameters: the scale, then the zero-point.
        """
        declared = operator.operator
        self._model.graph.opset_imports.setdefault(declared.onnx_domain, declared.version)
        names = [parameter.name for parameter in declared.inputs[1:]]
        shared = [*zip(names, list_arguments(operator), strict=True)][len(computed) :]
        parameters = [
            *computed,
            *(None if array is None else self._share_number(role, array) for role, array in shared),
        ]
        while parameters and parameters[-1] is None:
            parameters.pop()
        return self._editor.insert(
            self._before,
            declared.onnx_name,
            [x, *parameters],
            f"{self._name}_quantized",
            like=x,
            dtype=_FLOAT,
            attributes=make_attributes(operator),
            domain=declared.onnx_domain,
        )

    def quantize_rows(self, x: ir.Value, grid: DynamicIntegerGrid) -> ir.Value:
        """Insert a quantizer with a computed scale per row. The opset must be 18 or newer."""
        one, axes = np.ones((), np.float32), [self._make_vector(grid.axes)] if grid.axes else []
        element_grid = grid.make_grid(one, np.zeros((), np.float32))
        magnitudes = None if grid.asymmetric else self._insert("Abs", [x], "magnitudes", like=x)
        marked = self._mark_nan(magnitudes or x)
        largest = self._insert("ReduceMax", [marked, *axes], "reach")
        if not grid.asymmetric:
            scale = self._insert_scale(largest, grid)
            return self.quantize(x, select_operator(element_grid), [scale])
        zero, first, last = (
            self._share_number(role, number)
            for role, number in (("zero", 0), ("first", grid.codes[0]), ("last", grid.codes[-1]))
        )
        smallest = self._insert("ReduceMin", [marked, *axes], "smallest")
        low = self._insert("Min", [smallest, zero], "low")
        high = self._insert("Max", [largest, zero], "high")
        scale = self._insert_scale(self._insert("Sub", [high, low], "width"), grid)
        quotient = self._insert("Div", [low, scale], "quotient")
        shifted = self._insert("Sub", [first, quotient], "shifted")
        rounded = self._insert("Round", [shifted], "rounded")
        zeropt = self._insert("Clip", [rounded, first, last], "zeropt")
        return self.quantize(x, select_operator(element_grid), [scale, zeropt])

    def _insert_scale(self, width: ir.Value, grid: DynamicIntegerGrid) -> ir.Value:
        """Insert the scale for the magnitude or the width of the range of each row."""
        least, steps, most = (
            self._share_number(role, number)
            for role, number in (
                ("least", grid.smallest_width),
                ("steps", grid.steps),
                ("most", grid.largest_scale),
            )
        )
        limited = self._insert("Max", [width, least], "limited")
        quotient = self._insert("Div", [limited, steps], "step")
        finite = self._insert("Min", [quotient, most], "finite")
        isinf = self._insert("IsInf", [width], "isinf", dtype=ir.DataType.BOOL)
        return self._insert("Where", [isinf, width, finite], "scale")

    def _mark_nan(self, x: ir.Value) -> ir.Value:
        """Replace NaN by infinity: reductions of some runtimes pass NaN over."""
        isnan = self._insert("IsNaN", [x], "isnan", like=x, dtype=ir.DataType.BOOL)
        infinity = self._share_number("infinity", np.inf)
        return self._insert("Where", [isnan, infinity, x], "marked", like=x)

    def _share_number(self, role: str, number: float | Array) -> ir.Value:
        return self._editor.share_parameter(self._name, role, np.asarray(number), _FLOAT)

    def merge_blocks(self, blocks: ir.Value, layout: BlockLayout) -> ir.Value:
        """Insert nodes that give a constant that is stored in blocks its own shape."""
        result = self._reshape(blocks, layout.padded_shape)
        if layout.padded_shape != layout.flat_shape:
            result = self._remove_padding(result, layout)
        if layout.flat_shape == layout.shape:
            return result
        return self._reshape(result, layout.shape)

    def _reshape(self, x: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        sizes = self._editor.share_constant("shape", f"{x.name}_shape", np.asarray(shape, np.int64))
        result = self._editor.insert(
            self._before, "Reshape", [x, sizes], f"{x.name}_joined", like=x, dtype=_FLOAT
        )
        result.shape = ir.Shape(shape)
        return result

    def _remove_padding(self, x: ir.Value, layout: BlockLayout) -> ir.Value:
        bounds = {"starts": [0], "ends": [layout.length], "axes": [layout.first]}
        inputs, attributes = [x], []
        if self._model.graph.opset_imports.get("", 1) >= _SLICE_WITH_INPUTS:
            inputs += [
                self._editor.share_constant(role, f"{x.name}_{role}", np.asarray(bound, np.int64))
                for role, bound in bounds.items()
            ]
        else:
            attributes = [ir.AttrInt64s(role, bound) for role, bound in bounds.items()]
        result = self._editor.insert(
            self._before,
            "Slice",
            inputs,
            f"{x.name}_short",
            like=x,
            dtype=_FLOAT,
            attributes=attributes,
        )
        result.shape = ir.Shape(layout.flat_shape)
        return result

    def _make_vector(self, numbers: Sequence[int]) -> ir.Value:
        integers = np.asarray([*numbers], np.int64)
        return self._editor.share_constant("integers", f"{self._name}_integers", integers)

    def _insert(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        suffix: str,
        *,
        like: ir.Value | None = None,
        dtype: ir.DataType = _FLOAT,
        attributes: Sequence[ir.Attr] = (),
    ) -> ir.Value:
        """Insert a node whose output has the shape of `like`, or an unknown shape."""
        return self._editor.insert(
            self._before,
            operator,
            inputs,
            f"{self._name}_{suffix}",
            like=like or ir.Value(name=None),
            dtype=dtype,
            attributes=attributes,
        )
