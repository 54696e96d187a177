# SPDX-License-Identifier: Apache-2.0
"""A name of its own for every node."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.names import name_nodes


class NameNodes(InPlacePass):
    """Nodes without a name are called after their operator; of equal names the later get a number.

    ONNX Runtime refuses models in which two nodes have one name. Values are not touched: the
    format itself asks for unique names there.
    """

    def call(self, model: ir.Model) -> PassResult:
        return PassResult(model, name_nodes(model, unnamed=True))
