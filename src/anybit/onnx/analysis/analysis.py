# SPDX-License-Identifier: Apache-2.0
"""The carriers of a graph, and its sums of products."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.analysis.carriers import MOST_CHANNELS, Carrier
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.rules.products import product
from anybit.onnx.analysis.rules.table import rule_of
from anybit.onnx.analysis.view import View, is_float
from anybit.onnx.graph.op_traits import OpTrait, traits_of
from anybit.onnx.graph.walk import nodes_in

_INTEGERS = {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16}
_INTEGERS |= {ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT2, ir.DataType.UINT2}
_INTEGERS |= {ir.DataType.INT32}


@dataclass(frozen=True, eq=False)
class Analysis:
    """What is known of a graph.

    Attributes:
        carriers: What is known of values; of others nothing is. Constants are among them as far as
            a node that has a rule reads them.
        products: The nodes that add up products, in the order of the graph.
    """

    carriers: Mapping[ir.Value, Carrier]
    products: Sequence[ProductAnalysis]


def analyze(model: ir.Model, inputs: Mapping[str, Carrier] | None = None) -> Analysis:
    """Follow values through a graph. Nothing is run, and nothing is changed.

    The model is normalized, and its scales and widths are folded (`FoldConstants`, with or without
    `operators`); shapes are those that `InferShapes` has noted.

    Args:
        model: The model. Its inputs are taken for numbers: neither NaN nor infinite.
        inputs: What is known of inputs by name.
    """
    view = View(model)
    products: list[ProductAnalysis] = []
    for value in model.graph.inputs:
        known = (inputs or {}).get(str(value.name))
        if known is not None and not value.is_initializer():
            view.carriers[value] = known
    with np.errstate(all="ignore"):
        for node in nodes_in(model.graph):
            for value, found in zip(node.outputs, _follow(node, view, products), strict=False):
                if found is not None and (is_float(value) or value.dtype in _INTEGERS):
                    view.carriers[value] = _affordable(found, view)
    return Analysis(view.known(), products)


def _follow(node: ir.Node, view: View, products: list[ProductAnalysis]) -> Sequence[Carrier | None]:
    traits = traits_of(node, view.opset)
    rule = rule_of(node)
    if not node.outputs or (node.op_type == "Dropout" and not traits):
        return []
    if OpTrait.MATMUL in traits:
        analysis, found = product(node, view)
        products.append(analysis)
        return [found]
    try:
        result = None if rule is None else rule(node, view)
    except ModelError:  # invalid: whoever runs it will say so
        return []
    return result if isinstance(result, Sequence) else [result]


def _affordable(carrier: Carrier, view: View) -> Carrier:
    """The carrier, or one without channels where there are too many in all."""
    if carrier.axis is None:
        return carrier
    if carrier.lowest.size > MOST_CHANNELS or not view.afford(carrier.count):
        return carrier.whole()
    return carrier
