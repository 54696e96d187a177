# SPDX-License-Identifier: Apache-2.0
"""Fold, and fold again what that made known."""

from onnx_ir import Model
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.passes.drop_identities import DropIdentities
from anybit.onnx.passes.fold_constants import FoldConstants
from anybit.onnx.passes.infer_shapes import InferShapes

# Each round folds what the shapes of the last one made constant; models need one or two.
_MOST_ROUNDS = 8


class Simplify(InPlacePass):
    """Shapes inferred, constants folded, no identity and no dead node. The model is normalized.

    `further` passes run in every round behind the inference. Rounds end when they change neither
    the number of nodes nor that of constants.
    """

    def __init__(self, fold: FoldConstants, *further: InPlacePass) -> None:
        self._passes = (*further, fold, DropIdentities(), RemoveUnusedNodesPass())

    def call(self, model: Model) -> PassResult:
        first = before = _size(model)
        for _ in range(_MOST_ROUNDS):
            InferShapes()(model)
            for each in self._passes:
                each(model)
            if before == (before := _size(model)):
                break
        return PassResult(model, first != before)


def _size(model: Model) -> tuple[int, int]:
    return len(model.graph.initializers), model.graph.num_nodes()
