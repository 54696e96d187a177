# SPDX-License-Identifier: Apache-2.0
"""What a model holds: its header, its operators, its weights and above all its quantizers."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit import text
from anybit.errors import ModelError
from anybit.onnx.files.reader import Source, read
from anybit.onnx.graph.facts import Effect, effect_of
from anybit.onnx.graph.names import label_of
from anybit.onnx.operators.known import unknown_operators
from anybit.onnx.passes import FoldConstants, Normalize
from anybit.onnx.preparation import apply
from anybit.onnx.qdq.native_types import native_type
from anybit.onnx.quantizers import Quantizer, quantizers_in
from anybit.ops.domain import Role
from anybit.ops.grids import Coding, FloatGrid, Grid


@dataclass(frozen=True)
class ParameterSummary:
    """A parameter of a quantizer.

    Attributes:
        granularity: "per-tensor", "per-channel", "per-element" or "computed".
        axis: That of the channels, counted from the end (-1 is the last).
        smallest, largest: None where the values are computed when the model runs.
    """

    granularity: str
    axis: int | None
    smallest: float | None
    largest: float | None


@dataclass(frozen=True)
class QuantizerSummary:
    """One quantizer.

    Attributes:
        node: The node that gives the quantized values: its name, or that of its output.
        operator: Its operator; "QDQ" for a QuantizeLinear and the DequantizeLinear behind it, and
            for a DequantizeLinear of stored codes.
        version: That of the operator; 0 for QDQ.
        tensor: What it quantizes: the stored tensor where nodes only move its elements.
        shape: That of the tensor: "[64, 3, 7, 7]".
        role: "weight", "bias", "input" or "activation".
        constant: Whether it is folded when the model is loaded.
        bits: The width of its codes, "2..8" where channels differ, "?" where it is computed.
        codes: Which codes there are: "-8..7", "-1, 1", "float8_e4m3fn to 448"; empty if unknown.
        type: The type of the codes of a QDQ; empty for others.
        scale, zero_point: None where there is none.
        parameters: All of them by their names in the operator.
        attributes: All of them by their Python names.
    """

    node: str
    operator: str
    version: int
    tensor: str
    shape: str
    role: str
    constant: bool
    bits: str
    codes: str
    type: str
    scale: ParameterSummary | None
    zero_point: ParameterSummary | None
    parameters: dict[str, ParameterSummary]
    attributes: dict[str, bool | int | str]


@dataclass(frozen=True)
class Summary:
    """A model file. Opsets, domains and IR version are those of the file, not of what is run.

    Attributes:
        ir_version, producer, opsets: The header.
        domains: How many nodes there are of each domain; "" is the standard one.
        operators: How many there are of each, most common first: "Conv", "anybit::DynamicQuantize".
        nodes: How many there are, those of subgraphs included.
        constant_bytes: The size of all stored tensors, be they initializers or Constant nodes.
        weights: The stored tensors that the model computes with, and their types and shapes;
            not scales, zero-points, widths, shapes and single numbers.
        parameters: How many elements these have.
        inputs, outputs: Their types and shapes: "float32[1, 3, height, ?]".
        quantizers: All of them, in the order of the nodes.
        unknown_operators: Those that nothing here can run.
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


def info(source: Source) -> Summary:
    """Describe a model; it is not run. Scales that constant nodes compute are computed.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.

    Raises:
        ModelError: The model cannot be read, or a quantizer in it cannot be understood.
    """
    file = read(source)
    model = file.clone()
    apply(model, source, Normalize())
    origins = _origins(model)
    apply(model, source, FoldConstants(operators=False))
    quantizers = quantizers_in(model)
    weights = _weights(model, quantizers)
    stored = set(file.graph.initializers.values())
    domains = Counter(node.domain for node in file.graph.all_nodes())
    return Summary(
        ir_version=file.ir_version or 0,
        producer=f"{file.producer_name or ''} {file.producer_version or ''}".strip(),
        opsets=dict(file.graph.opset_imports),
        domains=dict(domains),
        operators=dict(Counter(map(_operator, file.graph.all_nodes())).most_common()),
        nodes=domains.total(),
        constant_bytes=sum(tensor.nbytes for tensor in _stored(file)),
        weights={str(value.name): _typed(value) for value in weights},
        parameters=sum(_size(value) for value in weights),
        inputs={str(v.name): _typed(v) for v in file.graph.inputs if v not in stored},
        outputs={str(value.name): _typed(value) for value in file.graph.outputs},
        quantizers=tuple(_summary(each, origins) for each in quantizers),
        unknown_operators=tuple(unknown_operators(file)),
    )


