# SPDX-License-Identifier: Apache-2.0
"""Write quantizers as QuantizeLinear and DequantizeLinear."""

from dataclasses import replace
from typing import TypeAlias

import onnx_ir as ir
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.forms import Form
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import label_of
from anybit.onnx.operators.registry import operators_in
from anybit.onnx.qdq.dequantizers import DequantizerPlan, plan_dequantizer, write_dequantizer
from anybit.onnx.qdq.plan import Options, Plan, plan
from anybit.onnx.qdq.writer import QdqWriter
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.report import Report, Step
from anybit.ops import Operator

_Planned: TypeAlias = tuple[ir.Node, Operator, Plan | DequantizerPlan | Inexpressible]


class ToQdq(InPlacePass):
    """Replace quantizers by QuantizeLinear and DequantizeLinear with the narrowest native type.

    The model is normalized and its standard operators are folded, so that scales are constants.

    * Activations: an operator that rounds to nearest, without zero-point and with one scale or one
      per channel, becomes QuantizeLinear -> DequantizeLinear. A range that is narrower than any
      type gets a Clip of 8-bit codes between the two, or Max and Min of x before them where
      runtimes have no such Clip or do not saturate. An operator that gives signs becomes
      GreaterOrEqual and Where before them. x of float16 and bfloat16 is cast to float32 and the
      result back.
    * Constants: codes in the narrowest type that holds the range, and DequantizeLinear; any
      rounding and any integral zero-point of the type. Wide ones (biases) are int32. The codes
      are checked to stand for the same values. A range that is narrower than the type is noted in
      the metadata of the node. With scales that are the same along one axis only, of a tensor that
      is cut into blocks, the node has a block_size, and reads codes in the shape that a Reshape,
      and a Slice, behind the blocks give. Formats of at most 8 bits that are not types are stored
      as the places of values in a table, in 4 or 8 bits; the scale is multiplied behind it, and
      many scales of few values are stored so, too.
    * Dequantizers: a DequantizeLinear with the same scales and zero-points, constant or computed.
      It has zero-points of the type of the codes only.
    * Style "qcdq": 8-bit types only (int32 for wide constants), and a Clip between the two, also
      behind constants, wherever the range is narrower than the type.

    The values stay what they were, but for the sign of a zero and for inputs for which ONNX
    defines nothing: NaN has no integer code, and where x / scale is infinite the float8 types
    saturate, while the operator gives NaN. In bipolar nodes NaN gives -scale, as it must.

    With `constants_only`, activations keep their quantizers.

    Nodes that cannot be had so stay, and the report says why (`left`). With `allow_approximate`
    an integral zero-point of an activation is one that QuantizeLinear adds after rounding, and
    the step says so. Opset imports and IR version are not changed: types and operators that the
    model's opset or `opset_limit` lacks are not used.

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

    def needed_opset(self, model: ir.Model, otherwise: int = 1) -> int:
        """The lowest opset of all that would be written, if the model had the newest allowed.

        1 if nothing would; `otherwise` is what the activations need that would be left. Weights are
        not read. A model that has such an opset already is not planned again.

        Raises:
            ModelError: A parameter that an operator refuses.
        """
        needed, opset = 1, model.graph.opset_imports.get("", 1)
        self._plans = self._planned(model, self._options)
        for node, _, planned in self._plans:
            x = node.inputs[0]
            if not isinstance(planned, Inexpressible):
                needed = max(needed, planned.opset)
            elif x is None or not is_constant(x):
                needed = max(needed, otherwise)
        self._plans_are_of = (model, opset) if needed <= opset else None
        return needed

    def _planned(self, model: ir.Model, options: Options) -> list[_Planned]:
        """How each quantizer is written, or why it stays. All are planned before one is written."""
        found: list[_Planned] = []
        for node, operator in operators_in(model):
            planned: Plan | DequantizerPlan | Inexpressible
            try:
                if operator.is_dequantizer:
                    planned = plan_dequantizer(node, options.opset)
                else:
                    planned = plan(node, operator, options)
            except Inexpressible as reason:
                planned = reason
            x = node.inputs[0]
            if not self._constants_only or (x is not None and is_constant(x)):
                found.append((node, operator, planned))
        return found

    def call(self, model: ir.Model) -> Report:
        wanted, present = self._options, model.graph.opset_imports.get("", 1)
        if self._plans_are_of != (model, present):
            self._plans = self._planned(model, replace(wanted, opset=min(wanted.opset, present)))
        self._plans_are_of = None
        editor = Editor(model)
        writer = QdqWriter(editor)
        steps, left = [], {}
        for node, operator, planned in self._plans:
            try:
                if isinstance(planned, Inexpressible):
                    raise planned
                step = _step(node, operator, planned)
                if isinstance(planned, DequantizerPlan):
                    write_dequantizer(editor, node, planned)
                else:
                    writer.write(node, operator, planned)
            except Inexpressible as reason:
                left[str(node.outputs[0].name)] = str(reason)
                continue
            steps.append(step)
        modified = bool(steps) | RemoveUnusedNodesPass()(model).modified
        return Report(model, modified, tuple(steps), left, pairs=tuple(writer.pairs))


def _step(node: ir.Node, operator: Operator, planned: Plan | DequantizerPlan) -> Step:
    if isinstance(planned, DequantizerPlan):
        became = f"DequantizeLinear {planned.type.name}"
        return Step(label_of(node), operator.onnx_name, became)
    kind = "DequantizeLinear" if planned.constant else "QuantizeLinear and DequantizeLinear"
    return Step(
        label_of(node),
        operator.onnx_name,
        f"{kind} {planned.type.name}",
        planned.remark,
        exact=not planned.approximation,
    )
