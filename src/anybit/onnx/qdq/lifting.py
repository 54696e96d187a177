# SPDX-License-Identifier: Apache-2.0
"""Replacement of DequantizeLinear nodes by quantizers."""

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import get_label, get_output_name
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_input, require_producer
from anybit.onnx.qdq.before_quantize import ClampLimits, find_limits, find_sign_source
from anybit.onnx.qdq.lift_codes import (
    LiftedQuantizer,
    clip_codes,
    compose_quantizer,
    lift_constant,
    make_exact_quantizer,
    make_float_quantizer,
    make_zeropt_quantizer,
)
from anybit.onnx.quantizers.grids import (
    GridMatch,
    Inexpressible,
    list_arguments,
    make_attributes,
    match_grid,
)
from anybit.onnx.quantizers.metadata import FENCE_KEY
from anybit.onnx.quantizers.nodes import Scaling, get_dtype, read_scaling
from anybit.onnx.quantizers.trace import Trace, Traces
from anybit.onnx.report import ConversionStep
from anybit.ops.grids import Coding, IntegerGrid

_FLOAT = ir.DataType.FLOAT

# The first opset whose Clip has bounds as inputs.
_CLIP_OPSET = 11


class Lifter:
    """Conversion of the DequantizeLinear nodes of one model."""

    def __init__(self, model: ir.Model, editor: Editor, *, allow_approximate: bool) -> None:
        self._opset = model.graph.opset_imports.get("", 1)
        self._editor = editor
        self._allow_approximate = allow_approximate
        self._quantized: dict[object, ir.Value] = {}
        self._floats: dict[ir.Value, dict[object, ir.Value]] = {}
        self._traces = Traces()
        self._moved: dict[tuple[ir.Value, ir.Node, ir.Graph | ir.Function | None], ir.Value] = {}

    def lift(self, node: ir.Node) -> ConversionStep:
        """Replace a DequantizeLinear by a quantizer.

        Raises:
            Inexpressible: The node has to stay.
            ModelError: The node is inconsistent.
        """
        codes = node.inputs[0] if node.inputs else None
        scaling = read_scaling(node, get_dtype(codes) if codes is not None else None)
        codes = require_input(node)
        trace = self._traces.trace(codes)
        if trace.last is not None and scaling.layout.axis is not None:
            # Each kind of remark once: a file may have thousands.
            kinds = ", ".join(reversed(dict.fromkeys(move.op_type for move in trace.moves)))
            raise Inexpressible(f"{kinds} before it may move its channels")
        lowest, highest = trace.lowest, trace.highest
        name, operator = get_label(node), node.op_type
        if is_constant(trace.source):
            quantized, note = self._lift_constant(node, scaling, trace.source, lowest, highest)
            difference = ""
        else:
            quantized, quantizer = self._lift_activation(
                node, scaling, trace.source, lowest, highest
            )
            note = difference = quantizer.difference
        self._drop_fence(node, scaling)
        action = self._place_moves(node, trace, quantized)
        return ConversionStep(name, operator, action, note, exact=not difference)

    def _drop_fence(self, node: ir.Node, scaling: Scaling) -> None:
        """Remove a Min directly after the node that no value of its type reaches."""
        result = node.outputs[0]
        uses = list(result.uses())
        fence = uses[0].node if len(uses) == 1 and not result.is_graph_output() else None
        if not is_onnx_op(fence, "Min") or len(fence.inputs) != 2:
            return
        bound = next((value for value in fence.inputs if value is not result), None)
        if bound is None or not is_constant(bound) or fence.graph is not node.graph:
            return
        array = read_array(bound)
        if array.shape == () and array >= scaling.type.bound_values(scaling.layout):
            # The Min may be the limit of the next quantizer, which is not named after this node.
            limit = FENCE_KEY not in fence.metadata_props and not fence.outputs[0].is_graph_output()
            own = result.name
            self._editor.replace(fence, result)
            if limit:
                result.name = own

    def _place_moves(self, node: ir.Node, trace: Trace, quantized: ir.Value) -> str:
        """Write the data movement, now of values; return the operator that made the values."""
        producer = require_producer(quantized)
        action = producer.op_type
        result, shared = quantized, bool(quantized.uses()) or producer.graph is not node.graph
        missing: list[ir.Node] = []
        for move in trace.moves:
            # Chained readers of codes share the preceding nodes.
            written = self._moved.get((quantized, move, node.graph))
            if written is not None:
                result, shared = written, not missing
                break
            missing.append(move)
        for move in reversed(missing):
            result, shared = self._move_value(node, move, result), False
            self._moved[quantized, move, node.graph] = result
        self._editor.replace(node, result, shared=shared or result.is_graph_output())
        return action

    def _move_value(self, node: ir.Node, move: ir.Node, value: ir.Value) -> ir.Value:
        y, inputs = move.outputs[0], [value, *list(move.inputs)[1:]]
        return self._editor.insert_copy(
            node, move, inputs, like=y, dtype=_FLOAT, name=f"{y.name}_values"
        )

    def _lift_constant(
        self, node: ir.Node, scaling: Scaling, source: ir.Value, lowest: float, highest: float
    ) -> tuple[ir.Value, str]:
        codes, span = read_array(source), None
        if scaling.type.format is None:
            span = _clip_span(scaling, lowest, highest)
            codes = clip_codes(codes, span, scaling.type)
        quantizer, values, note = lift_constant(scaling, codes, span, dict(node.metadata_props))
        key = (scaling.scale.shape, scaling.scale.tobytes(), scaling.zeropt.tobytes(), span)
        floats = self._floats.setdefault(source, {})
        if key not in floats:
            floats[key] = self._editor.add_constant(f"{source.name}_values", ir.tensor(values))
        result = insert_quantizer(
            self._editor, node, quantizer, floats[key], get_output_name(node), like=source
        )
        if len(source.uses()) == 1:
            del self._floats[source]  # otherwise the codes stay in memory
        return result, note

    def _lift_activation(
        self, node: ir.Node, scaling: Scaling, source: ir.Value, lowest: float, highest: float
    ) -> tuple[ir.Value, LiftedQuantizer]:
        quantize = require_producer(source)
        x, quantizer = self._choose_quantizer(quantize, scaling, lowest, highest)
        call = quantizer.match.call
        key = (
            quantize,
            x,
            quantizer.match.operator.name,
            *((name, array.shape, array.tobytes()) for name, array in call.parameters.items()),
            *call.attributes.items(),
            *(part.tobytes() for part in quantizer.clip or ()),
        )
        if key not in self._quantized:
            self._quantized[key] = self._write(quantize, x, quantizer, get_output_name(node))
        return self._quantized[key], quantizer

    def _choose_quantizer(
        self, quantize: ir.Node, scaling: Scaling, lowest: float, highest: float
    ) -> tuple[ir.Value, LiftedQuantizer]:
        """Return the quantized value, and its quantizer."""
        first = read_scaling(quantize)
        x = find_sign_source(quantize, first)
        if x is not None and lowest <= -1 and highest >= 1 and first.type == scaling.type:
            if np.any(scaling.zeropt):
                raise Inexpressible("the zero-points of the two nodes differ")
            quantizer = match_grid(
                IntegerGrid(scaling.scale, scaling.zeropt, range(-1, 2, 2), Coding.SIGN)
            )
            if quantizer is not None:
                return x, LiftedQuantizer(quantizer)
        if not first.equals(scaling):
            raise Inexpressible("scale, zero-point, type or axis of the two nodes differ")
        x = require_input(quantize)
        if get_dtype(x) != _FLOAT:
            named = getattr(get_dtype(x), "name", "unknown").lower()
            raise Inexpressible(f"x is {named}, not float32")
        if scaling.type.format is not None:
            if get_attribute(quantize, "saturate", 1) != 1:
                raise Inexpressible("it does not saturate")
            return x, make_float_quantizer(scaling)
        return self._quantize_integer(x, scaling, lowest, highest)

    def _quantize_integer(
        self, x: ir.Value, scaling: Scaling, lowest: float, highest: float
    ) -> tuple[ir.Value, LiftedQuantizer]:
        zeropt = scaling.layout.zeropt.astype(np.float64)
        low, high = _clip_span(scaling, lowest, highest)
        starts = [ClampLimits(x, low - zeropt, high - zeropt)]
        limited = find_limits(x, scaling)
        if limited is not None:
            both = (
                np.maximum(starts[0].lowest, limited.lowest),
                np.minimum(starts[0].highest, limited.highest),
            )
            if np.all(both[0] <= both[1]):
                starts.insert(0, ClampLimits(limited.x, *both))
        for start in starts:
            quantizer = make_exact_quantizer(scaling, start.lowest, start.highest)
            if quantizer is not None:
                return start.x, quantizer
        for start in starts:
            quantizer = make_zeropt_quantizer(scaling, start.lowest, start.highest)
            if quantizer is None:
                continue
            if self._allow_approximate:
                return start.x, quantizer
        return x, compose_quantizer(scaling, starts[-1].lowest, starts[-1].highest)

    def _write(
        self, quantize: ir.Node, x: ir.Value, quantizer: LiftedQuantizer, name: str
    ) -> ir.Value:
        result = insert_quantizer(self._editor, quantize, quantizer.match, x, name, like=x)
        if quantizer.clip is None:
            return result
        bounds = [
            self._editor.share_parameter(name, role, array, _FLOAT)
            for role, array in zip(("lowest", "highest"), quantizer.clip, strict=True)
        ]
        if self._opset >= _CLIP_OPSET and all(array.ndim == 0 for array in quantizer.clip):
            return self._editor.insert(
                quantize, "Clip", [result, *bounds], f"{name}_clipped", like=x, dtype=_FLOAT
            )
        for kind, bound in zip(("Max", "Min"), bounds, strict=True):
            result = self._editor.insert(
                quantize, kind, [result, bound], f"{name}_clipped", like=x, dtype=_FLOAT
            )
        return result


def insert_quantizer(
    editor: Editor, before: ir.Node, quantizer: GridMatch, x: ir.Value, name: str, *, like: ir.Value
) -> ir.Value:
    """Insert a node of this package; return its output."""
    names = [declared.name for declared in quantizer.operator.inputs[1:]]
    parameters = [
        None if array is None else editor.share_parameter(name, role, array, _FLOAT)
        for role, array in zip(names, list_arguments(quantizer), strict=True)
    ]
    return editor.insert(
        before,
        quantizer.operator.onnx_name,
        [x, *parameters],
        f"{name}_quantized",
        like=like,
        dtype=_FLOAT,
        attributes=make_attributes(quantizer),
        domain=quantizer.operator.onnx_domain,
    )


def _clip_span(scaling: Scaling, lowest: float, highest: float) -> tuple[int, int]:
    """Return the codes of the type within the bounds of a Clip."""
    low, high = max(lowest, scaling.type.lowest), min(highest, scaling.type.highest)
    if low > high:
        raise Inexpressible("its Clip leaves no code")
    return int(low), int(high)
