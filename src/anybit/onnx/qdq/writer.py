# SPDX-License-Identifier: Apache-2.0
"""Writer of the planned QuantizeLinear, Clip and DequantizeLinear of a quantizer."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from anybit.formats import FloatFormat
from anybit.onnx.folding.evaluation import evaluate_operator
from anybit.onnx.graph.constants import Array, read_array
from anybit.onnx.graph.editor import Editor, is_read
from anybit.onnx.graph.names import get_output_name
from anybit.onnx.graph.require import require_input, require_producer
from anybit.onnx.qdq.plan import Limit, QdqPlan
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.metadata import CODING_KEY, RANGE_KEY
from anybit.onnx.quantizers.native_types import INTEGERS, NativeType
from anybit.ops import Operator
from anybit.ops.grids import Channels, FloatGrid, IntegerGrid

_FLOAT, _INDEX = ir.DataType.FLOAT, ir.DataType.INT32

# From this number on, scales with few distinct values are stored as codes, too.
_MANY = 1024
_BYTE = next(integer for integer in INTEGERS if integer.dtype == ir.DataType.UINT8)


class QdqWriter:
    """Writer of plans into a model.

    Attributes:
        pairs: The DequantizeLinear that were written, except those of tables.
    """

    def __init__(self, editor: Editor) -> None:
        self.pairs: list[ir.Node] = []
        self._editor = editor
        self._codes: dict[ir.Value, dict[object, ir.Value]] = {}

    def write(self, node: ir.Node, operator: Operator, plan: QdqPlan) -> None:
        """Replace a node by the nodes of a plan.

        Raises:
            Inexpressible: The codes of a constant do not decode to its values.
            ModelError: The operator refuses its constants.
        """
        x = require_input(node)
        if plan.constant:
            codes = self._write_constant(node, operator, plan, x)
        else:
            codes = self._write_quantize(node, plan, x)
        if plan.table is not None:
            result = self._write_lookup(node, plan, plan.table, codes)
        else:
            result = self._write_dequantize(node, plan, codes)
        for replaced in (node, *(plan.joined.nodes if plan.joined else ())):
            self._editor.replace(replaced, result)
        if x.const_value is not None and not is_read(x):
            self._codes.pop(x, None)  # otherwise the weights stay in memory

    def _write_constant(
        self, node: ir.Node, operator: Operator, plan: QdqPlan, x: ir.Value
    ) -> ir.Value:
        """Return the codes as an initializer, shared by nodes with equal inputs and attributes."""
        attributes = sorted((name, attribute.value) for name, attribute in node.attributes.items())
        shape = plan.joined and (plan.joined.shape, plan.joined.kept)
        key = (plan.type, operator.name, tuple(node.inputs), tuple(attributes), shape)
        stored = self._codes.setdefault(x, {})
        if key not in stored:
            arrays = [None if value is None else read_array(value) for value in node.inputs]
            assert arrays[0] is not None, "operators have an x"
            # In the compute type: after rounding to the type of x, codes may be ambiguous.
            arrays[0] = np.asarray(arrays[0], dtype=np.float32)
            values = evaluate_operator(node, operator, arrays)
            try:
                codes = _encode(values, plan)
            except ValueError as reason:
                raise Inexpressible(str(reason)) from None
            tensor = ir.tensor(codes, dtype=plan.type.dtype)
            stored[key] = self._editor.add_constant(f"{x.name}_{plan.type.name}", tensor)
        return stored[key]

    def _write_quantize(self, node: ir.Node, plan: QdqPlan, x: ir.Value) -> ir.Value:
        """Write QuantizeLinear, after the nodes that x needs before it."""
        if plan.dtype != _FLOAT:
            x = self._insert(
                node, "Cast", [x], "float32", _FLOAT, attributes=[_make_cast_target(_FLOAT)]
            )
        if plan.sign:
            x = self._write_signs(node, x)
            layout = Channels(np.ones((), np.float32), np.zeros((), np.float32), None)
        else:
            x = self._write_limits(node, plan, x) if plan.limit is Limit.VALUES else x
            layout = plan.layout
        return self._insert(
            node,
            "QuantizeLinear",
            [x, *self._write_parameters(node, plan, layout)],
            "quantized",
            plan.type.dtype,
            attributes=_make_axis_attributes(layout, x),
        )

    def _write_signs(self, node: ir.Node, x: ir.Value) -> ir.Value:
        """Return +1 for x >= 0 and -1 otherwise: Sign is 0 for 0."""
        zero, one, minus = (
            self._write_parameter(node, name, np.asarray(number))
            for name, number in (("zero", 0), ("plus_one", 1), ("minus_one", -1))
        )
        positive = self._insert(node, "GreaterOrEqual", [x, zero], "is_positive", ir.DataType.BOOL)
        return self._insert(node, "Where", [positive, one, minus], "sign", _FLOAT)

    def _write_limits(self, node: ir.Node, plan: QdqPlan, x: ir.Value) -> ir.Value:
        """Return x, clipped to the values of the lowest and highest code if the type has more."""
        grid, native = plan.grid, plan.type
        if isinstance(grid, FloatGrid):
            return self._write_bound(node, plan, x, "Min", "highest", grid.format.largest)
        limited = x
        if grid.lowest > native.lowest:
            limited = self._write_bound(node, plan, x, "Max", "lowest", grid.lowest)
        if grid.highest < native.highest or limited is x:  # a one-sided range needs only one
            limited = self._write_bound(node, plan, limited, "Min", "highest", grid.highest)
        return limited

    def _write_bound(
        self, node: ir.Node, plan: QdqPlan, x: ir.Value, kind: str, name: str, code: float
    ) -> ir.Value:
        layout = plan.layout
        with np.errstate(all="ignore"):  # an infinite bound has no effect
            bound = (np.float32(code) - layout.zeropt) * layout.scale
        limit = self._write_parameter(node, name, layout.broadcast(np.asarray(bound)))
        return self._insert(node, kind, [x, limit], "limited", _FLOAT)

    def _write_dequantize(self, node: ir.Node, plan: QdqPlan, codes: ir.Value) -> ir.Value:
        metadata = {}
        if isinstance(plan.grid, IntegerGrid):
            span = (plan.grid.lowest, plan.grid.highest)
            if plan.limit is Limit.CODES:
                limits = [
                    self._editor.share_parameter(
                        get_output_name(node), name, np.asarray(code), plan.type.dtype
                    )
                    for name, code in zip(("lowest_code", "highest_code"), span, strict=True)
                ]
                codes = self._insert(node, "Clip", [codes, *limits], "clipped", plan.type.dtype)
            if plan.constant and span != (plan.type.lowest, plan.type.highest):
                metadata[RANGE_KEY] = f"{span[0]}..{span[1]}"
            if plan.constant and plan.sign:
                metadata[CODING_KEY] = str(plan.grid.coding)
        layout = plan.layout
        result = self._insert(
            node,
            "DequantizeLinear",
            [codes, *self._write_parameters(node, plan, layout)],
            "dequantized",
            _FLOAT,
            attributes=_make_axis_attributes(
                layout, codes if codes.shape is not None else node.outputs[0]
            ),
            metadata=metadata,
        )
        self.pairs.append(require_producer(result))
        return self._cast_to_declared(node, plan, result)

    def _cast_to_declared(self, node: ir.Node, plan: QdqPlan, result: ir.Value) -> ir.Value:
        """Return the values in the type of the quantizer's output, which may not be float32."""
        if plan.dtype == _FLOAT:
            return result
        to = [_make_cast_target(plan.dtype)]
        return self._insert(
            node, "Cast", [result], plan.dtype.name.lower(), plan.dtype, attributes=to
        )

    def _write_lookup(
        self, node: ir.Node, plan: QdqPlan, table: FloatFormat, codes: ir.Value
    ) -> ir.Value:
        """Return table values of codes, times the scale. DequantizeLinear unpacks the codes."""
        result = self._write_gather(node, "value", codes, plan.type, list_values(table))
        scale = self._write_scale(node, plan.grid.scale)
        result = self._insert(node, "Mul", [result, scale], "scaled", _FLOAT)
        return self._cast_to_declared(node, plan, result)

    def _write_scale(self, node: ir.Node, scale: Array) -> ir.Value:
        """Return the scales, as codes of one byte if there are few distinct ones."""
        table, codes = np.unique(scale, return_inverse=True)
        if scale.size < _MANY or table.size > _BYTE.highest + 1:
            return self._write_parameter(node, "scale", scale)
        tensor = ir.tensor(codes.reshape(scale.shape).astype(np.uint8))
        stored = self._editor.add_constant(f"{get_output_name(node)}_scale_codes", tensor)
        return self._write_gather(node, "scale", stored, _BYTE, table)

    def _write_gather(
        self, node: ir.Node, column: str, codes: ir.Value, native: NativeType, table: Array
    ) -> ir.Value:
        """Return the elements of a table at the codes."""
        names = get_output_name(node)
        one, zero, values = (
            self._editor.share_parameter(names, role, array, dtype)
            for role, array, dtype in (
                ("one", np.ones(()), _FLOAT),
                ("zero_point", np.zeros(()), native.dtype),
                (f"{column}s", table, _FLOAT),
            )
        )
        floats = self._insert(
            node, "DequantizeLinear", [codes, one, zero], f"{column}_codes", _FLOAT, like=codes
        )
        index = self._insert(
            node,
            "Cast",
            [floats],
            f"{column}_index",
            _INDEX,
            attributes=[_make_cast_target(_INDEX)],
            like=codes,
        )
        return self._insert(node, "Gather", [values, index], column, _FLOAT, like=codes)

    def _write_parameters(self, node: ir.Node, plan: QdqPlan, layout: Channels) -> list[ir.Value]:
        """Return scale and zero-point; the latter always, because readers' defaults differ."""
        zeropt = self._editor.share_parameter(
            get_output_name(node), "zero_point", layout.zeropt, plan.type.dtype
        )
        return [self._write_parameter(node, "scale", layout.scale), zeropt]

    def _write_parameter(self, node: ir.Node, name: str, array: Array) -> ir.Value:
        return self._editor.share_parameter(get_output_name(node), name, array, _FLOAT)

    def _insert(
        self,
        node: ir.Node,
        kind: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        dtype: ir.DataType,
        *,
        attributes: Sequence[ir.Attr] = (),
        metadata: dict[str, str] | None = None,
        like: ir.Value | None = None,
    ) -> ir.Value:
        """Insert a node; return its output, in the shape of x or of `like`."""
        x = node.inputs[0]
        if like is None:
            like = x if x is not None and x.shape is not None else node.outputs[0]
        return self._editor.insert(
            node,
            kind,
            inputs,
            f"{get_output_name(node)}_{name}",
            like=like,
            dtype=dtype,
            attributes=attributes,
            metadata=metadata,
        )


