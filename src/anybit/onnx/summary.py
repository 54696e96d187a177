# SPDX-License-Identifier: Apache-2.0
"""Contents of a model: header, operators, weights and quantizers."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from anybit import text
from anybit.onnx.files.reader import Source, read
from anybit.onnx.graph.names import format_operator
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.walk import iter_initializers, iter_nodes, iter_tensors
from anybit.onnx.operators.known import find_unknown_operators
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.passes import FoldConstants, Normalize
from anybit.onnx.preparation import apply_passes
from anybit.onnx.process import relax_gc
from anybit.onnx.qdq.integer_layers import (
    get_code_bias,
    iter_code_parameters,
    iter_code_weights,
)
from anybit.onnx.quantizer_summary import (
    ParameterSummary,
    QuantizerSummary,
    format_type,
    get_shape,
    summarize_quantizer,
)
from anybit.onnx.quantizers.quantizer import Quantizer, find_quantizers

__all__ = ["ModelSummary", "ParameterSummary", "QuantizerSummary", "summarize"]


@dataclass(frozen=True)
class ModelSummary:
    """Contents of a model file, before any preparation.

    Attributes:
        ir_version, producer, opsets: The header.
        domains: Number of nodes per domain; "" is the standard one.
        operators: Number of nodes per operator ("Conv", "anybit::DynamicQuantize"), most common
            first.
        nodes: Number of nodes, including subgraphs.
        constant_bytes: Size of all stored tensors: initializers and Constant nodes.
        weights: Types and shapes of the stored tensors, without scales, zero-points, widths, shapes
            and scalars.
        parameters: Number of elements of the weights.
        inputs, outputs: Types and shapes: "float32[1, 3, height, ?]".
        quantizers: All quantizers, in the order of the nodes.
        unknown_operators: Operators that cannot be run.
    """

    ir_version: int
    producer: str
    opsets: dict[str, int]
    domains: dict[str, int]
    operators: dict[str, int]
    nodes: int
    constant_bytes: int
    weights: dict[str, str]
    parameters: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    quantizers: tuple[QuantizerSummary, ...]
    unknown_operators: tuple[str, ...]


@relax_gc()
def summarize(source: Source) -> ModelSummary:
    """Describe a model without running it. Scales that follow from constants are computed.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.

    Raises:
        ModelError: The model cannot be read, or one of its quantizers is invalid.
    """
    file = read(source)
    model = file.clone()
    apply_passes(model, source, Normalize())
    origins = _trace_origins(model)
    apply_passes(model, source, FoldConstants(operators=False))
    quantizers = find_quantizers(model)
    integer_weights = dict(
        pair for node in iter_nodes(model.graph) for pair in iter_code_weights(node)
    )
    weights = _find_weights(model, quantizers, integer_weights)
    stored = set(file.graph.initializers.values())
    domains = Counter(node.domain for node in file.graph.all_nodes())
    return ModelSummary(
        ir_version=file.ir_version or 0,
        producer=f"{file.producer_name or ''} {file.producer_version or ''}".strip(),
        opsets=dict(file.graph.opset_imports),
        domains=dict(domains),
        operators=dict(Counter(map(format_operator, file.graph.all_nodes())).most_common()),
        nodes=domains.total(),
        constant_bytes=sum(tensor.nbytes for tensor in _iter_stored(file)),
        weights={str(value.name): format_type(value) for value in weights},
        parameters=sum(integer_weights.get(value) or _count_elements(value) for value in weights),
        inputs={str(v.name): format_type(v) for v in file.graph.inputs if v not in stored},
        outputs={str(value.name): format_type(value) for value in file.graph.outputs},
        quantizers=tuple(summarize_quantizer(quantizer, origins) for quantizer in quantizers),
        unknown_operators=tuple(find_unknown_operators(file)),
    )


def _iter_stored(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield all stored tensors."""
    yield from iter_tensors(model)
    for node in model.graph.all_nodes():
        attribute = node.attributes.get("value")
        tensor = None if attribute is None or attribute.is_ref() else attribute.value
        if node.op_type == "Constant" and isinstance(tensor, ir.TensorProtocol):
            yield tensor


def _find_weights(
    model: ir.Model, quantizers: Iterable[Quantizer], integer_weights: Iterable[ir.Value]
) -> list[ir.Value]:
    """Return stored tensors of rank 1 or more that are not quantizer parameters or shapes."""
    parameters: set[ir.Value | None] = set()
    codes: set[ir.Value | None] = set(integer_weights)
    for quantizer in quantizers:
        pair = (quantizer.node, quantizer.quantize)
        parameters |= {value for node in pair if node is not None for value in node.inputs[1:]}
        codes.add(quantizer.x)
    parameters -= codes
    for node in iter_nodes(model.graph):
        if is_multi_threshold(node):
            parameters.update(node.inputs[1:])
        parameters.update(iter_code_parameters(node))
        codes.add(get_code_bias(node))
    weights = []
    for value in iter_initializers(model):
        tensor = value.const_value
        if tensor is None or not len(tensor.shape) or value in parameters:
            continue
        if value in codes or tensor.dtype.is_floating_point():
            weights.append(value)
    return weights


def _count_elements(value: ir.Value) -> int:
    return 0 if value.const_value is None else math.prod(value.const_value.shape.numpy())


def _trace_origins(model: ir.Model) -> dict[str, tuple[str, str]]:
    """Return name and shape of the source tensor of each value that data movement produces."""
    sources: dict[ir.Value, ir.Value] = {}
    for node in model.graph.all_nodes():
        source = node.inputs[0] if node.inputs and has_trait(node, OpTrait.DATA_MOVEMENT) else None
        if source is not None:
            sources[node.outputs[0]] = sources.get(source, source)
    return {
        str(value.name): (str(source.name), text.format_shape(get_shape(source)))
        for value, source in sources.items()
    }
