# SPDX-License-Identifier: Apache-2.0
"""The quantizers of a graph: one description for nodes of this package and of ONNX.

The graph is normalized. A QuantizeLinear and the DequantizeLinear that reads its codes are one
quantizer; so is a DequantizeLinear of stored codes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.op_traits import get_bias_index
from anybit.onnx.operators.registry import find_operator, get_keywords
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.metadata import read_grid
from anybit.onnx.quantizers.nodes import get_dtype, is_dequantize, is_quantize, read_scaling
from anybit.onnx.quantizers.trace import Trace, Traces
from anybit.ops import Input, Operator
from anybit.ops.arrays import convert_parameter
from anybit.ops.domain import REAL, Role
from anybit.ops.grids import Call, Coding, Grid, IntegerGrid, Spacing

Use: TypeAlias = Literal["weight", "bias", "input", "activation"]
"""The use of a quantizer's output."""

_LINEAR_INPUTS = (
    Input("x", REAL, Role.DATA, optional=False),
    Input("scale", REAL, Role.SCALE, optional=False),
    Input("zero-point", REAL, Role.ZERO_POINT, optional=True),
)
_LINEAR_ATTRIBUTES = {"axis": 1, "block_size": 0}


@dataclass(frozen=True)
class Quantizer:
    """One quantizer.

    Attributes:
        node: The node with the quantized values: of this package, a DequantizeLinear, or a
            QuantizeLinear whose codes have other readers.
        operator: The operator of a node of this package; None for ONNX's pair.
        x: The quantized input: that of the QuantizeLinear of a pair, or the stored codes.
        parameters: The constant parameters by the names of `inputs`, as they are stored.
        attributes: All attributes by their Python names.
        constant: Whether x is constant.
        quantize: The QuantizeLinear of a pair.
        spelled: The operator as the file spells it.
        trace: The source of the codes of a DequantizeLinear, if it is known.
    """

    node: ir.Node
    operator: Operator | None
    x: ir.Value | None
    parameters: Mapping[str, Array]
    attributes: Mapping[str, bool | int | str]
    constant: bool
    quantize: ir.Node | None = None
    spelled: str = ""
    trace: Trace | None = None

    @property
    def kind(self) -> str:
        """Return the name of the operator, or of the pair of nodes."""
        if self.operator is not None:
            return self.operator.onnx_name
        return "QDQ" if self.quantize is not None or self.constant else self.node.op_type

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Return the declarations of the inputs, including x."""
        return _LINEAR_INPUTS if self.operator is None else self.operator.inputs

    @property
    def role(self) -> Use:
        """Return the use of the output, judged by its readers."""
        if not self.constant:
            return "input" if self.x is not None and self.x.is_graph_input() else "activation"
        readers = self.node.outputs[0].uses()
        biases = [get_bias_index(reader) == at for reader, at in readers]
        return "bias" if biases and all(biases) else "weight"

    @property
    def computed(self) -> tuple[str, ...]:
        """Return the names of the parameters that the graph computes."""
        pairs = zip(self.inputs[1:], self.node.inputs[1:], strict=False)
        names = (declared.name for declared, value in pairs if value is not None)
        return tuple(name for name in names if name not in self.parameters)

    @property
    def static(self) -> bool:
        """Return whether every parameter is constant."""
        return not self.computed

    @property
    def call(self) -> Call:
        return Call(self.parameters, self.attributes)

    @property
    def preceding(self) -> str:
        """Return the operator that computes x; empty for inputs and constants."""
        producer = None if self.x is None else self.x.producer()
        return "" if producer is None else producer.op_type

    def get_parameter(self, *roles: Role) -> Array | None:
        """Return the first constant parameter that has one of these roles."""
        for role in roles:
            for declared in self.inputs[1:]:
                if declared.role is role and declared.name in self.parameters:
                    return self.parameters[declared.name]
        return None

    @cached_property
    def grid(self) -> Grid | None:
        """Return the values that the quantizer can return, if known."""
        try:
            return self.check_grid()
        except ModelError:
            return None

    @property
    def block_size(self) -> int:
        """Return the elements that share a parameter along one axis; 0 without blocks."""
        return int(self.attributes.get("block_size", 0)) if self.operator is None else 0

    @cached_property
    def element_grid(self) -> Grid | None:
        """Return the same as `grid`, with parameters per block repeated for their elements."""
        if not self.block_size:
            return self.grid
        try:
            return find_code_grid(self.node, self.trace, blocks=True)
        except ModelError:
            return None

    def check_grid(self) -> Grid | None:
        """Return the same as `grid`, after checks.

        Raises:
            ModelError: The operator would refuse a parameter, or it cannot be read.
        """
        if self.operator is None:
            return find_code_grid(self.node, self.trace)
        if self.operator.grid is None:
            return None
        values = {}
        for declared, value in zip(self.inputs[1:], self.node.inputs[1:], strict=False):
            if declared.name in self.parameters:
                values[declared.name] = self._check_parameter(
                    declared, self.parameters[declared.name]
                )
            elif value is not None and is_constant(value):
                read_array(value)  # which reports why it cannot be read
        return self.operator.grid(Call(values, self.attributes)) if self.static else None

    def _check_parameter(self, declared: Input, array: Array) -> Array:
        """Return a parameter in the compute type of the operator."""
        try:
            return to_compute_type(declared, array)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{describe(self.node)}: {error}") from error

    def find_spacing(self, shape: tuple[int, ...], *, made: bool) -> Spacing | None:
        """Return the distances of the values of a tensor of this shape: the output, or x.

        None if the scale is unknown or does not broadcast.
        """
        inner = any(declared.role is Role.IN_SCALE for declared in self.inputs)
        scales = (Role.SCALE, Role.IN_SCALE) if made or not inner else (Role.IN_SCALE,)
        parts = []
        for roles in (scales, (Role.MANTISSA_BITWIDTH,), (Role.EXPONENT_BIAS,)):
            array = self.get_parameter(*roles)
            parts.append(None if array is None else self._align(array.astype(np.float64), shape))
        try:
            for part in parts:
                if part is not None and part.ndim:
                    np.broadcast_to(part, shape)
        except ValueError:
            return None
        scale, mantissa_bitwidth, exponent_bias = parts
        return None if scale is None else Spacing(np.abs(scale), mantissa_bitwidth, exponent_bias)

    def _align(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Return a parameter per channel or per block in a shape that broadcasts to x."""
        if array.size == 1:
            return array.reshape(())
        axis, block = (int(self.attributes.get(name, 0)) for name in _LINEAR_ATTRIBUTES)
        if "axis" not in self.attributes or not -len(shape) <= axis < len(shape):
            return array
        if block > 0 and array.ndim == len(shape):
            repeated = np.repeat(array, block, axis)
            return np.take(repeated, np.arange(min(shape[axis], repeated.shape[axis])), axis)
        if array.ndim != 1:
            return array
        sizes = [1] * len(shape)
        sizes[axis] = array.size
        return array.reshape(sizes)


