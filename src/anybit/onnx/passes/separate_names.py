# SPDX-License-Identifier: Apache-2.0
"""Separate names for outputs, inputs and initializers."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.names import make_name_generator


class SeparateNames(InPlacePass):
    """Renaming of outputs of nodes that have the name of an input or a stored tensor.

    Exporters number outputs, such as val_0, and a module may have a buffer of that name.
    """

    def call(self, model: ir.Model) -> PassResult:
        graphs = list(model.graphs())
        reserved = {
            value.name
            for graph in graphs
            for value in (*graph.inputs, *graph.initializers.values())
        }
        unique = make_name_generator(model)
        modified = False
        for node in model.graph.all_nodes():
            for value in node.outputs:
                if value.name is not None and value.name in reserved:
                    value.name = unique(value.name)
                    modified = True
        return PassResult(model, modified)
