# SPDX-License-Identifier: Apache-2.0
"""Expansions of nodes: expressions of standard operators; equal nodes are traced once."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.expansion.namespace import get_known_sizes, trace_value
from anybit.onnx.expansion.traced import TracedValue, make_literal
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.names import describe
from anybit.onnx.operators.registry import get_keywords
from anybit.ops import Operator
from anybit.ops.domain import Domain
from anybit.ops.expression import iterate_operands_first

# Larger constants occur in one node only; keeping them would hold their memory.
_LARGEST = 2**8

_Arrays: TypeAlias = tuple[Array | None, ...]


@dataclass(frozen=True)
class Expansion:
    """An expression of standard operators.

    Attributes:
        result: The output of the node.
        inputs: The placeholder of each input of the node; None for a missing one.
    """

    result: TracedValue
    inputs: tuple[TracedValue | None, ...]


class Expansions:
    """The expansions of nodes: long models have thousands of nodes and few distinct ones.

    Scales differ from node to node. If an expression combines a parameter only with runtime values,
    it is the same for all values of the parameter, which is then left open. Neutral numbers are an
    exception: adding 0 is not written.
    """

    def __init__(self) -> None:
        self._traced: dict[object, Expansion | None] = {}

    def expand(self, node: ir.Node, operator: Operator) -> Expansion:
        """Return the expansion of a node.

        Raises:
            ModelError: The operator refuses its parameters; a type or a rank is unknown.
        """
        arrays = _read_constants(node)
        if any(array is not None and array.nbytes > _LARGEST for array in arrays):
            return _expand(node, operator, arrays)
        fixed = _drop_open(operator, arrays)
        open_inputs = [index for index, array in enumerate(fixed) if array is not arrays[index]]
        expansion = None
        if open_inputs:
            signature = _make_signature(node, operator, fixed)
            if signature not in self._traced:
                self._traced[signature] = _expand_open(node, operator, fixed, open_inputs)
            expansion = self._traced[signature]
        if expansion is None:
            signature = _make_signature(node, operator, arrays)
            expansion = self._traced.get(signature) or _expand(node, operator, arrays)
            self._traced[signature] = expansion
        return expansion


def _read_constants(node: ir.Node) -> _Arrays:
    return tuple(
        read_array(value) if value is not None and is_constant(value) else None
        for value in node.inputs
    )


def _drop_open(operator: Operator, arrays: _Arrays) -> _Arrays:
    """Return the constants, without the parameters that may be left open."""
    domains = [value.domain for value in operator.inputs]
    return arrays[:1] + tuple(
        None if array is not None and _can_be_open(array, domain) else array
        for array, domain in zip(arrays[1:], domains[1:], strict=False)
    )


def _can_be_open(array: Array, domain: Domain) -> bool:
    unlimited = not domain.integer and domain.minimum == -math.inf and domain.maximum == math.inf
    return unlimited and array.dtype.kind == "f" and not np.any((array == 0) | (array == 1))


def _make_signature(node: ir.Node, operator: Operator, arrays: _Arrays) -> object:
    """Return everything that tracing sees of a node with these constants."""
    parts: list[object] = [operator.name, *get_keywords(node, operator).items()]
    for value, array in zip(node.inputs, arrays, strict=True):
        if array is not None:
            parts.append((array.dtype, array.shape, array.tobytes()))
        elif value is not None:
            shape = None if value.shape is None else get_known_sizes(value.shape)
            parts.append((value.dtype, shape, is_constant(value)))
        else:
            parts.append(None)
    return tuple(parts)


def _expand_open(
    node: ir.Node, operator: Operator, arrays: _Arrays, open_inputs: Collection[int]
) -> Expansion | None:
    """Return the expansion for all values of some parameters; None if their values matter."""
    try:
        expansion = _expand(node, operator, arrays)
    except ModelError:  # raised again by the caller, unless an open parameter caused it
        return None
    opened = {expansion.inputs[index] for index in open_inputs}
    # Whether each part depends on an open parameter, and on a runtime value.
    parts: dict[TracedValue, tuple[bool, bool]] = {}
    for part in iterate_operands_first(expansion.result, parts):
        of = [parts[operand] for operand in part.operands]
        has_open = part in opened or any(first for first, _ in of)
        has_others = (part.value is not None and part not in opened) or any(last for _, last in of)
        if part.operands and has_open and not has_others:
            return None
        parts[part] = has_open, has_others
    return expansion


def _expand(node: ir.Node, operator: Operator, arrays: _Arrays) -> Expansion:
    """Return the expansion with these constant inputs."""
    arguments = tuple(
        make_literal(array) if array is not None else None if value is None else _trace(node, value)
        for value, array in zip(node.inputs, arrays, strict=True)
    )
    # A constant x would be computed by the kernel; constant parameters are checked as they are.
    parameters = [
        traced if array is None else array
        for traced, array in zip(arguments[1:], arrays[1:], strict=True)
    ]
    try:
        result = operator.reference(arguments[0], *parameters, **get_keywords(node, operator))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{describe(node)}: {error}") from error
    return Expansion(result if isinstance(result, TracedValue) else make_literal(result), arguments)


def _trace(node: ir.Node, value: ir.Value) -> TracedValue:
    if value.const_value is not None:
        return trace_value(value, value.const_value.dtype.numpy())
    if value.dtype in (None, ir.DataType.UNDEFINED):
        raise ModelError(
            f"{describe(node)}: the type of {value.name!r} is not known; declare it in the model"
        )
    return trace_value(value, value.dtype.numpy())
