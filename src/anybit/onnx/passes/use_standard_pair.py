# SPDX-License-Identifier: Apache-2.0
"""Replacement of ONNX Runtime's QuantizeLinear and DequantizeLinear by ONNX's, in a newer opset."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.errors import ModelError
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.passes.lift_opset import LiftOpset
from anybit.onnx.quantizers.contributed import find_standard_opset, is_contributed, standardize


class UseStandardPair(InPlacePass):
    """Replacement of QuantizeLinear and DequantizeLinear of ONNX Runtime's domain by ONNX's.

    ONNX Runtime's tools write them for 16- and 4-bit types before opset 21. The model is
    normalized, and types are known. Nodes stay if their types need an opset beyond the limit; all
    stay in a model that cannot be lifted.
    """

    def __init__(self, opset_limit: int) -> None:
        self._limit = opset_limit

    def call(self, model: ir.Model) -> PassResult:
        pairs = [node for node in iter_nodes(model.graph) if is_contributed(node)]
        opsets = [opset for opset in map(find_standard_opset, pairs) if opset is not None]
        needed = max((opset for opset in opsets if opset <= self._limit), default=1)
        if needed > model.graph.opset_imports.get("", 0):
            try:  # on a copy first: a converter that fails leaves a partial result
                LiftOpset(needed)(model.clone())
            except ModelError:
                return PassResult(model, False)
            LiftOpset(needed)(model)
        present = model.graph.opset_imports.get("", 0)
        changed = [standardize(node, present) for node in iter_nodes(model.graph)]
        return PassResult(model, any(changed))
