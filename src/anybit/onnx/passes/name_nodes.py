# SPDX-License-Identifier: Apache-2.0
"""Unique names of nodes."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.names import name_nodes


class NameNodes(InPlacePass):
    """Naming of unnamed nodes after their operator, and numbering of duplicates.

    ONNX Runtime refuses duplicate names of nodes. Values are not renamed: the format itself
    requires unique names.
    """

    def call(self, model: ir.Model) -> PassResult:
        return PassResult(model, name_nodes(model, unnamed=True))
