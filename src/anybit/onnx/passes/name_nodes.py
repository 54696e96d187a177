# SPDX-License-Identifier: Apache-2.0
"""A name of its own for every node."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult


class NameNodes(InPlacePass):
    """Nodes without a name are called after their operator; of equal names the later get a number.

    ONNX Runtime refuses models in which two nodes have one name. Values are not touched: the
    format itself asks for unique names there.
    """

    def call(self, model: ir.Model) -> PassResult:
        nodes = list(model.graph.all_nodes())
        # Names that are there already are not given to others.
        taken = {node.name for node in nodes if node.name}
        seen: set[str] = set()
        modified = False
        for node in nodes:
            if not node.name or node.name in seen:
                node.name = _free(node.name or node.op_type, taken)
                modified = True
            seen.add(node.name)
        return PassResult(model, modified)


def _free(wish: str, taken: set[str]) -> str:
    """The name with the first number that nobody has."""
    number = 0
    while f"{wish}_{number}" in taken:
        number += 1
    taken.add(f"{wish}_{number}")
    return f"{wish}_{number}"
