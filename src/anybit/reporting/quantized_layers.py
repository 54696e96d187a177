# SPDX-License-Identifier: Apache-2.0
"""The layers of a quantized model, and the quantizers of what they multiply."""

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.analyze.tensor_grids import choose_tensor_grids, explain_missing_grid
from anybit.compiler.legalize import check_weights
from anybit.errors import ModelError
from anybit.layers.behind import quantizers_behind
from anybit.layers.facts import connected, layers_of
from anybit.layers.layer import Layer
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.analysis.analysis import analyze as follow
from anybit.onnx.analysis.layouts import Layout
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.view import input_of
from anybit.onnx.graph.constants import Array, array_of
from anybit.onnx.graph.names import described, label_of
from anybit.onnx.graph.op_traits import OpTrait, bias_input_of, has_trait
from anybit.onnx.quantizers.grids import Match, match
from anybit.onnx.quantizers.metadata import FENCE_KEY
from anybit.onnx.quantizers.quantizer import OwnQuantizer, Quantizer, quantizer_of
from anybit.onnx.quantizers.trace import Traces
from anybit.ops.grids import Grid
from anybit.reporting.measuring import Gauge

_MOST_MOVES = 16


@dataclass(frozen=True, eq=False)
class Factor:
    """Something quantized that a layer multiplies.

    Attributes:
        quantizer: What quantizes it; its grid is known.
        axis: That of its channels, from the end; None if it is not known.
        read: What the layer reads.
        between: What moves elements between the quantizer and the layer.
    """

    quantizer: Quantizer
    axis: int | None
    read: ir.Value
    between: tuple[ir.Node, ...]

    @property
    def elements(self) -> int:
        """How many the layer reads, if that is known; of what is stored, else."""
        shape = self.read.shape
        sizes = [] if shape is None else [each for each in shape if isinstance(each, int)]
        known = shape is not None and len(sizes) == len(shape)
        return math.prod(sizes) if known else _size(self.x)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """What stands between the layer and what is stored."""
        own = self.quantizer.quantize, self.quantizer.node
        return (*self.between, *filter(None, own), *_moving(self.quantizer.x))

    @property
    def grid(self) -> Grid:
        grid = self.quantizer.grid
        assert grid is not None, "asked before"
        return grid

    @property
    def x(self) -> ir.Value:
        assert self.quantizer.x is not None, "asked before"
        return self.quantizer.x

    @property
    def is_constant(self) -> bool:
        return self.quantizer.constant

    def gauge(self) -> Gauge:
        """What measures it; of constants it has done so.

        Raises:
            ModelError: A constant that cannot be read.
        """
        role = "weights" if self.is_constant else "activations"
        gauge = Gauge(str(self.x.name), role, self.grid, self.axis)
        if self.is_constant:
            gauge.add(*_stored(self.quantizer, self.grid))
        return gauge


@dataclass(frozen=True, eq=False)
class QuantizedLayer:
    """A layer and what it multiplies."""

    layer: Layer
    factors: tuple[Factor, ...]


def quantized_layers(model: ir.Model) -> list[QuantizedLayer]:
    """The layers of a model that can be followed, in the order of the graph."""
    analysis = follow(model, {})
    layers = layers_of(model, analysis, quantizers_behind(analysis.products))
    traces = Traces()
    codes = choose_tensor_grids(model, analysis)
    found = {
        each.node: QuantizedLayer(
            _as_compiled(layer, each, codes, analysis),
            _factors(each.node, each, traces),
        )
        for each, layer in zip(analysis.products, layers, strict=True)
    }
    nodes = list(model.graph.all_nodes())
    for node in nodes:
        if has_trait(node, OpTrait.RECURRENT):
            found[node] = _recurrent(node, traces)
    ordered = [found[node] for node in nodes if node in found]
    joined = connected(nodes, [_with_bits(each) for each in ordered])
    return [replace(each, layer=layer) for each, layer in zip(ordered, joined, strict=True)]


def _as_compiled(
    layer: Layer, product: ProductAnalysis, codes: Container[ir.Value], analysis: Analysis
) -> Layer:
    """The layer, without a class where it is plain that `compile` leaves it in floats."""
    if layer.guarantee is None or product.layout is None:
        return layer
    x = input_of(product.node, product.layout.x)
    if x is None or x.shape is None:
        return layer
    reason = check_weights(product, len(x.shape))
    if reason is not None:
        return replace(layer, guarantee=None, reason=reason.text)
    if x not in codes:
        return replace(layer, guarantee=None, reason=explain_missing_grid(x, analysis))
    if layer.macs is None:
        return replace(layer, guarantee=None, reason="its sizes are free; compile fixed ones")
    return layer


