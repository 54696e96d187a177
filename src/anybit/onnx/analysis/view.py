# SPDX-License-Identifier: Apache-2.0
"""The graph as the rules see it: what is known of the values so far."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.formats import LARGEST_FLOAT32
from anybit.onnx.analysis.carriers import MOST_CHANNELS, Carrier, of_interval
from anybit.onnx.analysis.constants import of_constant, recovered
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.shapes import sizes_that_follow
from anybit.onnx.graph.walk import tensors_in
from anybit.onnx.quantizers.trace import Traces

# What may be computed and kept for any model.
_ROOM = 2**24

_FEW_BITS = {ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT2, ir.DataType.UINT2}


class View:
    """Carriers of values, and sizes that can be relied on."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.opset = model.graph.opset_imports.get("", 1)
        self.traces = Traces()
        self.carriers: dict[ir.Value, Carrier] = {}
        self._constants: dict[ir.Value, Carrier | None] = {}
        self._recovered: dict[tuple[ir.Value, int], Carrier | None] = {}
        self.quantized: dict[tuple[object, ...], Carrier | None] = {}
        self._arrays: dict[ir.Value, Array] = {}
        self._budget = _ROOM + 4 * sum(tensor.size for tensor in tensors_in(model))

    def afford(self, size: int) -> bool:
        """Whether that many more elements may be computed; small files can ask for any number."""
        self._budget -= size
        return self._budget >= 0

    def known(self) -> dict[ir.Value, Carrier]:
        """All carriers, those of constants included."""
        found = {value: each for value, each in self._constants.items() if each is not None}
        for (value, _), each in self._recovered.items():
            if each is not None:
                found[value] = each
        return found | self.carriers

    def carrier(self, value: ir.Value | None) -> Carrier | None:
        """What is known of a value; None if nothing is."""
        if value is None:
            return None
        known = self.carriers.get(value)
        if known is not None or not is_constant(value):
            return known
        if value not in self._constants:
            array = self.array(value)
            self._constants[value] = None if array is None else of_constant(array)
        return self._constants[value]

    def weight(self, value: ir.Value, axis: int) -> Carrier | None:
        """As `carrier`, of a constant with its codes, be they those of a quantizer or recovered.

        `axis` is that of the channels that may have scales of their own, counted from the end.
        """
        known = self.carrier(value)
        if known is None or known.integers is not None or not is_constant(value):
            return known
        key = value, axis
        if key not in self._recovered:
            array = self.array(value)
            self._recovered[key] = None if array is None else recovered(array, axis)
        return self._recovered[key] or known

    def array(self, value: ir.Value | None) -> Array | None:
        """The array of a constant of numbers, stored or computed; None of others."""
        if value is None or not is_constant(value) or value.const_value is None:
            return None if value is None else self._arrays.get(value)
        try:
            array = array_of(value)
        except ModelError:  # told when the model is folded
            return None
        if array.dtype.isbuiltin != 1 and value.const_value.dtype in _FEW_BITS:
            return array.astype(np.int8)  # NumPy has no such type of its own
        return array if array.dtype.isbuiltin == 1 and array.dtype.kind in "fiub" else None

    def keep(self, value: ir.Value, array: Array) -> None:
        """Remember what a node gives that reads constants only."""
        self._arrays[value] = array

    def integers(self, value: ir.Value | None) -> list[int] | None:
        """The elements of a constant of a few integers."""
        array = self.array(value)
        small = array is not None and array.dtype.kind in "iu" and array.size <= 64
        return [int(each) for each in array.ravel()] if array is not None and small else None

    def sizes(self, value: ir.Value | None) -> Sequence[int | None] | None:
        """The sizes that a value is certain to have."""
        return None if value is None else sizes_that_follow(value, self.model)

    def rank(self, value: ir.Value | None) -> int | None:
        sizes = self.sizes(value)
        return None if sizes is None else len(sizes)

    def axis(self, value: ir.Value | None, axis: int) -> int | None:
        """An axis counted from the end; None if the rank is not known, or there is no such axis."""
        rank = self.rank(value)
        if rank is None or not -rank <= axis < rank:
            return None
        return axis % rank - rank


def is_float(value: ir.Value) -> bool:
    """Whether it may be a tensor of float32, which is what carriers are about."""
    return value.dtype in (None, ir.DataType.FLOAT)


def unknown(value: ir.Value | None) -> Carrier:
    """What is known of a tensor of floats of which nothing is known: an input holds numbers."""
    if value is not None and value.is_graph_input():
        return of_interval(-LARGEST_FLOAT32, LARGEST_FLOAT32)
    return of_interval(-np.inf, np.inf, nan=True)


def given(node: ir.Node, index: int) -> ir.Value | None:
    """An input of a node, which may have fewer."""
    return node.inputs[index] if index < len(node.inputs) else None


def channels_of_constant(array: Array) -> tuple[int | None, Array] | None:
    """The axis along which a constant varies, counted from the end, and its values along it.

    None if that are several axes, or it has no elements or very many.
    """
    if array.size > MOST_CHANNELS:
        return None
    varying = [axis - array.ndim for axis, size in enumerate(array.shape) if size != 1]
    if len(varying) > 1 or array.size == 0:
        return None
    values = np.asarray(array).reshape(-1 if varying else ())
    return (varying[0] if varying else None), values
