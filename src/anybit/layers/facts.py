# SPDX-License-Identifier: Apache-2.0
"""What the analysis of a graph says of its layers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from anybit import text
from anybit.layers.layer import Guarantee, Layer, Span
from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.view import input_of
from anybit.onnx.graph.names import label_of
from anybit.onnx.graph.shapes import sizes_that_follow
from anybit.onnx.quantizers.quantizer import Quantizer

LayerKind = TypeVar("LayerKind", bound=Layer)


def layers_of(
    model: ir.Model, analysis: Analysis, quantizers: Sequence[Quantizer | None]
) -> list[Layer]:
    """A layer for each product of an analysis and the quantizer behind it; `inputs` are missing."""
    pairs = zip(analysis.products, quantizers, strict=True)
    return [_layer(model, analysis, *pair) for pair in pairs]


def _layer(
    model: ir.Model, analysis: Analysis, product: ProductAnalysis, quantizer: Quantizer | None
) -> Layer:
    node = product.node
    weight = input_of(node, 1 if product.layout is None else product.layout.weight)
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
    return Layer(
        name=label_of(node),
        operator=node.op_type,
        output=str(output.name),
        guarantee=_guarantee(product),
        reason=product.reason,
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
    )


def _guarantee(product: ProductAnalysis) -> Guarantee | None:
    if product.exact:
        return Guarantee.EXACT
    return None if product.accumulator is None else Guarantee.BOUNDED


def _codes(carrier: AbstractValue | None) -> Span | None:
    if carrier is None or carrier.codes is None:
        return None
    return int(np.min(carrier.codes.lowest)), int(np.max(carrier.codes.highest))


def _shape(model: ir.Model, value: ir.Value | None) -> str:
    return text.sizes(None if value is None else sizes_that_follow(value, model))


def owners(nodes: Iterable[ir.Node], layers: Iterable[Layer]) -> dict[ir.Node, str]:
    """The layer that each node belongs to, by name: it is one, or follows the last that it reads.

    The nodes are in an order in which they can run, and so are the layers. What comes before all
    layers belongs to none.
    """
    names = {layer.output: layer.name for layer in layers}
    places = {name: place for place, name in enumerate(names.values())}
    found: dict[ir.Node, str] = {}
    for node in nodes:
        own = [names[str(each.name)] for each in node.outputs if str(each.name) in names]
        name = max(own or _read(node, found), key=places.__getitem__, default=None)
        if name is not None:
            found[node] = name
    return found


def _read(node: ir.Node, known: Mapping[ir.Node, str]) -> set[str]:
    producers = {value.producer() for value in node.inputs if value is not None}
    return {known[each] for each in producers if each is not None and each in known}


def connected(nodes: Sequence[ir.Node], layers: Sequence[LayerKind]) -> list[LayerKind]:
    """The layers, each with the names of those that it, or what belongs to it, reads."""
    known = owners(nodes, layers)
    inputs: dict[str, set[str]] = {layer.name: set() for layer in layers}
    for node, name in known.items():
        inputs[name] |= _read(node, known) - {name}
    places = {layer.name: place for place, layer in enumerate(layers)}
    return [
        replace(layer, inputs=tuple(sorted(inputs[layer.name], key=places.__getitem__)))
        for layer in layers
    ]