@dataclass(frozen=True)
class OwnQuantizer(Quantizer):
    """A node of this package: a quantizer, or a dequantizer if requested."""

    operator: Operator


def get_declared_inputs(node: ir.Node) -> tuple[Input, ...]:
    """Return the declarations of the inputs of a quantizer; () for other nodes."""
    if is_quantize(node) or is_dequantize(node):
        return _LINEAR_INPUTS
    operator = find_operator(node)
    return () if operator is None else operator.inputs


def find_quantizer(
    node: ir.Node, traces: Traces, arrays: Mapping[str, Array] | None = None
) -> Quantizer | None:
    """Return the quantizer of a node. Calls for many nodes should share `traces`.

    Its parameters are the stored ones, or those of a run: `arrays` are all tensors by name. A node
    of this package that reads codes is not a quantizer: see `find_own_quantizer`.

    Raises:
        ModelError: The number of inputs or an attribute is invalid.
    """
    if is_quantize(node) or is_dequantize(node):
        return _make_linear_quantizer(node, traces, arrays)
    own = find_own_quantizer(node, arrays)
    return None if own is None or own.operator.is_dequantizer else own


def find_own_quantizer(
    node: ir.Node, arrays: Mapping[str, Array] | None = None
) -> OwnQuantizer | None:
    """Return a quantizer or dequantizer of this package with its parameters.

    Raises:
        ModelError: See `find_quantizer`.
    """
    operator = find_operator(node)
    if operator is None:
        return None
    x = node.inputs[0]
    return OwnQuantizer(
        node=node,
        operator=operator,
        x=x,
        parameters=_collect_parameters(node, arrays),
        attributes=get_keywords(node, operator),
        constant=x is not None and is_constant(x),
        spelled=node.op_type,
    )


