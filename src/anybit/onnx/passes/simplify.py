# SPDX-License-Identifier: Apache-2.0
"""Repeated folding and cleanup."""

from onnx_ir import Model
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.passes.drop_identities import DropIdentities
from anybit.onnx.passes.fold_constants import FoldConstants
from anybit.onnx.passes.infer_shapes import InferShapes
from anybit.onnx.passes.split_sequences import SplitSequences

# Each round folds constants that depend on shapes of the last one; models need one or two.
_MOST_ROUNDS = 8


class Simplify(InPlacePass):
    """Shape inference, constant folding, Split of sequences and cleanup, until stable.

    The model is normalized. Rounds end when the numbers of nodes and constants do not change.
    """

    def __init__(self, fold: FoldConstants, *further: InPlacePass) -> None:
        self._passes = (*further, fold, SplitSequences(), DropIdentities(), RemoveUnusedNodesPass())

    def call(self, model: Model) -> PassResult:
        first = before = _measure_size(model)
        for _ in range(_MOST_ROUNDS):
            InferShapes()(model)
            for step in self._passes:
                step(model)
            if before == (before := _measure_size(model)):
                break
        return PassResult(model, first != before)


def _measure_size(model: Model) -> tuple[int, int]:
    return len(model.graph.initializers), model.graph.num_nodes()
