# SPDX-License-Identifier: Apache-2.0
"""Names of layers after their weights: `backbone.3.conv2`, not `node_Conv_497`."""

import re

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.names import EXPORTED_NAME_KEY, NameGenerator
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.walk import iter_nodes

# Suffixes of weights in PyTorch and Keras; exporters invent other names.
_WEIGHT = re.compile(r"(.+)(?:\.weight|[/_.]kernel(?::0)?)")
_FARTHEST = 8


class NameLayers(InPlacePass):
    """Renaming of Conv, ConvTranspose, Gemm and MatMul to the module of their weight.

    A weight `NAME.weight` or `NAME/kernel`, possibly followed by quantizers or data movement,
    yields NAME. The previous name is kept in the node's metadata. The pass is idempotent.
    """

    def call(self, model: ir.Model) -> PassResult:
        nodes = list(iter_nodes(model.graph))
        taken = NameGenerator(node.name for node in nodes)
        modified = False
        for node in nodes:
            module = _find_module(node)
            if module is None or EXPORTED_NAME_KEY in node.metadata_props or node.name == module:
                continue
            node.metadata_props[EXPORTED_NAME_KEY] = node.name or ""
            node.name = taken(module)
            modified = True
        return PassResult(model, modified)


def _find_module(node: ir.Node) -> str | None:
    """Return the name of the module whose weight a node multiplies; None if there is none."""
    if not has_trait(node, OpTrait.MATMUL):
        return None
    for value in node.inputs[1::-1]:
        source = _find_constant(value)
        match = None if source is None else _WEIGHT.fullmatch(source.name or "")
        if match is not None:
            return match[1]
    return None


def _find_constant(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer that a value is computed from by nodes of one computed input each."""
    for _ in range(_FARTHEST):
        node = None if value is None else value.producer()
        if value is None or node is None:
            return value if value is not None and value.is_initializer() else None
        value = node.inputs[0] if node.inputs else None
    return None