def _make_linear_quantizer(
    node: ir.Node, traces: Traces, arrays: Mapping[str, Array] | None
) -> Quantizer:
    trace = find_trace(node, traces)
    quantize = None if trace is None else trace.source.producer()
    if trace is not None and quantize is None:
        x: ir.Value | None = trace.source
    else:
        x = next(iter((quantize or node).inputs), None)
    attributes = {
        name: get_attribute(node, name, default) for name, default in _LINEAR_ATTRIBUTES.items()
    }
    return Quantizer(
        node=node,
        operator=None,
        x=x,
        parameters=_collect_parameters(node, arrays),
        attributes=attributes,
        constant=x is not None and is_constant(x),
        quantize=quantize,
        spelled=node.op_type,
        trace=trace,
    )


def find_quantizers(model: ir.Model) -> list[Quantizer]:
    """Return each quantizer of a model once, in the order of their nodes.

    Dequantizers of this package are included, like DequantizeLinear.

    Raises:
        ModelError: See `find_quantizer`.
    """
    constants = set(model.graph.initializers.values())
    quantizers: list[Quantizer] = []
    traces = Traces()
    for node in model.graph.all_nodes():
        if node.inputs and all(value is None or value in constants for value in node.inputs):
            constants.update(node.outputs)
        quantizer = find_quantizer(node, traces) or find_own_quantizer(node)
        if quantizer is not None and quantizer.x is not None:
            quantizers.append(replace(quantizer, constant=quantizer.x in constants))
    paired = {quantizer.quantize for quantizer in quantizers}
    shown: set[ir.Node] = set()
    once = []
    for quantizer in quantizers:
        # Each reader may have its own DequantizeLinear, as runtimes prefer.
        key = quantizer.quantize or quantizer.node
        if quantizer.node not in paired and key not in shown:
            shown.add(key)
            once.append(quantizer)
    return once


def _collect_parameters(node: ir.Node, arrays: Mapping[str, Array] | None) -> dict[str, Array]:
    parameters = {}
    for declared, value in zip(get_declared_inputs(node)[1:], node.inputs[1:], strict=False):
        if value is not None and arrays is not None:
            if value.name is not None and value.name in arrays:
                parameters[declared.name] = arrays[value.name]
        elif value is not None and is_constant(value):
            try:
                parameters[declared.name] = read_array(value)
            except ModelError:  # reported when the model is folded
                continue
    return parameters


# Parameters are converted to the compute type of this x.
_FLOAT32 = np.zeros((), np.float32)


def to_compute_type(declared: Input, array: Array) -> Array:
    """Return a parameter in the compute type of its operator; read-only.

    Raises:
        TypeError: The array does not hold real numbers.
        ValueError: A value is outside the domain.
    """
    if array.size == 1 and array.dtype.isbuiltin == 1:
        return _make_scalar(declared, array.dtype, array.shape, array.tobytes())
    return _convert(declared, array)


@lru_cache(2**14)
def _make_scalar(declared: Input, dtype: np.dtype, shape: tuple[int, ...], data: bytes) -> Array:
    """Return one element: the same few widths and zero-points occur again and again in a model."""
    return _convert(declared, np.frombuffer(data, dtype).reshape(shape))


def _convert(declared: Input, array: Array) -> Array:
    with np.errstate(all="ignore"):  # a float64 scale may overflow
        return np.asarray(convert_parameter(array, declared.domain, _FLOAT32, declared.name))


def find_trace(node: ir.Node, traces: Traces) -> Trace | None:
    """Return the trace of the codes of a DequantizeLinear, if there is one."""
    codes = node.inputs[0] if node.inputs else None
    if codes is None or not is_dequantize(node):
        return None
    try:
        return traces.trace(codes)
    except Inexpressible:
        return None


def find_code_grid(node: ir.Node, trace: Trace | None, *, blocks: bool = False) -> Grid | None:
    """Return the grid of a node of ONNX's pair, narrowed by Clips and metadata.

    Parameters per block are supported with `blocks` only, repeated for their elements.
    """
    codes = node.inputs[0] if node.inputs and is_dequantize(node) else None
    try:
        dtype = None if codes is None else get_dtype(codes)
        grid = read_scaling(node, dtype, blocks=blocks).grid
    except Inexpressible:
        return None
    if not isinstance(grid, IntegerGrid):
        return grid
    # QuantizeLinear adds the zero-point after rounding.
    coding = Coding.OTHER if grid.zeropt.any() else Coding.NEAREST
    low, high = float(grid.lowest), float(grid.highest)
    if trace is not None:
        low, high = max(low, trace.lowest), min(high, trace.highest)
    if not low <= high:
        return None
    clipped = replace(grid, codes=range(int(low), int(high) + 1), coding=coding)
    if codes is None or not is_constant(codes):
        return clipped
    return read_grid(clipped, read_array(codes), node.metadata_props) or clipped
