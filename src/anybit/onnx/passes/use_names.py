# SPDX-License-Identifier: Apache-2.0
"""Other programs' names of this package's operators."""

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.operators.registry import find_operator


class UseNames(InPlacePass):
    """Renaming of operators to a legacy name in `names`, unless their own name is in it.

    The model is normalized. `Normalize` is the inverse.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def call(self, model: ir.Model) -> PassResult:
        modified = False
        for node in model.graph.all_nodes():
            operator = find_operator(node)
            if operator is None or operator.onnx_name in self._names:
                continue
            for alias in operator.onnx_aliases:
                if alias in self._names:
                    node.op_type = alias
                    modified = True
                    break
        return PassResult(model, modified)
