# SPDX-License-Identifier: Apache-2.0
"""Conversion of quantizers to QuantizeLinear and DequantizeLinear."""

from dataclasses import replace
from typing import TypeAlias

import onnx_ir as ir
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.forms import Form
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import get_label
from anybit.onnx.operators.registry import find_operators
from anybit.onnx.qdq.dequantizers import DequantizerPlan, plan_dequantizer, write_dequantizer
from anybit.onnx.qdq.plan import Options, QdqPlan, plan_quantizer
from anybit.onnx.qdq.writer import QdqWriter
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.report import ConversionReport, ConversionStep
from anybit.ops import Operator

_Planned: TypeAlias = tuple[ir.Node, Operator, QdqPlan | DequantizerPlan | Inexpressible]


class ToQdq(InPlacePass):
    """Replacement of quantizers by the narrowest QuantizeLinear-DequantizeLinear pair.

    The model is normalized and its standard operators are folded, so scales are constants.

    * Activations: an operator that rounds to nearest, without zero-point and with one scale or one
      per channel, becomes QuantizeLinear -> DequantizeLinear. A range narrower than any type gets a
      Clip of 8-bit codes in between. If runtimes have no such Clip or do not saturate, Max and Min
      limit x instead. Sign operators become GreaterOrEqual and Where before the pair. float16
      and bfloat16 are cast to float32 and back.
    * Constants: codes in the narrowest type that holds the range, and DequantizeLinear; any
      rounding and any integral zero-point of the type. Wide ones (biases) are int32. The codes are
      verified to decode to the same values. A range narrower than the type is noted in the metadata
      of the node. A node with scales per block has a block_size; its codes have the shape after
      the Reshape (and Slice) that follows the blocks. Formats of at most 8 bits without a native
      type are stored as indices into a table, in 4 or 8 bits, and multiplied by the scale. Many
      scales with few distinct values are stored in the same way.
    * Dequantizers: a DequantizeLinear with the same scales and zero-points, constant or computed.
      Zero-points must have the type of the codes.
    * Style "qcdq": 8-bit types only (int32 for wide constants), and a Clip between the two, also
      after constants, wherever the range is narrower than the type.

    The values are preserved, except the sign of zeros and inputs that ONNX leaves undefined: NaN
    has no integer code, and for infinite x / scale the float8 types saturate while the operator
    returns NaN. Bipolar nodes return -scale for NaN, as the operator does.

    With `constants_only`, activations keep their quantizers.

    Nodes without such a form stay, with the reason in the report (`left`). With
    `allow_approximate`, QuantizeLinear adds an integral zero-point of an activation after rounding,
    which the step reports. Opset imports and IR version are not changed: types and operators that
    the model's opset or `opset_limit` lacks are not used.

    Raises:
        ModelError: An operator refuses its constant inputs, or a tensor cannot be read.
    """

    def __init__(
        self,
        *,
        style: Form,
        opset_limit: int = 25,
        allow_approximate: bool = False,
        constants_only: bool = False,
    ) -> None:
        self._options = Options(style, opset_limit, allow_approximate)
        self._constants_only = constants_only
        self._plans: list[_Planned] = []
        self._plans_are_of: tuple[ir.Model, int] | None = None

    def find_needed_opset(self, model: ir.Model, otherwise: int = 1) -> int:
        """Return the lowest opset for all nodes that would be written.

        The limit is the newest allowed opset. 1 if there are none; `otherwise` is the opset for the
        activations that would be left. Weights are not read. A model that has such an opset already
        is not planned again.

        Raises:
            ModelError: An operator refuses a parameter.
        """
        needed, opset = 1, model.graph.opset_imports.get("", 1)
        self._plans = self._plan(model, self._options)
        for node, _, planned in self._plans:
            x = node.inputs[0]
            if not isinstance(planned, Inexpressible):
                needed = max(needed, planned.opset)
            elif x is None or not is_constant(x):
                needed = max(needed, otherwise)
        self._plans_are_of = (model, opset) if needed <= opset else None
        return needed

    def _plan(self, model: ir.Model, options: Options) -> list[_Planned]:
        """Plan how each quantizer is written, or why it stays, before any is written."""
        plans: list[_Planned] = []
        for node, operator in find_operators(model):
            planned: QdqPlan | DequantizerPlan | Inexpressible
            try:
                if operator.is_dequantizer:
                    planned = plan_dequantizer(node, options.opset)
                else:
                    planned = plan_quantizer(node, operator, options)
            except Inexpressible as reason:
                planned = reason
            x = node.inputs[0]
            if not self._constants_only or (x is not None and is_constant(x)):
                plans.append((node, operator, planned))
        return plans

    def call(self, model: ir.Model) -> ConversionReport:
        allowed, present = self._options, model.graph.opset_imports.get("", 1)
        if self._plans_are_of != (model, present):
            self._plans = self._plan(model, replace(allowed, opset=min(allowed.opset, present)))
        self._plans_are_of = None
        editor = Editor(model)
        writer = QdqWriter(editor)
        steps, left = [], {}
        for node, operator, planned in self._plans:
            try:
                if isinstance(planned, Inexpressible):
                    raise planned
                step = _make_step(node, operator, planned)
                if isinstance(planned, DequantizerPlan):
                    write_dequantizer(editor, node, planned)
                else:
                    writer.write(node, operator, planned)
            except Inexpressible as reason:
                left[str(node.outputs[0].name)] = str(reason)
                continue
            steps.append(step)
        modified = bool(steps) | RemoveUnusedNodesPass()(model).modified
        return ConversionReport(model, modified, tuple(steps), left, pairs=tuple(writer.pairs))


def _make_step(
    node: ir.Node, operator: Operator, planned: QdqPlan | DequantizerPlan
) -> ConversionStep:
    if isinstance(planned, DequantizerPlan):
        became = f"DequantizeLinear {planned.type.name}"
        return ConversionStep(get_label(node), operator.onnx_name, became)
    kind = "DequantizeLinear" if planned.constant else "QuantizeLinear and DequantizeLinear"
    return ConversionStep(
        get_label(node),
        operator.onnx_name,
        f"{kind} {planned.type.name}",
        planned.remark,
        exact=not planned.approximation,
    )
