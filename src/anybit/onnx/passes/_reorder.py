# SPDX-License-Identifier: Apache-2.0
"""Reshaped and transposed constants, quantized or not, for one reader."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.editor import Editor, drop_if_unread
from anybit.onnx.graph.layout import Order
from anybit.onnx.graph.require import require_graph, require_input, require_producer
from anybit.onnx.operators.registry import find_operator

Change: TypeAlias = Callable[[Array], Array]


def is_known(value: ir.Value | None) -> bool:
    """Return whether a value is a constant or a quantized constant."""
    return value is not None and (is_constant(value) or _quantizes_constants(value.producer()))


def get_rank(value: ir.Value) -> int | None:
    """Return the rank of a known value."""
    producer = value.producer()
    source = value if producer is None else producer.inputs[0]
    if source is None or source.const_value is None:
        return None
    return len(source.const_value.shape)


def change_value(value: ir.Value, change: Change, editor: Editor, reader: ir.Node) -> ir.Value:
    """Return a known value with other axes for one reader; other readers keep the original.

    `change` is applied to the constant, and to the parameters of its quantizer: these have the rank
    of x or less, and broadcast with x.
    """
    if is_constant(value):
        array = read_array(value)
        new = change(array)
        if new is array:
            return value
        tensor = ir.tensor(np.ascontiguousarray(new), dtype=value.dtype)
        return editor.add_constant(str(value.name), tensor)
    quantizer = require_producer(value)
    inputs = [value and change_value(value, change, editor, reader) for value in quantizer.inputs]
    node = ir.Node(
        quantizer.domain,
        quantizer.op_type,
        inputs,
        list(quantizer.attributes.values()),
        name=editor.unique(quantizer.name or quantizer.op_type),
    )
    result = node.outputs[0]
    result.name, result.type = editor.unique(str(value.name)), value.type
    if inputs[0] is not None:
        result.shape = inputs[0].shape
    require_graph(reader).insert_before(reader, node)
    return result


def change_input(node: ir.Node, index: int, change: Change, editor: Editor) -> None:
    """Let a node read a known value with other axes; the name stays if it is the only reader."""
    old = require_input(node, index)
    new = change_value(old, change, editor, node)
    if new is not old:
        node.replace_input_with(index, new)
        drop_unread(old)
        take_names(new, old)


def drop_unread(value: ir.Value | None) -> None:
    """Remove an unused constant, or an unused quantizer with its constants.

    A quantizer that is removed keeps its inputs and outputs, but no uses.
    """
    if value is None or value.uses() or value.is_graph_output():
        return
    quantizer = value.producer()
    if quantizer is None:
        drop_if_unread(value)
    elif quantizer.graph is not None:
        inputs = list(quantizer.inputs)
        value.meta[_INPUTS] = inputs
        quantizer.graph.remove(quantizer, safe=True)
        for parameter in inputs:
            drop_unread(parameter)


_INPUTS = "what the quantizer read before it was removed"


def take_names(new: ir.Value, old: ir.Value) -> None:
    """Give a value, its quantizer and its constants the names of dropped ones."""
    if new is old or old.is_graph_output() or old.uses():
        return
    one, other = new.producer(), old.producer()
    if (one is None) != (other is None):
        return
    new.name = old.name
    if one is None or other is None:
        return
    one.name = other.name
    for value, before in zip(one.inputs, old.meta.get(_INPUTS, ()), strict=False):
        if value is not None and before is not None:
            take_names(value, before)


def make_permutation(order: Order) -> Change:
    """Return the change that transposes x by an order of axes."""

    def change(array: Array) -> Array:
        if array.size == 1:
            return array
        return array.reshape((1,) * (len(order) - array.ndim) + array.shape).transpose(order)

    return change


def make_reshaping(shape: Sequence[int]) -> Change:
    """Return the change that gives a vector another shape of the same size."""

    def change(array: Array) -> Array:
        return array if array.size == 1 else array.reshape(shape)

    return change


def _quantizes_constants(node: ir.Node | None) -> bool:
    if node is None:
        return False
    operator = find_operator(node)
    if operator is None or not operator.broadcasts:
        return False
    return all(value is None or is_constant(value) for value in node.inputs)
