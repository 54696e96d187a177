# SPDX-License-Identifier: Apache-2.0
"""Replacement of operators on codes by float nodes between quantizers, for `convert`.

Codes less their zero-points are float32 integers, those of a DequantizeLinear with scale 1. The
sums, products and roundings of ONNX Runtime's kernels are repeated on these.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.errors import ModelError
from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.require import require_input
from anybit.onnx.qdq.codes.emitter import CODES, ONE, CodeScaling, Emitted, Emitter, FloatCopies
from anybit.onnx.qdq.codes.moves import find_zeropts
from anybit.onnx.qdq.codes.sums import LARGEST_FLOAT_SUM
from anybit.onnx.qdq.codes.table import Emit, find_emitter, is_liftable
from anybit.onnx.qdq.qlinear import KEPT_REASON, SATURATES, explain_kept, split_operators
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import get_dtype, is_dequantize, is_quantize
from anybit.onnx.quantizers.trace import Traces
from anybit.onnx.report import ConversionStep

_COMPILE = "`anybit compile` takes the file as it is"
_INEXACT = {
    "QLinearAdd": "its codes depend on the CPU: a fused multiplication and addition with AVX2",
    "QLinearAveragePool": "its sums of floats have the order of the runtime's kernel",
    "QLinearSoftmax": "it divides integer sums of a table of exponentials",
}
_TRACED = OpTrait.DATA_MOVEMENT | OpTrait.SELECTION
_FLOAT = ir.DataType.FLOAT


@dataclass(eq=False)
class CodeRewrite:
    """The replaced operators on codes.

    Attributes:
        steps: One per replaced operator.
        kept: Why others stay.
    """

    steps: list[ConversionStep] = field(default_factory=list)
    kept: dict[ir.Node, str] = field(default_factory=dict)


def rewrite_code_operators(
    model: ir.Model, infer_shapes: InPlacePass, *, allow_approximate: bool
) -> CodeRewrite:
    """Replace operators on codes whose codes float32 computes, in place.

    Args:
        model: The model; its types are known.
        infer_shapes: The pass that infers them.
        allow_approximate: Also split QLinearConv and QLinearMatMul with other codes.
    """
    result, editor = CodeRewrite(), Editor(model)
    if any(map(is_liftable, model.graph)):
        infer_shapes(model)
    zeropts, copies = find_zeropts(model), FloatCopies(model)
    for node in list(model.graph):
        emit = find_emitter(node, zeropts)
        if emit is None or (not is_liftable(node) and has_trait(node, _TRACED)):
            continue
        emitter = Emitter(node, model, copies, infer_shapes)
        emitter.splits_sums = True
        try:
            emitted = _emit(emitter, emit)
        except (Inexpressible, ModelError) as reason:
            if explain_kept(node) == KEPT_REASON and is_liftable(node):
                result.kept[node] = str(reason)
            continue
        if is_liftable(node):
            result.steps.append(_describe(emitter, emitted))
            _fence_sums(emitter, copies)
        _replace(emitter, emitted, copies)
    if allow_approximate:
        result.steps += split_operators(model, editor, allow_approximate=True)
    RemoveUnusedNodesPass()(model)
    if result.steps:
        _Scalings(model, copies).unify()
        RemoveUnusedNodesPass()(model)
        model.graph.sort()
        infer_shapes(model)
    return result


def may_rewrite(node: ir.Node) -> bool:
    """Return whether an operator on codes has an exact form, unless its sizes prevent that."""
    floats = [value for value in node.inputs if value is not None and value.dtype == _FLOAT]
    is_exact = is_liftable(node) and node.op_type not in _INEXACT
    return is_exact and all(map(is_constant, floats))


def _emit(emitter: Emitter, emit: Emit) -> Emitted:
    """Emit the nodes of an operator.

    Raises:
        Inexpressible: They may have other codes than the operator.
    """
    reason = _INEXACT.get(emitter.node.op_type)
    if reason is not None:
        raise Inexpressible(f"{reason}; {_COMPILE}")
    with np.errstate(all="ignore"):  # quotients of scales may overflow, as in the runtime
        emitted = emit(emitter)
    if emitted.largest_sum is None:
        raise Inexpressible(
            "the number of its products is unknown: give sizes of inputs (anybit compile --shape)"
        )
    if emitted.largest_sum > LARGEST_FLOAT_SUM:
        raise Inexpressible(
            f"a sum may reach {emitted.largest_sum}, beyond 2^24, where float32 rounds; {_COMPILE}"
        )
    return emitted


def _describe(emitter: Emitter, emitted: Emitted) -> ConversionStep:
    node = emitter.node
    matmul = (one.op_type for one in emitter.chain if has_trait(one, OpTrait.MATMUL))
    kind = next(matmul, node.op_type.removeprefix("QLinear"))
    reason = SATURATES.format(node.op_type) if emitted.saturates else ""
    return ConversionStep(get_label(node), node.op_type, kind, reason)


def _fence_sums(emitter: Emitter, copies: FloatCopies) -> None:
    """Insert a Min that no sum reaches before the factor of a product.

    ONNX Runtime would multiply the weights by the factor, which rounds sums differently.
    """
    product = next((node for node in emitter.chain if has_trait(node, OpTrait.MATMUL)), None)
    sums = None if product is None else product.outputs[0]
    reader = next((use.node for use in sums.uses()), None) if sums is not None else None
    if sums is None or reader is None or reader.op_type != "Mul":
        return
    bound = copies.editor.share_constant(
        "fence", "largest_sum", np.asarray(LARGEST_FLOAT_SUM, np.float32)
    )
    name = f"{emitter.name}_min"
    fenced = copies.editor.insert(reader, "Min", [sums, bound], name, like=sums, dtype=_FLOAT)
    reader.replace_input_with(0, fenced)


def _replace(emitter: Emitter, emitted: Emitted, copies: FloatCopies) -> None:
    node, result = emitter.node, emitted.result
    moves = not is_liftable(node) or node.op_type == "QLinearConcat"
    if emitted.scaling is None and node.op_type != "QGemm":
        for cast, _ in node.outputs[0].uses():
            copies.editor.replace(cast, result, shared=True)
        parent = node.graph
        if parent is not None:
            parent.remove(node, safe=True)
    else:
        copies.editor.replace(node, result)
    if moves and emitted.scaling is not None:  # its floats are codes less the zero-point
        copies.record(result, emitted.scaling, emitter.chain[-2].outputs[0])


class _Scalings:
    """Quantizers whose codes are read with other scales and zero-points.

    Each gets scale 1; x is divided by its scale before, and its floats are shifted and multiplied
    after.
    """

    def __init__(self, model: ir.Model, copies: FloatCopies) -> None:
        self._model, self._copies = model, copies
        self._traces = Traces()

    def unify(self) -> None:
        """Give all readers of a QuantizeLinear its scale and zero-point, in place."""
        readers: dict[ir.Node, list[tuple[ir.Node, CodeScaling]]] = defaultdict(list)
        for node in self._model.graph:
            scaling = _read_scaling(node) if is_dequantize(node) else None
            source = None if scaling is None else self._find_source(node)
            if scaling is not None and source is not None:
                readers[source].append((node, scaling))
        for source, own_readers in readers.items():
            own = _read_scaling(source)
            scalings = [scaling for _, scaling in own_readers]
            if own is None or all(scaling.key() == own.key() for scaling in scalings):
                continue
            if any(scaling.scale == 1 for scaling in (own, *scalings)):
                self._unify(source, own, own_readers)

    def _find_source(self, node: ir.Node) -> ir.Node | None:
        try:
            trace = self._traces.trace(require_input(node))
        except Inexpressible:
            return None
        source = trace.source.producer()
        return source if is_quantize(source) else None

    def _unify(
        self, source: ir.Node, own: CodeScaling, readers: list[tuple[ir.Node, CodeScaling]]
    ) -> None:
        unit = CodeScaling(ONE, own.zeropt)
        if own.scale != 1:
            name = str(source.outputs[0].name)
            x = require_input(source)
            inputs = [x, self._constant(name, "scale", own.scale)]
            quotient = self._insert(source, "Div", inputs)
            codes = self._copies.convert("QuantizeLinear", quotient, unit, source, name)
            self._copies.editor.replace(source, codes)
        for node, scaling in readers:
            if scaling.key() != unit.key():
                self._rescale(node, unit, scaling)

    def _rescale(self, node: ir.Node, unit: CodeScaling, scaling: CodeScaling) -> None:
        """Let a DequantizeLinear return code - zero-point; compute its floats from these."""
        name = str(node.outputs[0].name)
        floats = self._copies.read(require_input(node), unit, node)
        offset = unit.zeropt.astype(np.float32) - scaling.zeropt.astype(np.float32)
        result = floats
        if offset != 0:
            result = self._insert(node, "Add", [result, self._constant(name, "offset", offset)])
        if scaling.scale != 1:
            constant = self._constant(name, "scale", scaling.scale)
            result = self._insert(node, "Mul", [result, constant])
        self._copies.editor.replace(node, result, shared=result is floats)

    def _insert(self, before: ir.Node, kind: str, inputs: list[ir.Value]) -> ir.Value:
        y = before.outputs[0]
        name = f"{y.name}_{kind.lower()}"
        return self._copies.editor.insert(before, kind, inputs, name, like=y, dtype=_FLOAT)

    def _constant(self, name: str, role: str, array: np.ndarray) -> ir.Value:
        return self._copies.editor.share_constant(role, f"{name}_{role}", np.asarray(array))


def _read_scaling(node: ir.Node) -> CodeScaling | None:
    """Return the constant scale and zero-point of a quantizer of 8-bit codes and float32."""
    scale, zeropt = get_input(node, 1), get_input(node, 2)
    if scale is None or zeropt is None or not is_constant(scale) or not is_constant(zeropt):
        return None
    arrays = read_array(scale), read_array(zeropt)
    floats = require_input(node) if is_quantize(node) else node.outputs[0]
    usual = arrays[0].dtype == np.float32 and arrays[1].dtype in CODES
    if not usual or any(array.size != 1 for array in arrays) or get_dtype(floats) != _FLOAT:
        return None
    if any(get_attribute(node, name, 0) for name in ("block_size", "output_dtype", "precision")):
        return None
    scale_array = arrays[0].reshape(())
    usable = bool(np.isfinite(scale_array)) and scale_array > 0
    return CodeScaling(scale_array, arrays[1].reshape(())) if usable else None