def _make_cast_target(dtype: ir.DataType) -> ir.Attr:
    return ir.AttrInt64("to", dtype.value)


def _make_axis_attributes(layout: Channels, x: ir.Value) -> list[ir.Attr]:
    """Return axis and block size; from the front if the rank is known, as most readers expect."""
    axis = layout.axis
    if axis is None:
        return []
    has_rank = x.shape is not None and x.shape.rank() >= -axis
    attribute = ir.AttrInt64("axis", axis + x.shape.rank() if has_rank and x.shape else axis)
    return [attribute, *([ir.AttrInt64("block_size", layout.block)] if layout.block else [])]


def _encode(values: Array, plan: QdqPlan) -> Array:
    """Return the codes of values that are on the grid.

    Raises:
        ValueError: The codes do not decode to the same values.
    """
    if plan.table is not None:
        return encode_values(values, plan.table, plan.grid.scale)
    codes = plan.grid.encode(values, plan.type.dtype.numpy())
    return codes if plan.joined is None else plan.joined.codes(codes)


def list_values(format: FloatFormat) -> Array:
    """Return the values in ascending order."""
    return format.values().astype(np.float32)


def encode_values(values: Array, format: FloatFormat, scale: Array) -> Array:
    """Return the indices in the table whose values, times the scale, are the numbers.

    Raises:
        ValueError: The values are not on the grid.
    """
    table = list_values(format)
    with np.errstate(all="ignore"):
        numbers = np.divide(values, scale, dtype=np.float32)
        codes = np.searchsorted((table[1:] + table[:-1]) / 2, numbers).astype(np.uint8)
        if not np.array_equal(table[codes] * scale.astype(np.float32), values):
            raise ValueError("its codes times scale differ from its values in float32")
    return codes
