# SPDX-License-Identifier: Apache-2.0
"""Value analysis of a model that is to be compiled."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.analyze.block_weights import BlockWeights, find_block_weights
from anybit.compiler.analyze.integer_products import IntegerProduct, find_integer_products
from anybit.compiler.analyze.tensor_grids import choose_tensor_grids
from anybit.compiler.analyze.unknown_shapes import RowShapes
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.prepare.codes.lifting import LiftedOperators
from anybit.compiler.prepare.dynamic_nbits import explain_kept_nbits
from anybit.compiler.reason import Reason
from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.analysis import Analysis, analyze
from anybit.onnx.analysis.layers import (
    describe_layers,
    describe_recurrent_layer,
    find_quantizers_after,
)
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.walk import iter_nodes, iter_values
from anybit.onnx.passes import FoldConstants, InferShapes
from anybit.onnx.qdq.integer_layers import describe_integer_layer
from anybit.quant_types.grids import TensorGrid
from anybit.quant_types.layer_info import LayerInfo

RECURRENT_REASON = (
    "recurrent layers have no integer kernel: export one step, such as torch.nn.LSTMCell, with its "
    "states as inputs and outputs"
)

_ROUNDED = "its sums with the bias exceed 2^24, where float32 rounds twice and the operator once"


@dataclass(frozen=True, eq=False)
class AnalyzedModel:
    """A model with folded constants, and the results of its value analysis.

    Attributes:
        model: The model.
        analysis: Abstract values, and the products with their weights.
        layers: The layers of the graph by the names of their outputs.
        kept: The layers that stay as they are: in branches and loops, recurrent
            ones, and operators on codes.
        integer_products: The products that the file stores as integer operators, or why one stays.
        block_weights: The weights with a scale per block, by the products that read them.
        grids: The grid of each value that can be a tensor of codes.
        shapes: Sizes of values.
    """

    model: ir.Model
    analysis: Analysis
    layers: Mapping[str, LayerInfo]
    kept: tuple[CompiledLayer, ...]
    integer_products: Mapping[ir.Node, IntegerProduct | Reason]
    block_weights: Mapping[ir.Node, BlockWeights]
    grids: Mapping[ir.Value, TensorGrid]
    shapes: RowShapes

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return self.model.graph.opset_imports.get("", 1)


def analyze_model(
    model: ir.Model,
    ranges: Mapping[str, AbstractValue] | None = None,
    codes: LiftedOperators | None = None,
) -> AnalyzedModel:
    """Analyze the values of a model and fold its constants, in place.

    The analysis comes first: it reads scales and codes of weights off their quantizers, which
    folding replaces by float32 constants.

    Args:
        model: A normalized model whose scales are folded and whose weights are not.
        ranges: Values of inputs without quantizers, by name.
        codes: Operators on codes whose float nodes the model has.
    """
    codes = LiftedOperators() if codes is None else codes
    analysis = _apply_errors(analyze(model, ranges), codes)
    layers, kept = _collect_layers(model, analysis, codes)
    named_blocks = find_block_weights(analysis.products)
    top_level = set(iter_values(model.graph))
    FoldConstants(codes=True)(model)
    InferShapes()(model)
    integer_products = find_integer_products(model)
    values = _map_to_folded(analysis, top_level, model)
    grids = choose_tensor_grids(model, values)
    named = {str(product.node.outputs[0].name): product.node for product in values.products}
    blocks = {named[name]: own for name, own in named_blocks.items() if name in named}
    shapes = RowShapes(model)
    return AnalyzedModel(model, values, layers, kept, integer_products, blocks, grids, shapes)


def _collect_layers(
    model: ir.Model, analysis: Analysis, codes: LiftedOperators
) -> tuple[dict[str, LayerInfo], tuple[CompiledLayer, ...]]:
    """Return the layers by their outputs, and those that stay as they are."""
    layers, kept = {}, []
    every = describe_layers(model, analysis, find_quantizers_after(analysis.products))
    for layer, product in zip(every, analysis.products, strict=True):
        if product.node.graph is model.graph:
            layers[layer.output] = layer
        else:
            kept.append(CompiledLayer.in_float(layer, "it stands in a branch or a loop"))
    for node in iter_nodes(model.graph):
        integers = describe_integer_layer(node, model)
        if integers is not None:
            reason = explain_kept_nbits(node) or codes.explain(integers.output, integers.reason)
            kept.append(replace(CompiledLayer.of(integers), reason=reason))
    kept += [
        CompiledLayer.in_float(describe_recurrent_layer(node, model, analysis), RECURRENT_REASON)
        for node in iter_nodes(model.graph)
        if has_trait(node, OpTrait.RECURRENT)
    ]
    return layers, tuple(kept)


def _apply_errors(analysis: Analysis, codes: LiftedOperators) -> Analysis:
    """Return an analysis that compares sums with those of the operators on codes.

    Their int32 sums are exact, and rounded to float32 once.
    """
    lifted, products = codes.find_by_output(), []
    for product in analysis.products:
        own = lifted.get(str(product.node.outputs[0].name))
        if own is not None and product.accumulator is not None:
            zero = np.zeros(())
            error, reason = (zero, "") if own.error is None else (own.error, _ROUNDED)
            product = replace(product, exact=own.error is None, error=error, reason=reason)
        products.append(product)
    return Analysis(analysis.values, products)


def _map_to_folded(analysis: Analysis, top_level: Container[ir.Value], model: ir.Model) -> Analysis:
    """Return the analysis in terms of the values of the folded model.

    Values are matched by name. Those of branches and loops are dropped: a name there may be that of
    another value outside.
    """
    values = {
        value.name: value
        for node in model.graph
        for value in (*node.inputs, *node.outputs)
        if value is not None
    }
    values.update((value.name, value) for value in model.graph.inputs)
    nodes = {value.name: node for node in model.graph for value in node.outputs}
    abstract_values = {
        values[value.name]: abstract
        for value, abstract in analysis.values.items()
        if value in top_level and value.name in values
    }
    products = [
        replace(product, node=nodes[product.node.outputs[0].name])
        for product in analysis.products
        if product.node.outputs[0] in top_level and product.node.outputs[0].name in nodes
    ]
    return Analysis(abstract_values, products)
