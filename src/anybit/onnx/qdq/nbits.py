# SPDX-License-Identifier: Apache-2.0
"""Replacement of ONNX Runtime's MatMulNBits by a quantized weight and MatMul."""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.require import require_input
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.qdq.lift_codes import compute_output
from anybit.onnx.qdq.lifting import insert_quantizer
from anybit.onnx.qdq.packed_weights import (
    BIAS,
    SAME_WEIGHTS,
    SCALES,
    ZEROPTS,
    A,
    B,
    PackedWeight,
    get_dtype_name,
    is_nbits,
    read_packed_weight,
)
from anybit.onnx.quantizers.grids import GridMatch, Inexpressible, match_grid
from anybit.onnx.report import ConversionStep

_FLOAT = ir.DataType.FLOAT
# The first opset whose Slice has inputs.
_SLICE_OPSET = 10
# The opset for a model without standard operators.
_OPSET = 13


@dataclass(frozen=True)
class LiftedNBits:
    """One step per replaced node, and the reasons why others stay, by the name of their output."""

    steps: list[ConversionStep] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    def reason(self, node: ir.Node) -> str:
        """Return the reason why a node stays; "" if there is none."""
        return self.reasons.get(_get_result_name(node), "")


def lift_nbits(model: ir.Model, editor: Editor, *, allow_approximate: bool) -> LiftedNBits:
    """Replace each MatMulNBits whose weight is constant by a quantizer and MatMul.

    The weight becomes float32 values of shape [blocks, block size, N]. A quantizer with a scale and
    a zero-point of shape [blocks, 1, N] follows, then a Reshape, and a Slice if the last block is
    shorter. A weight of one block is a matrix [K, N] with a scale per channel. The weights equal
    those of the operator bit for bit; as in MatMul, the order of sums may differ.

    Nodes without an equivalent quantizer stay. Without `allow_approximate`, so do nodes that
    compute with less than float32, or whose weights differ in the last bit. Such a node still runs
    in every runtime of the original, and the rest of the model can be converted exactly.

    Raises:
        ModelError: An attribute has another type than the operator's, or a tensor cannot be read.
    """
    lifted, writer = LiftedNBits(), _Writer(model, editor)
    for node in list(iter_nodes(model.graph)):
        if not is_nbits(node):
            continue
        try:
            packed = read_packed_weight(node)
            difference = packed.difference
            if difference and not allow_approximate:
                raise Inexpressible(
                    f"MatMul would give other values: {difference}; --allow-approximate converts it"
                )
            name, action = get_label(node), writer.write(node, packed)
        except Inexpressible as reason:
            lifted.reasons[_get_result_name(node)] = str(reason)
            continue
        lifted.steps.append(
            ConversionStep(
                name, node.op_type, action, difference or SAME_WEIGHTS, exact=not difference
            )
        )
    return lifted


def describe_difference(node: ir.Node) -> str:
    """Return what the replacement of a MatMulNBits changes; "" if nothing.

    Sizes are compared, and no weight is computed.

    Raises:
        Inexpressible: It has no replacement.
        ModelError: An attribute has another type than the operator's.
    """
    return read_packed_weight(node).difference


