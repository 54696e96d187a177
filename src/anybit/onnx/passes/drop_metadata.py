# SPDX-License-Identifier: Apache-2.0
"""Removal of metadata about a model's origin."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.walk import iter_values


class DropMetadata(InPlacePass):
    """Removal of metadata and comments: exporters write paths and source lines into them."""

    def call(self, model: ir.Model) -> PassResult:
        modified = _drop(model)
        for graph in model.graphs():
            modified |= _drop(graph)
            for part in (*iter_values(graph), *graph):
                modified |= _drop(part)
        return PassResult(model, modified)


def _drop(part: ir.Model | ir.Graph | ir.Node | ir.Value) -> bool:
    has_metadata = bool(part.metadata_props or part.doc_string)
    part.metadata_props.clear()
    part.doc_string = None
    return has_metadata