def _operator(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _stored(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """All tensors of a file."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for node in model.graph.all_nodes():
        attribute = node.attributes.get("value")
        tensor = None if attribute is None or attribute.is_ref() else attribute.value
        if node.op_type == "Constant" and isinstance(tensor, ir.TensorProtocol):
            yield tensor


def _weights(model: ir.Model, quantizers: Iterable[Quantizer]) -> list[ir.Value]:
    """The stored tensors of more than one number that are neither parameters nor shapes."""
    parameters, codes = set(), set()
    for quantizer in quantizers:
        pair = (quantizer.node, quantizer.quantize)
        parameters |= {value for node in pair if node is not None for value in node.inputs[1:]}
        codes.add(quantizer.x)
    found = []
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or not len(tensor.shape) or value in parameters - codes:
                continue
            if value in codes or tensor.dtype.is_floating_point():
                found.append(value)
    return found


def _size(value: ir.Value) -> int:
    return 0 if value.const_value is None else math.prod(value.const_value.shape.numpy())


def _origins(model: ir.Model) -> dict[str, tuple[str, str]]:
    """For values that other nodes only moved: name and shape of the tensor that they come from."""
    sources: dict[ir.Value, ir.Value] = {}
    for node in model.graph.all_nodes():
        source = node.inputs[0] if node.inputs and effect_of(node) is Effect.MOVE else None
        if source is not None:
            sources[node.outputs[0]] = sources.get(source, source)
    return {
        str(value.name): (str(source.name), text.sizes(_shape(source)))
        for value, source in sources.items()
    }


def _summary(quantizer: Quantizer, origins: dict[str, tuple[str, str]]) -> QuantizerSummary:
    x, operator = quantizer.x, quantizer.operator
    assert x is not None, "listed for what they quantize"
    tensor, shape = origins.get(str(x.name), (str(x.name), text.sizes(_shape(x))))
    parameters = {
        declared.name: _parameter(str(value.name), quantizer.parameters.get(declared.name))
        for declared, value in zip(quantizer.inputs[1:], quantizer.node.inputs[1:], strict=False)
        if value is not None
    }
    by_role = {
        each.role: parameters[each.name] for each in quantizer.inputs if each.name in parameters
    }
    codes = None if operator is not None else _type_of_codes(quantizer)
    return QuantizerSummary(
        node=label_of(quantizer.node),
        operator=quantizer.kind,
        version=0 if operator is None else operator.version,
        tensor=tensor,
        shape=shape,
        role=quantizer.role,
        constant=quantizer.constant and quantizer.known,
        bits=_bits(quantizer, by_role, codes),
        codes=_codes(quantizer.grid),
        type="" if codes is None else _named(codes),
        scale=by_role.get(Role.SCALE),
        zero_point=by_role.get(Role.ZERO_POINT),
        parameters=parameters,
        attributes=dict(quantizer.attributes),
    )


def _parameter(name: str, array: np.ndarray | None) -> ParameterSummary:
    if array is None:
        return ParameterSummary("computed", None, None, None)
    if native_type(ir.DataType.from_numpy(array.dtype)) is None and array.dtype.kind not in "fiub":
        raise ModelError(f"{name!r} must hold numbers to quantize with, got {array.dtype}")
    array = array.astype(np.float64)
    varying = [axis - array.ndim for axis, size in enumerate(array.shape) if size != 1]
    granularity = ("per-tensor", "per-channel")[len(varying)] if len(varying) < 2 else "per-element"
    smallest, largest = (float(array.min()), float(array.max())) if array.size else (None, None)
    axis = varying[0] if len(varying) == 1 else None
    return ParameterSummary(granularity, axis, smallest, largest)


def _type_of_codes(quantizer: Quantizer) -> ir.DataType | None:
    """The type of the codes of one of ONNX's own two."""
    node = quantizer.quantize or quantizer.node
    given = node.inputs[2] if len(node.inputs) > 2 else None
    values = [*([given] if given is not None else []), quantizer.node.inputs[0]]
    if quantizer.kind != "QDQ":
        values += node.outputs
    for value in values[:1] if given is not None else values:
        dtype = None if value is None else (value.const_value or value).dtype
        if native_type(dtype) is not None:
            return dtype
    return None


def _bits(
    quantizer: Quantizer, parameters: dict[Role, ParameterSummary], codes: ir.DataType | None
) -> str:
    if quantizer.grid is not None:
        return str(quantizer.grid.bits)
    if codes is not None:
        return str(codes.bitwidth)
    if Role.BITWIDTH in parameters:
        return _range(parameters[Role.BITWIDTH])
    if Role.EXPONENT_BITWIDTH in parameters:
        parts = (parameters[each] for each in (Role.EXPONENT_BITWIDTH, Role.MANTISSA_BITWIDTH))
        return " ".join(f"{letter}{_range(part)}" for letter, part in zip("em", parts, strict=True))
    if quantizer.operator is not None and quantizer.operator.result_dtype is not None:
        name = quantizer.operator.result_dtype(quantizer.attributes)
        return str(8 * np.dtype(name).itemsize)
    return "?"


def _range(parameter: ParameterSummary) -> str:
    if parameter.smallest is None or parameter.largest is None:
        return "?"
    if parameter.smallest == parameter.largest:
        return f"{parameter.smallest:g}"
    return f"{parameter.smallest:g}..{parameter.largest:g}"


def _codes(grid: Grid | None) -> str:
    if grid is None:
        return ""
    if isinstance(grid, FloatGrid):
        return f"{grid.format} to {grid.format.largest:g}"
    if grid.coding is Coding.SIGN:
        return ", ".join(map(str, grid.codes))
    return f"{grid.lowest}..{grid.highest}"


def _shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    if value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else size.value for size in value.shape)


def _typed(value: ir.Value) -> str:
    dtype = value.dtype if value.const_value is None else value.const_value.dtype
    return text.typed("?" if dtype is None else _named(dtype), _shape(value))


def _named(dtype: ir.DataType) -> str:
    """A type as NumPy calls it."""
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return "string" if dtype is ir.DataType.STRING else "?"
    return str(dtype.numpy())
