# SPDX-License-Identifier: Apache-2.0
"""The layers of an analyzed graph, the quantizers after them, and their connections."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import prod

import numpy as np
import onnx_ir as ir

from anybit import text
from anybit.errors import ModelError
from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_onnx_op
from anybit.onnx.graph.shapes import get_proven_sizes
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.onnx.quantizers.quantizer import Quantizer, find_quantizer
from anybit.onnx.quantizers.trace import Traces
from anybit.quant_types.layer_info import Guarantee, LayerInfo, Span

# The epilogue of a layer has at most this many nodes.
_MAX_EPILOGUE = 64
_RECURRENT_RANK, _FLOAT_BITS = 3, 32
_DYNAMIC = "the scales of its input are computed at run time"
_SINGLE = OpTrait.DATA_MOVEMENT | OpTrait.RECTIFIER | OpTrait.ELEMENTWISE
_EPILOGUE = _SINGLE | OpTrait.SELECTION | OpTrait.MEAN


def find_quantizers_after(products: Iterable[ProductAnalysis]) -> list[Quantizer | None]:
    """Return the first quantizer in the epilogue of each product; None where there is none.

    For a QuantizeLinear with its DequantizeLinear, return the DequantizeLinear.
    """
    traces = Traces()
    return [_find_quantizer_after(product.node.outputs[0], traces) for product in products]


def _find_quantizer_after(value: ir.Value, traces: Traces) -> Quantizer | None:
    waiting, seen = [value], {value}
    while waiting and len(seen) < _MAX_EPILOGUE:
        for node, index in islice(waiting.pop(0).uses(), _MAX_EPILOGUE):
            quantizer = _find_quantizer(node, traces) if index == 0 else None
            if quantizer is not None:
                return quantizer
            passes = has_trait(node, _EPILOGUE) or node.op_type == "BatchNormalization"
            new = [output for output in node.outputs[:1] if passes and output not in seen]
            seen.update(new)
            waiting += new
    return None


def _find_quantizer(node: ir.Node, traces: Traces) -> Quantizer | None:
    try:
        quantizer = find_quantizer(node, traces)
        if is_quantize(node):
            # The values are those that a reader of the codes computes.
            reader = _find_dequantizer(node.outputs[0])
            quantizer = quantizer if reader is None else find_quantizer(reader, traces)
    except ModelError:  # the runtime reports it
        return None
    return quantizer


def _find_dequantizer(codes: ir.Value) -> ir.Node | None:
    """Return the DequantizeLinear that reads codes, also after a Clip."""
    for node, index in codes.uses():
        if index == 0 and is_dequantize(node):
            return node
        if index == 0 and is_onnx_op(node, "Clip"):
            for reader, _ in node.outputs[0].uses():
                if is_dequantize(reader):
                    return reader
    return None


def describe_layers(
    model: ir.Model, analysis: Analysis, quantizers: Sequence[Quantizer | None]
) -> list[LayerInfo]:
    """Return a layer for each product and the quantizer after it, without `inputs`."""
    pairs = zip(analysis.products, quantizers, strict=True)
    return [_describe_layer(model, analysis, *pair) for pair in pairs]


def _describe_layer(
    model: ir.Model, analysis: Analysis, product: ProductAnalysis, quantizer: Quantizer | None
) -> LayerInfo:
    node = product.node
    weight = get_input(node, 1 if product.layout is None else product.layout.weight)
    output = node.outputs[0]
    quantized = None if quantizer is None else analysis.values.get(quantizer.node.outputs[0])
    result = analysis.values.get(output)
    accumulator = product.accumulator
    span = bits = any_bits = None
    if accumulator is not None:
        span = int(accumulator.lowest.min(initial=0)), int(accumulator.highest.max(initial=0))
        bits, any_bits = accumulator.bits, accumulator.any_bits
    sums = None
    if result is not None and not result.infinite:
        sums = float(result.lowest.min()), float(result.highest.max())
    dynamic_bits = _find_dynamic_bits(node, product)
    input_bits = dynamic_bits or product.x_bits
    return LayerInfo(
        name=get_label(node),
        operator=node.op_type,
        output=str(output.name),
        guarantee=_describe_guarantee(product),
        reason=product.reason if dynamic_bits is None else _DYNAMIC,
        shape=_format_shape(model, output),
        weight_shape=_format_shape(model, weight),
        parameters=_count_elements(weight) if product.codes is None else product.codes.size,
        macs=product.macs,
        input_bits=input_bits,
        weight_bits=product.weight_bits,
        sparsity=product.sparsity,
        input_codes=_get_code_span(product.x),
        weight_codes=_get_code_span(product.weight),
        output_codes=_get_code_span(quantized),
        accumulator=span,
        accumulator_bits=bits,
        accumulator_bits_any=any_bits,
        sums=sums,
        quantizer="" if quantizer is None else get_label(quantizer.node),
        dynamic=dynamic_bits is not None,
    )


def describe_recurrent_layer(node: ir.Node, model: ir.Model, analysis: Analysis) -> LayerInfo:
    """Return the layer of a GRU, LSTM or RNN, whose states the analysis does not follow."""
    bits = [_get_bits(analysis, get_input(node, index)) for index in range(3)]
    return LayerInfo(
        name=get_label(node),
        operator=node.op_type,
        output=next((str(value.name) for value in node.outputs if value.name), ""),
        reason="the values of its states are unknown",
        macs=_count_recurrent_macs(node, model),
        input_bits=bits[0],
        weight_bits=max(bits[1:]),
    )


def _get_bits(analysis: Analysis, value: ir.Value | None) -> int:
    """Return the bits of the codes of a value; 32 for a float."""
    abstract = None if value is None else analysis.values.get(value)
    return _FLOAT_BITS if abstract is None or abstract.codes is None else abstract.codes.bits


def _count_recurrent_macs(node: ir.Node, model: ir.Model) -> int | None:
    """Return the elements of both weights times steps and batch; None for unknown sizes."""
    x, *weights = (
        None if value is None else get_proven_sizes(value, model)
        for value in (get_input(node, index) for index in range(3))
    )
    if x is None or len(x) < _RECURRENT_RANK:
        return None
    steps, batch = (x[1], x[0]) if get_attribute(node, "layout", 0) else (x[0], x[1])
    elements = 0
    for sizes in weights:
        numbers = [size for size in sizes or () if size is not None]
        if sizes is None or len(numbers) < len(sizes):
            return None
        elements += prod(numbers)
    return None if steps is None else steps * (1 if batch is None else batch) * elements


def _count_elements(weight: ir.Value | None) -> int:
    """Return the elements of a constant weight; 0 for other values."""
    tensor = None if weight is None else weight.const_value
    return 0 if tensor is None else tensor.size


def _find_dynamic_bits(node: ir.Node, product: ProductAnalysis) -> int | None:
    """Return the bits of activations with a scale that is computed at run time; None for others."""
    x = get_input(node, 0 if product.layout is None else product.layout.x)
    quantizer = None if x is None else x.producer()
    while quantizer is not None and has_trait(quantizer, OpTrait.KEEPS_CODES):
        x = get_input(quantizer, 0)
        quantizer = None if x is None else x.producer()
    operator = None if quantizer is None else find_operator(quantizer)
    if quantizer is None or operator is None or operator.grid is None:
        return None
    numbers = {
        declared.name: value
        for declared, value in zip(operator.inputs, quantizer.inputs, strict=False)
        if value is not None
    }
    scale, names = numbers.get("scale"), [name for name in numbers if name.endswith("bitwidth")]
    if scale is None or is_constant(scale) or not all(is_constant(numbers[n]) for n in names):
        return None
    widths = [read_array(numbers[name]) for name in names]
    if any(width.size != 1 or not np.isfinite(width).all() for width in widths):
        return None
    # A sign besides exponent and mantissa.
    return int(sum(width.item() for width in widths)) + (len(widths) > 1)


def _describe_guarantee(product: ProductAnalysis) -> Guarantee | None:
    if product.exact:
        return Guarantee.EXACT
    return None if product.accumulator is None else Guarantee.BOUNDED


def _get_code_span(value: AbstractValue | None) -> Span | None:
    if value is None or value.codes is None:
        return None
    return int(np.min(value.codes.lowest)), int(np.max(value.codes.highest))


def _format_shape(model: ir.Model, value: ir.Value | None) -> str:
    return text.format_shape(None if value is None else get_proven_sizes(value, model))


def find_owners(nodes: Iterable[ir.Node], layers: Iterable[LayerInfo]) -> dict[ir.Node, str]:
    """Return the name of the layer that each node belongs to: the last one that it depends on.

    Nodes and layers are in topological order. Nodes before all layers are missing.
    """
    names = {layer.output: layer.name for layer in layers}
    places = {name: place for place, name in enumerate(names.values())}
    owner: dict[ir.Node, str] = {}
    for node in nodes:
        own = [names[str(value.name)] for value in node.outputs if str(value.name) in names]
        name = max(own or _find_read_layers(node, owner), key=places.__getitem__, default=None)
        if name is not None:
            owner[node] = name
    return owner


def _find_read_layers(node: ir.Node, owner: Mapping[ir.Node, str]) -> set[str]:
    producers = {value.producer() for value in node.inputs if value is not None}
    return {owner[node] for node in producers if node is not None and node in owner}


def connect_layers(nodes: Sequence[ir.Node], layers: Sequence[LayerInfo]) -> list[LayerInfo]:
    """Return the layers with `inputs`: the layers that their nodes read."""
    owner = find_owners(nodes, layers)
    inputs: dict[str, set[str]] = {layer.name: set() for layer in layers}
    for node, name in owner.items():
        inputs[name] |= _find_read_layers(node, owner) - {name}
    places = {layer.name: place for place, layer in enumerate(layers)}
    return [
        replace(layer, inputs=tuple(sorted(inputs[layer.name], key=places.__getitem__)))
        for layer in layers
    ]
