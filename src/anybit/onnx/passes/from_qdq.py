# SPDX-License-Identifier: Apache-2.0
"""Conversion of QuantizeLinear and DequantizeLinear to quantizers."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import get_label
from anybit.onnx.passes.infer_shapes import InferShapes
from anybit.onnx.qdq.codes.rewrite import rewrite_code_operators
from anybit.onnx.qdq.lifting import Lifter
from anybit.onnx.qdq.nbits import LiftedNBits, lift_nbits
from anybit.onnx.qdq.qlinear import explain_kept, is_integer_operator, split_operators
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.onnx.report import ConversionReport, ConversionStep


class FromQdq(InPlacePass):
    """Replacement of QuantizeLinear-DequantizeLinear pairs, and of DequantizeLinear of constants.

    The model is normalized, its standard operators folded, and types are known.

    * A pair with the same scale, zero-point, type and axis becomes a quantizer. Clips of the codes
      and data movement may lie in between. Limits of x before it that are codes times scale, as
      `ToQdq` writes them, are part of it. A zero-point only shifts the range of such a pair: uint8
      with 128 is 8 bits, signed. A range that no operator has becomes the smallest enclosing one
      and a Clip of the values.
    * Where(x >= 0, 1, -1) before a pair becomes a sign operator.
    * A DequantizeLinear of a constant becomes a quantizer of the float values; zero-point and range
      (from a Clip or the metadata of `ToQdq`) stay. The operator is run to verify the values.
    * A MatMulNBits of ONNX Runtime becomes a quantizer of its weight and a MatMul.
    * QLinearConv and QLinearMatMul become DequantizeLinear, Conv or MatMul and QuantizeLinear
      first, if float32 computes the same: all scales powers of two, sums up to 2^24.
    * These with other scales, QGemm, MatMulInteger, ConvInteger, QLinearMul, QLinearConcat,
      QLinearSigmoid, QLinearLeakyRelu and QLinearGlobalAveragePool become float nodes between
      quantizers of scale 1: the operations of ONNX Runtime's kernels. Float64 adds parts of sums
      beyond 2^24.

    Everything else stays, with a step that gives the reason: nodes without a partner, computed
    parameters, scales per block, other integer operators.

    The values are preserved, with three exceptions: the sign of zeros; NaN, whose code ONNX does
    not define; and infinite x / scale of float8 types, which saturate while the operator returns
    NaN. With `allow_approximate`, zero-points of activations become those of the operator, which
    differ at ties; QLinear operators with any scale are split; and MatMulNBits that may round its
    input becomes a MatMul that does not. The steps report it.

    Raises:
        ModelError: A node is inconsistent (an axis that x does not have, scales and zero-points
            that do not match), or a tensor cannot be read.
    """

    def __init__(self, *, allow_approximate: bool = False) -> None:
        self._allow_approximate = allow_approximate

    def call(self, model: ir.Model) -> ConversionReport:
        editor = Editor(model)
        steps = split_operators(model, editor, allow_approximate=False)
        rewrite = rewrite_code_operators(
            model, InferShapes(), allow_approximate=self._allow_approximate
        )
        steps += rewrite.steps
        lifted = lift_nbits(model, editor, allow_approximate=self._allow_approximate)
        steps += lifted.steps
        lifter = Lifter(model, editor, allow_approximate=self._allow_approximate)
        reasons: dict[ir.Node, str] = {}
        for node in list(model.graph.all_nodes()):
            if is_dequantize(node):
                try:
                    steps.append(lifter.lift(node))
                except Inexpressible as reason:
                    reasons[node] = str(reason)
        modified = bool(steps) | RemoveUnusedNodesPass()(model).modified
        kept = _report_kept(model, reasons | rewrite.kept, lifted)
        return ConversionReport(model, modified, (*steps, *kept))


def _report_kept(
    model: ir.Model, reasons: dict[ir.Node, str], lifted: LiftedNBits
) -> list[ConversionStep]:
    steps = []
    for node in model.graph.all_nodes():
        reason = reasons.get(node)
        if reason is None and is_quantize(node):
            readers = {reader.op_type for reader, _ in node.outputs[0].uses()}
            reason = f"its codes are read by {', '.join(sorted(readers)) or 'nothing in the model'}"
        elif reason is None and is_integer_operator(node):
            reason = lifted.reason(node) or explain_kept(node)
        if reason is not None:
            steps.append(ConversionStep(get_label(node), node.op_type, "kept", reason))
    return steps