class _Writer:
    """Writer of the nodes of one model. Nodes with a shared weight share its replacement."""

    def __init__(self, model: ir.Model, editor: Editor) -> None:
        self._imports = model.graph.opset_imports
        self._editor = editor
        self._weights: dict[object, tuple[ir.Value, GridMatch]] = {}

    def write(self, node: ir.Node, packed: PackedWeight) -> str:
        """Replace a node by the new nodes, and return their name.

        Raises:
            Inexpressible: No quantizer maps the weights to themselves.
        """
        weight, quantizer = self._make_weight(node, packed)
        self._imports.setdefault("", _OPSET)
        result = self._insert(
            node, "MatMul", [self._cast_to_float32(node, packed, A), weight], "product"
        )
        product, name = result.producer(), node.name
        if get_input(node, BIAS) is not None:
            result = self._insert(
                node, "Add", [result, self._cast_to_float32(node, packed, BIAS)], "sum"
            )
        if packed.dtype != _FLOAT:
            result = self._cast(node, result, packed.dtype)
        self._editor.replace(node, result)
        if product is not None and name:
            product.name = name
        return f"{quantizer.operator.onnx_name} and MatMul"

    def _make_weight(self, node: ir.Node, packed: PackedWeight) -> tuple[ir.Value, GridMatch]:
        """Return the weight of shape [K, N], and its quantizer."""
        parts = tuple(get_input(node, index) for index in (B, SCALES, ZEROPTS))
        key = (*parts, packed.k, packed.n, packed.block, packed.bits, node.graph)
        if key not in self._weights:
            if packed.k % packed.block and packed.blocks > 1:
                opset = self._imports.get("", _OPSET)
                if opset < _SLICE_OPSET:
                    raise Inexpressible(
                        f"opset {opset} has no Slice with inputs: export with opset {_SLICE_OPSET}"
                    )
            grid, values = packed.weight(node)
            quantizer = match_grid(grid)
            if quantizer is None or not np.array_equal(
                compute_output(quantizer, values), values, equal_nan=True
            ):
                raise Inexpressible("no quantizer has all of its weights")
            self._weights[key] = self._join_blocks(node, packed, quantizer, values), quantizer
        return self._weights[key]

    def _join_blocks(
        self, node: ir.Node, packed: PackedWeight, quantizer: GridMatch, values: Array
    ) -> ir.Value:
        """Quantize the values and concatenate their blocks."""
        name = str(require_input(node, B).name)
        source = self._editor.add_constant(f"{name}_values", ir.Tensor(values))
        weight = insert_quantizer(self._editor, node, quantizer, source, name, like=source)
        if packed.blocks > 1:
            whole = (packed.blocks * packed.block, packed.n)
            weight = self._insert_reshape(
                node, "Reshape", [weight, *self._make_integers(whole)], name, whole
            )
            if packed.k != whole[0]:
                bounds = self._make_integers((0,), (packed.k,), (0,))
                inputs, size = [weight, *bounds], (packed.k, packed.n)
                weight = self._insert_reshape(node, "Slice", inputs, name, size)
        return weight

    def _insert_reshape(
        self,
        node: ir.Node,
        kind: str,
        inputs: list[ir.Value],
        name: str,
        shape: tuple[int, ...],
    ) -> ir.Value:
        suffix = "joined" if kind == "Reshape" else "cut"
        result = self._editor.insert(
            node, kind, inputs, f"{name}_{suffix}", like=inputs[0], dtype=_FLOAT
        )
        result.shape = ir.Shape(shape)
        return result

    def _make_integers(self, *constants: tuple[int, ...]) -> list[ir.Value]:
        arrays = [np.array(constant, np.int64) for constant in constants]
        return [self._editor.share_constant("sizes", "sizes", array) for array in arrays]

    def _cast_to_float32(self, node: ir.Node, packed: PackedWeight, index: int) -> ir.Value:
        """Return an input, converted to float32 if it is not."""
        value = require_input(node, index)
        if value.dtype == _FLOAT or packed.dtype == _FLOAT:
            return value
        return self._cast(node, value, _FLOAT)

    def _cast(self, node: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        to = [ir.AttrInt64("to", dtype.value)]
        name = f"{value.name}_{get_dtype_name(dtype)}"
        return self._editor.insert(
            node, "Cast", [value], name, like=value, dtype=dtype, attributes=to
        )

    def _insert(self, node: ir.Node, kind: str, inputs: list[ir.Value], suffix: str) -> ir.Value:
        result = node.outputs[0]
        name = f"{result.name}_{suffix}"
        return self._editor.insert(node, kind, inputs, name, like=result, dtype=_FLOAT)


def _get_result_name(node: ir.Node) -> str:
    return str(node.outputs[0].name) if node.outputs else ""
