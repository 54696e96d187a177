# SPDX-License-Identifier: Apache-2.0
"""The abstract values of a graph, and its sums of products."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.analysis.abstract_values import MOST_CHANNELS, AbstractValue
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.rules.products import infer_product
from anybit.onnx.analysis.rules.table import find_rule
from anybit.onnx.analysis.view import View, may_be_float32
from anybit.onnx.graph.op_traits import OpTrait, get_traits
from anybit.onnx.graph.walk import iter_nodes

_INTEGERS = {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16}
_INTEGERS |= {ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT2, ir.DataType.UINT2}
_INTEGERS |= {ir.DataType.INT32}


@dataclass(frozen=True, eq=False)
class Analysis:
    """Abstract values and products of a graph.

    Attributes:
        values: The abstract values by value; the others are unknown. Constants are included if a
            node that has a rule reads them.
        products: The MatMul-like nodes, in the order of the graph.
    """

    values: Mapping[ir.Value, AbstractValue]
    products: Sequence[ProductAnalysis]


def analyze(model: ir.Model, inputs: Mapping[str, AbstractValue] | None = None) -> Analysis:
    """Propagate abstract values through a graph, without running or changing it.

    The model is normalized, and its scales and widths are folded (`FoldConstants`, with or without
    `operators`); shapes are those that `InferShapes` has noted.

    Args:
        model: The model. Its inputs are assumed to be finite.
        inputs: Abstract values of inputs by name.
    """
    view = View(model)
    products: list[ProductAnalysis] = []
    for value in model.graph.inputs:
        abstract_input = (inputs or {}).get(str(value.name))
        if abstract_input is not None and not value.is_initializer():
            view.abstracts[value] = abstract_input
    with np.errstate(all="ignore"):
        for node in iter_nodes(model.graph):
            for value, abstract in zip(
                node.outputs, _infer_node(node, view, products), strict=False
            ):
                if abstract is not None and (may_be_float32(value) or value.dtype in _INTEGERS):
                    view.abstracts[value] = _limit_channels(abstract, view)
    return Analysis(view.list_values(), products)


def _infer_node(
    node: ir.Node, view: View, products: list[ProductAnalysis]
) -> Sequence[AbstractValue | None]:
    traits = get_traits(node, view.opset)
    rule = find_rule(node)
    if not node.outputs or (node.op_type == "Dropout" and not traits):
        return []
    if OpTrait.MATMUL in traits:
        analysis, output = infer_product(node, view)
        products.append(analysis)
        return [output]
    try:
        result = None if rule is None else rule(node, view)
    except ModelError:  # invalid: running the model reports it
        return []
    return result if isinstance(result, Sequence) else [result]


def _limit_channels(abstract: AbstractValue, view: View) -> AbstractValue:
    """Return an abstract value, without channels if there are too many in total."""
    if abstract.axis is None:
        return abstract
    if abstract.lowest.size > MOST_CHANNELS or not view.can_afford(abstract.count):
        return abstract.merge_channels()
    return abstract
