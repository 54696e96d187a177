# SPDX-License-Identifier: Apache-2.0
"""Take out what says how a model was made."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult


class DropMetadata(InPlacePass):
    """No metadata and no comments: exporters write paths and lines of source into them."""

    def call(self, model: ir.Model) -> PassResult:
        modified = _drop(model)
        for graph in model.graphs():
            modified |= _drop(graph)
            for value in (*graph.inputs, *graph.initializers.values()):
                modified |= _drop(value)
            for node in graph:
                modified |= _drop(node)
                for value in node.outputs:
                    modified |= _drop(value)
        return PassResult(model, modified)


def _drop(part: ir.Model | ir.Graph | ir.Node | ir.Value) -> bool:
    found = bool(part.metadata_props or part.doc_string)
    part.metadata_props.clear()
    part.doc_string = None
    return found
