# SPDX-License-Identifier: Apache-2.0
"""A name of its own for every node."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.names import Names


class NameNodes(InPlacePass):
    """Nodes without a name are called after their operator; of equal names the later get a number.

    ONNX Runtime refuses models in which two nodes have one name. Values are not touched: the
    format itself asks for unique names there.
    """

    def call(self, model: ir.Model) -> PassResult:
        nodes = list(model.graph.all_nodes())
        # Names that are there already are not given to others.
        unique = Names(node.name for node in nodes)
        seen: set[str] = set()
        modified = False
        for node in nodes:
            if not node.name or node.name in seen:
                node.name = unique(node.name or node.op_type)
                modified = True
            seen.add(node.name)
        return PassResult(model, modified)
