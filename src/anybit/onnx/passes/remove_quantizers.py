# SPDX-License-Identifier: Apache-2.0
"""Removal of quantizers, which leaves the float network."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.editor import is_read, replace_value
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize


class RemoveQuantizers(InPlacePass):
    """Removal of quantizers of floats: operators of this package, and QuantizeLinear pairs.

    Constants keep their values. Operators that return or read codes stay, and so do pairs with a
    node in between.
    """

    def call(self, model: ir.Model) -> PassResult:
        removed = [node for node in iter_nodes(model.graph) if _bypass(node)]
        return PassResult(model, bool(removed))


def has_quantizers(model: ir.Model) -> bool:
    """Return whether a model has quantizers of this package or ONNX, or a MultiThreshold."""
    return any(
        find_operator(node) is not None
        or is_quantize(node)
        or is_dequantize(node)
        or is_multi_threshold(node)
        for node in iter_nodes(model.graph)
    )


def _bypass(node: ir.Node) -> bool:
    x = _find_source(node)
    if x is None or node.graph is None:
        return False
    y = node.outputs[0]
    if y.is_graph_output():
        identity = ir.Node("", "Identity", [x])
        node.graph.insert_before(node, identity)
        x = identity.outputs[0]
        x.type, x.shape = y.type, y.shape
        name, y.name = y.name, None
        replace_value(y, x)
        x.name = name
    else:
        replace_value(y, x)
    codes = node.inputs[0].producer() if is_dequantize(node) and node.inputs[0] else None
    node.graph.remove(node, safe=True)
    if codes is not None and codes.graph is not None and not is_read(codes.outputs[0]):
        codes.graph.remove(codes, safe=True)
    return True


def _find_source(node: ir.Node) -> ir.Value | None:
    """Return the float tensor that `node` quantizes; None where it is not a quantizer of floats."""
    if find_operator(node) is not None:
        x, y = node.inputs[0], node.outputs[0]
        return x if x is not None and x.dtype is not None and x.dtype == y.dtype else None
    codes = node.inputs[0] if is_dequantize(node) and node.inputs else None
    quantize = None if codes is None else codes.producer()
    if quantize is None or not is_quantize(quantize):
        return None
    return quantize.inputs[0] if quantize.inputs else None
