# SPDX-License-Identifier: Apache-2.0
"""Eligibility of models: whether and where they have quantizers."""

import onnx_ir as ir

from anybit.compiler.operators import get_varying_inputs, is_quantizer
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.dynamic_matmul import is_dynamic_matmul
from anybit.onnx.operators.integer_network import is_integer_network
from anybit.onnx.passes.remove_quantizers import has_quantizers
from anybit.onnx.qdq.codes.table import is_liftable
from anybit.onnx.qdq.qlinear import is_integer_operator
from anybit.onnx.qdq.remedies import suggest_conversion

INTEGER_ONLY = "anybit.integer_only"
"""Metadata of models that were quantized with `integer_only`."""

_PRODUCTS = ("ConvInteger", "MatMulInteger", "QGemm", "QLinearConv", "QLinearMatMul")
_BETWEEN = OpTrait.ELEMENTWISE | OpTrait.MEAN | OpTrait.REDUCTION


def explain_missing_quantizers(model: ir.Model, where: str) -> str:
    """Return why a model has nothing to compile, with the remedy; "" if it has quantizers."""
    if has_quantizers(model):
        return ""
    for node in iter_nodes(model.graph):
        if is_integer_network(node) or is_dynamic_matmul(node):
            return f"{where} is compiled already ({describe(node)}); run it as it is"
        if (node.domain, node.op_type) == ("com.microsoft", "DynamicQuantizeLSTM"):
            return (
                f"{where} has no quantizers: {describe(node)} quantizes its state at every step, "
                "and a region has no steps that read the state of earlier ones; export one step of "
                "the float model with its states as inputs and outputs, such as "
                "torch.nn.LSTMCell, and quantize that (anybit quantize)"
            )
        if is_liftable(node):
            return f"{where} has no operator on codes that a region computes{_explain(node, model)}"
        if is_integer_operator(node):
            command = suggest_conversion(node)
            remedy = "convert it first" if command else "quantize the float model instead"
            return (
                f"{where} has no quantizers: {describe(node)} computes with codes, and no region "
                f"computes it; {remedy} ({command or 'anybit quantize'})"
            )
    return (
        f"{where} has no quantizers, so no layer of it can run on integers; quantize it first "
        "(anybit quantize; in Python anybit.quantize), and compile the result"
    )


def _explain(node: ir.Node, model: ir.Model) -> str:
    """Return why no region has any operator on codes, given the first; "" for products."""
    nodes = list(filter(is_liftable, model.graph))
    if not nodes:
        owner = next((at for at in iter_nodes(model.graph) if node.graph in _get_graphs(at)), None)
        branch = "an inner graph" if owner is None else f"a branch of {describe(owner)}"
        return f": {describe(node)} is in {branch}; export the model without it"
    if any(at.op_type in _PRODUCTS for at in nodes):
        return ""  # the report has the reasons of products
    return f": a region has a product, such as QLinearConv, and {describe(node)} is none"


def _get_graphs(node: ir.Node) -> list[ir.Graph]:
    attributes = (attribute for attribute in node.attributes.values() if not attribute.is_ref())
    return [at.as_graph() for at in attributes if at.type == ir.AttributeType.GRAPH]


def is_integer_only(model: ir.Model) -> bool:
    """Return whether activations between layers are quantized, too.

    Either the file says so, or a sum, a mean or a concatenation reads a quantizer.
    """
    return INTEGER_ONLY in model.metadata_props or any(
        _is_between(node) and any(map(_is_quantized, get_varying_inputs(node)))
        for node in iter_nodes(model.graph)
    )


def _is_between(node: ir.Node) -> bool:
    combines = not node.domain and (has_trait(node, _BETWEEN) or node.op_type == "Concat")
    return combines and (len(get_varying_inputs(node)) > 1 or has_trait(node, OpTrait.MEAN))


def _is_quantized(value: ir.Value) -> bool:
    node = value.producer()
    if node is None or not is_quantizer(node):
        return False
    x = node.inputs[0] if node.inputs else None
    return x is not None and not is_constant(x)
