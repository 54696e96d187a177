# SPDX-License-Identifier: Apache-2.0
"""From a model to what is said of its layers."""

import os
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit import text
from anybit.inputs import Feeds
from anybit.layers.analyzed import Analyzed, Guarantee, Layer, Span
from anybit.layers.behind import quantizer_behind
from anybit.layers.observing import observe
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.analysis.analysis import analyze as follow
from anybit.onnx.analysis.carriers import Carrier
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.ranges import Ranges, by_name, carriers_of
from anybit.onnx.analysis.view import given
from anybit.onnx.files.reader import Source, read_copy
from anybit.onnx.graph.names import label_of
from anybit.onnx.graph.shapes import sizes_that_follow
from anybit.onnx.passes import (
    FoldConstants,
    InferShapes,
    InlineFunctions,
    Normalize,
    StandardLayout,
)
from anybit.onnx.preparation import apply
from anybit.onnx.quantizers.quantizer import Quantizer
from anybit.onnx.quantizers.trace import Traces


def analyze(
    source: Source,
    *,
    input_ranges: Ranges | None = None,
    data: Feeds | None = None,
) -> Analyzed:
    """What each layer of a model costs, what it can hold, and whether float32 computes it exactly.

    Everything but what data show is proven from the model: from the weights that are there, and for
    every input within the ranges. Without `data` nothing is run.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.
        input_ranges: What inputs hold, by name, or of the only one: "uint8" (integers of a type),
            "uint8/255" or "int8*0.5" (the same times a float32 scale), "uint8-128/127" (less a
            zero-point first), "-1,1" or (-1, 1) (any numbers between).
        data: Inputs as for `Model.run`, to show beside what is proven what there really is.

    Raises:
        ModelError: The model cannot be read, or a range or the data do not fit it.

    >>> found = analyze("examples/digits_w4a4.onnx")
    >>> [(layer.guarantee, layer.accumulator_bits) for layer in found.layers]
    [('exact', 14), ('exact', 12), ('exact', 12)]
    """
    model = read_copy(source)
    apply(
        model,
        source,
        InlineFunctions(),
        Normalize(),
        StandardLayout(),
        InferShapes(),
        FoldConstants(operators=False),
        InferShapes(),
    )
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    known = carriers_of(input_ranges, inputs)
    analysis = follow(model, known)
    traces = Traces()
    quantizers = [quantizer_behind(each.node.outputs[0], traces) for each in analysis.products]
    layers = [
        _layer(model, analysis, product, quantizer)
        for product, quantizer in zip(analysis.products, quantizers, strict=True)
    ]
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else "the model"
    rows = 0
    if data is not None:
        seen, rows = observe(model, name, analysis, quantizers, data, known)
        layers = [replace(layer, seen=each) for layer, each in zip(layers, seen, strict=True)]
    said = {key: str(each) for key, each in by_name(input_ranges).items()}
    return Analyzed(name, tuple(layers), said, rows)


def _layer(
    model: ir.Model, analysis: Analysis, product: ProductAnalysis, quantizer: Quantizer | None
) -> Layer:
    node = product.node
    weight = given(node, 1 if product.layout is None else product.layout.weight)
    output = node.outputs[0]
    quantized = None if quantizer is None else analysis.carriers.get(quantizer.node.outputs[0])
    result = analysis.carriers.get(output)
    accumulator = product.accumulator
    span = bits = any_bits = None
    if accumulator is not None:
        span = int(accumulator.lowest.min(initial=0)), int(accumulator.highest.max(initial=0))
        bits, any_bits = accumulator.bits, accumulator.any_bits
    sums = None
    if result is not None and not result.infinite:
        sums = float(result.lowest.min()), float(result.highest.max())
    return Layer(
        name=label_of(node),
        operator=node.op_type,
        output=str(output.name),
        shape=_shape(model, output),
        weight_shape=_shape(model, weight),
        parameters=0 if product.codes is None else product.codes.size,
        macs=product.macs,
        bops=product.bops,
        input_bits=product.x_bits,
        weight_bits=product.weight_bits,
        sparsity=product.sparsity,
        input_codes=_codes(product.x),
        weight_codes=_codes(product.weight),
        output_codes=_codes(quantized),
        accumulator=span,
        accumulator_bits=bits,
        accumulator_bits_any=any_bits,
        sums=sums,
        quantizer="" if quantizer is None else label_of(quantizer.node),
        guarantee=_guarantee(product),
        reason=product.reason,
    )


def _guarantee(product: ProductAnalysis) -> Guarantee:
    if product.exact:
        return "exact"
    return "float" if product.accumulator is None else "rounds"


def _codes(carrier: Carrier | None) -> Span | None:
    if carrier is None or carrier.codes is None:
        return None
    return int(np.min(carrier.codes.lowest)), int(np.max(carrier.codes.highest))


def _shape(model: ir.Model, value: ir.Value | None) -> str:
    return text.sizes(None if value is None else sizes_that_follow(value, model))
