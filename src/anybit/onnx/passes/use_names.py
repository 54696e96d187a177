# SPDX-License-Identifier: Apache-2.0
"""Call our operators what another program calls them."""

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.operators.registry import operator_of


class UseNames(InPlacePass):
    """Give operators the legacy name that is among `names`, where their own name is not.

    The model is normalized. `Normalize` takes the names back.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def call(self, model: ir.Model) -> PassResult:
        modified = False
        for node in model.graph.all_nodes():
            operator = operator_of(node)
            if operator is None or operator.onnx_name in self._names:
                continue
            for alias in operator.onnx_aliases:
                if alias in self._names:
                    node.op_type = alias
                    modified = True
                    break
        return PassResult(model, modified)
