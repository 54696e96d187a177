# SPDX-License-Identifier: Apache-2.0
"""How large one quantisation step of a tensor is.

The step is a parameter of the quantizer that made the tensor, or of one that reads it next. Such
parameters are found by their names among the inputs of our operators, and by their place in the
two linear operators of ONNX.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.comparison.arrays import Array, is_float
from anybit.onnx.graph.names import label_of
from anybit.onnx.operators.registry import operator_of

Arrays: TypeAlias = Mapping[str, Array]

_LINEAR = ("QuantizeLinear", "DequantizeLinear")
_LINEAR_PARAMETERS = ("scale", "zero-point")
# ONNX's default for the axis of these two, and that of our operators which have an axis.
_DEFAULT_AXIS = 1


@dataclass(frozen=True)
class Step:
    """The grid of a quantizer: even with spacing `scale`, or that of a minifloat.

    `scale`, and where they are given `mantissa_bitwidth` and `exponent_bias`, broadcast to the
    tensor. `quantizer` is "itself" or a node's name.
    """

    scale: Array
    quantizer: str
    mantissa_bitwidth: Array | None = None
    exponent_bias: Array | None = None

    @property
    def even(self) -> bool:
        return self.mantissa_bitwidth is None

    def at(self, mask: Array) -> "Step":
        """The step of those elements of a tensor that a mask of its shape selects."""
        picked = (
            None if each is None else np.broadcast_to(each, mask.shape)[mask]
            for each in (self.mantissa_bitwidth, self.exponent_bias)
        )
        scale = np.broadcast_to(self.scale, mask.shape)[mask]
        return Step(scale, self.quantizer, *picked)

    def positions(self, values: Array) -> Array:
        """How many steps each value lies above 0, in float64; between two, a fraction."""
        with np.errstate(all="ignore"):
            y = values.astype(np.float64) / self.scale
            if self.mantissa_bitwidth is None or self.exponent_bias is None:
                return y
            lowest = 1 - self.exponent_bias
            _, above = np.frexp(y)
            exponent = np.maximum(above - 1, lowest)  # frexp's fractions begin at one half
            steps_per_binade = np.exp2(self.mantissa_bitwidth)
            within = np.abs(y) / np.exp2(exponent) * steps_per_binade
            positions = np.sign(y) * (within + (exponent - lowest) * steps_per_binade)
            return np.asarray(np.where(np.isfinite(y), positions, y))


def step_of(value: ir.Value, arrays: Arrays) -> Step | None:
    """The step of a tensor of a normalised graph, given what the graph's tensors hold.

    None if no quantizer makes or reads it, or if the scale is unknown or does not broadcast.
    """
    array = arrays.get(value.name or "")
    if array is None:
        return None
    for node, quantizer in _quantizers(value):
        made = quantizer == "itself"
        found = _parameters(node, arrays, array, made)
        if found is None:
            continue
        try:
            for parameter in found:
                if parameter is not None:
                    np.broadcast_to(parameter, array.shape)
        except ValueError:
            continue
        scale, mantissa_bitwidth, exponent_bias = found
        assert scale is not None
        return Step(np.abs(scale), quantizer, mantissa_bitwidth, exponent_bias)
    return None


def is_quantizer(node: ir.Node) -> bool:
    """Whether it is one of our operators or a linear one of ONNX."""
    return (node.domain == "" and node.op_type in _LINEAR) or operator_of(node) is not None


def parameter_names(node: ir.Node) -> tuple[str, ...]:
    """What the inputs of a quantizer behind x are called; () for other nodes."""
    if not is_quantizer(node):
        return ()
    operator = operator_of(node)
    if operator is None:
        return _LINEAR_PARAMETERS
    return tuple(declared.name for declared in operator.inputs[1:])


def _quantizers(value: ir.Value) -> Iterator[tuple[ir.Node, str]]:
    producer = value.producer()
    if producer is not None and is_quantizer(producer):
        yield producer, "itself"
    for reader, index in value.uses():
        if index == 0 and is_quantizer(reader):
            yield reader, label_of(reader)


def _parameters(
    node: ir.Node, arrays: Arrays, x: Array, made: bool
) -> tuple[Array | None, Array | None, Array | None] | None:
    """Scale, mantissa width and exponent bias; None if there is no scale."""
    if not is_float(x):  # codes of a quantizer: their step is 1
        return np.ones(()), None, None
    places = {name: index for index, name in enumerate(parameter_names(node), start=1)}

    def parameter(*names: str) -> Array | None:
        for name in names:
            index = places.get(name, len(node.inputs))
            given = node.inputs[index] if index < len(node.inputs) else None
            array = None if given is None else arrays.get(given.name or "")
            if array is not None:
                return _along_axis(array.astype(np.float64), node, x)
        return None

    scale = parameter(*(["out_scale"] if made else []), "scale", "scales")
    if scale is None:
        return None
    return scale, parameter("mantissa_bitwidth"), parameter("exponent_bias")


def _along_axis(parameter: Array, node: ir.Node, x: Array) -> Array:
    """A parameter per channel or per block of an axis, in a shape that broadcasts to x."""
    if parameter.size == 1:
        return parameter.reshape(())
    given, block = node.attributes.get("axis"), node.attributes.get("block_size")
    axis = _DEFAULT_AXIS if given is None else given.as_int()
    has_axis = given is not None or node.op_type in _LINEAR
    if not has_axis or not -x.ndim <= axis < x.ndim:
        return parameter
    if block is not None and block.as_int() > 0 and parameter.ndim == x.ndim:
        repeated = np.repeat(parameter, block.as_int(), axis)
        return np.take(repeated, np.arange(min(x.shape[axis], repeated.shape[axis])), axis)
    if parameter.ndim != 1:
        return parameter
    shape = [1] * x.ndim
    shape[axis] = parameter.size
    return parameter.reshape(shape)