def _recurrent(node: ir.Node, traces: Traces) -> QuantizedLayer:
    """Products of which the analysis knows nothing."""
    layer = Layer(
        name=label_of(node),
        operator=node.op_type,
        output=next((str(each.name) for each in node.outputs if each.name), ""),
        reason="its states are not followed",
        parameters=sum(_size(input_of(node, index)) for index in (1, 2)),
    )
    return QuantizedLayer(layer, _factors(node, None, traces))


def _with_bits(found: QuantizedLayer) -> Layer:
    """The layer with the bits of grids that the analysis does not follow, such as floats."""
    layer = found.layer
    weights = [each for each in found.factors if each.is_constant]
    others = [each for each in found.factors if not each.is_constant]
    weight_bits = max((each.grid.bits for each in weights), default=layer.weight_bits)
    input_bits = max((each.grid.bits for each in others), default=layer.input_bits)
    parameters = layer.parameters or sum(_size(each.x) for each in weights)
    if not weights and len(others) == 2:
        weight_bits = min(each.grid.bits for each in others)
    bops = None if layer.macs is None else layer.macs * weight_bits * input_bits
    return replace(
        layer, weight_bits=weight_bits, input_bits=input_bits, parameters=parameters, bops=bops
    )


def _size(value: ir.Value | None) -> int:
    stored = value
    for node in _moving(value):
        stored = input_of(node, 0)
    return 0 if stored is None or stored.const_value is None else stored.const_value.size


def _factors(node: ir.Node, product: ProductAnalysis | None, traces: Traces) -> tuple[Factor, ...]:
    bias, layout = bias_input_of(node), None if product is None else product.layout
    multiplied = (0, 1, 2) if has_trait(node, OpTrait.RECURRENT) else (0, 1)
    found = []
    for index in multiplied:
        factor = None if index == bias else _factor(input_of(node, index), traces)
        if factor is not None:
            quantizer, read, between = factor
            axis = None if between else _axis(node, index, layout, quantizer.constant)
            found.append(Factor(quantizer, axis, read, between))
    return tuple(found)


def _factor(
    read: ir.Value | None, traces: Traces
) -> tuple[Quantizer, ir.Value, tuple[ir.Node, ...]] | None:
    """The quantizer of an input, the input, and what moves elements behind the quantizer."""
    if read is None:
        return None
    value: ir.Value | None = read
    between: tuple[ir.Node, ...] = ()
    for _ in range(_MOST_MOVES):
        node = None if value is None else value.producer()
        if node is None:
            return None
        if FENCE_KEY in node.metadata_props and (node.domain, node.op_type) == ("", "Min"):
            value = input_of(node, 0)
            continue
        try:
            found = quantizer_of(node, traces)
        except ModelError:  # whoever runs it will say so
            return None
        if found is not None:
            known = found.x is not None and found.grid is not None
            return (found, read, between) if known else None
        if not has_trait(node, OpTrait.DATA_MOVEMENT):
            return None
        value, between = input_of(node, 0), (*between, node)
    return None


def _moving(value: ir.Value | None) -> Iterator[ir.Node]:
    """What is computed of a constant, up to some value."""
    for _ in range(_MOST_MOVES):
        node = None if value is None else value.producer()
        if node is None:
            return
        yield node
        value = input_of(node, 0)


def _axis(node: ir.Node, index: int, layout: Layout | None, constant: bool) -> int | None:
    """The axis of channels: of the result for weights, else that which is summed over."""
    if layout is None:
        return -2 if constant else -1
    if constant:
        return layout.weight_axis
    if index == layout.x:
        return layout.x_axis
    return layout.weight_axis if node.op_type == "MatMul" else None


def _stored(quantizer: Quantizer, grid: Grid) -> tuple[Array, Array | None]:
    """A constant as floats and behind its quantizer; stored codes are values of the grid.

    Raises:
        ModelError: It cannot be read, or its parameters do not broadcast to it.
    """
    assert quantizer.x is not None
    array = array_of(quantizer.x)
    if isinstance(quantizer, OwnQuantizer):
        found: Match | None = Match(quantizer.operator, quantizer.call)
    else:
        found = match(grid)
    try:
        if array.dtype.kind != "f" or found is None:
            return grid.decode(array), None
        parameters, attributes = found.call.parameters, found.call.attributes
        return array, np.asarray(found.operator.function(array, **parameters, **attributes))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{described(quantizer.node)}: {error}") from error
