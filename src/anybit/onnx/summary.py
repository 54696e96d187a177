# SPDX-License-Identifier: Apache-2.0
"""What a model holds, above all its quantizers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.files.reader import Source, read
from anybit.onnx.graph.constants import array_of
from anybit.onnx.graph.facts import Effect, effect_of, product_of
from anybit.onnx.graph.names import label_of
from anybit.onnx.operators.known import unknown_operators
from anybit.onnx.operators.registry import operator_of
from anybit.onnx.passes import FoldConstants, Normalize
from anybit.onnx.preparation import apply
from anybit.ops import Operator


@dataclass(frozen=True)
class Parameter:
    """A parameter of a quantizer. `granularity` is "per-tensor", "per-channel", "per-element" or
    "computed"; a computed one has no known values, and `axis` is that of the channels, from the
    end (-1 is the last)."""

    granularity: str
    axis: int | None
    smallest: float | None
    largest: float | None


@dataclass(frozen=True)
class Quantizer:
    """One node. `role` says what it quantizes: a weight, a bias, the input or an activation.

    `constant` ones are folded when the model is loaded; the others need the operator library.
    """

    node: str
    operator: str
    version: int
    tensor: str
    role: str
    constant: bool
    bits: str
    parameters: dict[str, Parameter]
    attributes: dict[str, bool | int | str]


@dataclass(frozen=True)
class Summary:
    """A model file. Opsets, domains and IR version are those of the file, not of what is run."""

    ir_version: int
    producer: str
    opsets: dict[str, int]
    domains: dict[str, int]
    nodes: int
    constant_bytes: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    quantizers: tuple[Quantizer, ...]
    unknown_operators: tuple[str, ...]


def summarize(source: Source) -> Summary:
    """Describe a model; it is not run. Scales that constant nodes compute are computed.

    Raises:
        ModelError: As `anybit.onnx.prepare`.
    """
    model = read(source)
    domains: dict[str, int] = {}
    for node in model.graph.all_nodes():
        domains[node.domain] = domains.get(node.domain, 0) + 1
    constants = {value for graph in model.graphs() for value in graph.initializers.values()}
    header = Summary(
        ir_version=model.ir_version or 0,
        producer=f"{model.producer_name or ''} {model.producer_version or ''}".strip(),
        opsets=dict(model.graph.opset_imports),
        domains=domains,
        nodes=sum(domains.values()),
        constant_bytes=sum(each.const_value.nbytes for each in constants if each.const_value),
        inputs={str(v.name): _typed(v) for v in model.graph.inputs if v not in constants},
        outputs={str(value.name): _typed(value) for value in model.graph.outputs},
        quantizers=(),
        unknown_operators=tuple(unknown_operators(model)),
    )
    model = model.clone()
    apply(model, source, Normalize())
    origins = {
        node.outputs[0].name: _origin(node) for node in model.graph.all_nodes() if operator_of(node)
    }
    apply(model, source, FoldConstants(operators=False))
    return replace(header, quantizers=tuple(_quantizers(model, origins)))


def _origin(node: ir.Node) -> str:
    """The tensor that a node quantizes: the stored one where nodes only move its elements."""
    value = node.inputs[0]
    while value is not None:
        producer = value.producer()
        if producer is None or effect_of(producer) is not Effect.MOVE:
            return str(value.name)
        value = producer.inputs[0]
    return ""


def _quantizers(model: ir.Model, origins: dict[str | None, str]) -> Iterator[Quantizer]:
    constant = set(model.graph.initializers.values())
    for node in model.graph.all_nodes():
        operator = operator_of(node)
        if node.inputs and all(value is None or value in constant for value in node.inputs):
            constant.update(node.outputs)
        if operator is None or node.inputs[0] is None:
            continue
        x = node.inputs[0]
        parameters = {
            declared.name: _parameter(value)
            for declared, value in zip(operator.inputs[1:], node.inputs[1:], strict=False)
            if value is not None
        }
        yield Quantizer(
            node=label_of(node),
            operator=operator.onnx_name,
            version=operator.version,
            tensor=origins.get(node.outputs[0].name, str(x.name)),
            role=_role(node, x in constant),
            constant=node.outputs[0] in constant,
            bits=_bits(operator, parameters),
            parameters=parameters,
            attributes={
                each.name: type(each.default)(node.attributes[each.onnx_name].value)
                for each in operator.attributes
            },
        )


def _role(node: ir.Node, constant: bool) -> str:
    x = node.inputs[0]
    if not constant:
        return "input" if x is not None and x.is_graph_input() else "activation"
    readers = node.outputs[0].uses()
    products = [(product_of(reader), at) for reader, at in readers]
    bias = all(product is not None and product.bias == at for product, at in products)
    return "bias" if products and bias else "weight"


def _parameter(value: ir.Value) -> Parameter:
    if value.const_value is None:
        return Parameter("computed", None, None, None)
    array = array_of(value)
    if array.dtype.kind not in "fiub":
        raise ModelError(f"{value.name!r} must hold numbers to quantize with, got {array.dtype}")
    array = array.astype(np.float64)
    varying = [axis - array.ndim for axis, size in enumerate(array.shape) if size != 1]
    granularity = ("per-tensor", "per-channel")[len(varying)] if len(varying) < 2 else "per-element"
    smallest, largest = (float(array.min()), float(array.max())) if array.size else (None, None)
    return Parameter(granularity, varying[0] if len(varying) == 1 else None, smallest, largest)


def _bits(operator: Operator, parameters: dict[str, Parameter]) -> str:
    widths = {}
    for name, each in parameters.items():
        if name.endswith("bitwidth"):
            widths[name.removesuffix("bitwidth").strip("_")] = _range(each)
    if not widths:
        return str(math.ceil(math.log2(_levels(operator))))
    return " ".join(f"{word[:3]} {width}".strip() for word, width in widths.items())


def _range(parameter: Parameter) -> str:
    if parameter.smallest is None or parameter.largest is None:
        return "?"
    if parameter.smallest == parameter.largest:
        return f"{parameter.smallest:g}"
    return f"{parameter.smallest:g}..{parameter.largest:g}"


@cache
def _levels(operator: Operator) -> int:
    """How many values an operator without a width has: as many as it is seen to give."""
    x = np.arange(-1000, 1000, dtype=np.float32)
    return len(np.unique(operator.function(x, *([1.0] * (operator.required_inputs - 1)))))


def _typed(value: ir.Value) -> str:
    dtype = value.dtype.name.lower() if value.dtype is not None else "?"
    sizes = ["?"] if value.shape is None else [str(size) for size in value.shape]
    return f"{dtype} [{', '.join(sizes)}]"
