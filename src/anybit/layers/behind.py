# SPDX-License-Identifier: Apache-2.0
"""Which quantizer is behind a sum of products."""

from collections.abc import Iterable
from itertools import islice

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.onnx.quantizers.quantizer import Quantizer, quantizer_of
from anybit.onnx.quantizers.trace import Traces

# No tail of a layer is longer.
_MOST_NODES = 64
_SINGLE = OpTrait.DATA_MOVEMENT | OpTrait.RECTIFIER | OpTrait.ELEMENTWISE
_PASSED = _SINGLE | OpTrait.SELECTION | OpTrait.MEAN


def quantizers_behind(products: Iterable[ProductAnalysis]) -> list[Quantizer | None]:
    """Of each product the first quantizer that reads it, be it through functions of elements.

    Of a pair it is the DequantizeLinear.
    """
    traces = Traces()
    return [_behind(each.node.outputs[0], traces) for each in products]


def _behind(value: ir.Value, traces: Traces) -> Quantizer | None:
    waiting, seen = [value], {value}
    while waiting and len(seen) < _MOST_NODES:
        for node, at in islice(waiting.pop(0).uses(), _MOST_NODES):
            found = _quantizer(node, traces) if at == 0 else None
            if found is not None:
                return found
            passed = has_trait(node, _PASSED) or node.op_type == "BatchNormalization"
            new = [each for each in node.outputs[:1] if passed and each not in seen]
            seen.update(new)
            waiting += new
    return None


def _quantizer(node: ir.Node, traces: Traces) -> Quantizer | None:
    try:
        found = quantizer_of(node, traces)
        if is_quantize(node):
            # The values are what a reader of the codes gives.
            reader = _reader_of(node.outputs[0])
            found = found if reader is None else quantizer_of(reader, traces)
    except ModelError:  # whoever runs it will say so
        return None
    return found


def _reader_of(codes: ir.Value) -> ir.Node | None:
    """The DequantizeLinear that reads codes, be it behind a Clip."""
    for node, at in codes.uses():
        if at == 0 and is_dequantize(node):
            return node
        if at == 0 and (node.domain, node.op_type) == ("", "Clip"):
            for reader, _ in node.outputs[0].uses():
                if is_dequantize(reader):
                    return reader
    return None
