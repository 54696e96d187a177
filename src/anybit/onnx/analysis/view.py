# SPDX-License-Identifier: Apache-2.0
"""The state of the analysis, as the rules use it."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.formats import LARGEST_FLOAT32
from anybit.onnx.analysis.abstract_values import MOST_CHANNELS, AbstractValue, from_interval
from anybit.onnx.analysis.constants import from_constant, recover_codes
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.shapes import get_proven_sizes
from anybit.onnx.graph.walk import iter_tensors
from anybit.onnx.quantizers.trace import Traces

# Limits on computed and stored elements, for any model.
_ROOM = 2**24

_FEW_BITS = {ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT2, ir.DataType.UINT2}


class View:
    """Abstract values, and proven sizes."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.opset = model.graph.opset_imports.get("", 1)
        self.traces = Traces()
        self.abstracts: dict[ir.Value, AbstractValue] = {}
        self._constants: dict[ir.Value, AbstractValue | None] = {}
        self._recovered: dict[tuple[ir.Value, int], AbstractValue | None] = {}
        self.quantized: dict[tuple[object, ...], AbstractValue | None] = {}
        self._arrays: dict[ir.Value, Array] = {}
        self._budget = _ROOM + 4 * sum(tensor.size for tensor in iter_tensors(model))

    def can_afford(self, size: int) -> bool:
        """Return whether that many more elements may be computed.

        Small files can require any number.
        """
        self._budget -= size
        return self._budget >= 0

    def list_values(self) -> dict[ir.Value, AbstractValue]:
        """Return all abstract values, including constants."""
        constants = {
            value: abstract for value, abstract in self._constants.items() if abstract is not None
        }
        for (value, _), abstract in self._recovered.items():
            if abstract is not None:
                constants[value] = abstract
        return constants | self.abstracts

    def get_abstract(self, value: ir.Value | None) -> AbstractValue | None:
        """Return the abstract value of a value; None if nothing is known."""
        if value is None:
            return None
        inferred = self.abstracts.get(value)
        if inferred is not None or not is_constant(value):
            return inferred
        if value not in self._constants:
            array = self.get_array(value)
            self._constants[value] = None if array is None else from_constant(array)
        return self._constants[value]

    def get_weight(self, value: ir.Value, axis: int) -> AbstractValue | None:
        """Return the abstract value of a constant with codes, from a quantizer or recovered.

        `axis` is that of the channels that may have different scales, counted from the end.
        """
        abstract = self.get_abstract(value)
        if abstract is None or abstract.integers is not None or not is_constant(value):
            return abstract
        key = value, axis
        if key not in self._recovered:
            array = self.get_array(value)
            self._recovered[key] = None if array is None else recover_codes(array, axis)
        return self._recovered[key] or abstract

    def get_array(self, value: ir.Value | None) -> Array | None:
        """Return the array of a numeric constant, stored or computed; None for other values."""
        if value is None or not is_constant(value) or value.const_value is None:
            return None if value is None else self._arrays.get(value)
        try:
            array = read_array(value)
        except ModelError:  # reported when the model is folded
            return None
        if array.dtype.isbuiltin != 1 and value.const_value.dtype in _FEW_BITS:
            return array.astype(np.int8)  # not a type of NumPy itself
        return array if array.dtype.isbuiltin == 1 and array.dtype.kind in "fiub" else None

    def store(self, value: ir.Value, array: Array) -> None:
        """Store the output of a node with constant inputs."""
        self._arrays[value] = array

    def get_integers(self, value: ir.Value | None) -> list[int] | None:
        """Return the elements of a constant with a few integers."""
        array = self.get_array(value)
        small = array is not None and array.dtype.kind in "iu" and array.size <= 64
        return [int(number) for number in array.ravel()] if array is not None and small else None

    def get_sizes(self, value: ir.Value | None) -> Sequence[int | None] | None:
        """Return the proven sizes of a value."""
        return None if value is None else get_proven_sizes(value, self.model)

    def get_rank(self, value: ir.Value | None) -> int | None:
        sizes = self.get_sizes(value)
        return None if sizes is None else len(sizes)

    def resolve_axis(self, value: ir.Value | None, axis: int) -> int | None:
        """Return an axis counted from the end.

        None if the rank is unknown or there is no such axis.
        """
        rank = self.get_rank(value)
        if rank is None or not -rank <= axis < rank:
            return None
        return axis % rank - rank


def may_be_float32(value: ir.Value) -> bool:
    """Return whether a value may be a float32 tensor, which abstract values describe."""
    return value.dtype in (None, ir.DataType.FLOAT)


def make_unknown(value: ir.Value | None) -> AbstractValue:
    """Return the abstract value of a float tensor without further knowledge: inputs are finite."""
    if value is not None and value.is_graph_input():
        return from_interval(-LARGEST_FLOAT32, LARGEST_FLOAT32)
    return from_interval(-np.inf, np.inf, nan=True)


def get_input(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, which may have fewer."""
    return node.inputs[index] if index < len(node.inputs) else None


def find_constant_channels(array: Array) -> tuple[int | None, Array] | None:
    """Return the axis, counted from the end, along which a constant varies, and its values.

    None if it varies along several axes, or has no or very many elements.
    """
    if array.size > MOST_CHANNELS:
        return None
    varying = [axis - array.ndim for axis, size in enumerate(array.shape) if size != 1]
    if len(varying) > 1 or array.size == 0:
        return None
    values = np.asarray(array).reshape(-1 if varying else ())
    return (varying[0] if varying else None), values
