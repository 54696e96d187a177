# SPDX-License-Identifier: Apache-2.0
"""Keep the names of results apart from those that are given."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.names import names_of


class SeparateNames(InPlacePass):
    """No result is called like an input or a stored tensor.

    An exporter numbers its own names, val_0, and a module may have a buffer of that name.
    """

    def call(self, model: ir.Model) -> PassResult:
        graphs = list(model.graphs())
        given = {
            value.name
            for graph in graphs
            for value in (*graph.inputs, *graph.initializers.values())
        }
        unique = names_of(model)
        modified = False
        for node in model.graph.all_nodes():
            for value in node.outputs:
                if value.name is not None and value.name in given:
                    value.name = unique(value.name)
                    modified = True
        return PassResult(model, modified)
