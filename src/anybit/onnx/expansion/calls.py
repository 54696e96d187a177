# SPDX-License-Identifier: Apache-2.0
"""What nodes of ours compute, as expressions; nodes that say the same are traced once."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.expansion.namespace import known_sizes, of_value
from anybit.onnx.expansion.traced import Traced, known
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.names import described
from anybit.onnx.operators.registry import keywords_of
from anybit.ops import Operator
from anybit.ops.domain import Domain
from anybit.ops.expression import operands_first

# Larger constants are those of one node, and would only be kept from being freed.
_LARGEST = 2**8

_Arrays: TypeAlias = tuple[Array | None, ...]


@dataclass(frozen=True)
class Expansion:
    """An expression of standard operators.

    Attributes:
        result: What the node gives.
        inputs: What stands in it for each input of the node; None for one that is left out.
    """

    result: Traced
    inputs: tuple[Traced | None, ...]


class Expansions:
    """The expansions of nodes: long models have thousands of nodes and few different ones.

    Scales differ from node to node. Where an expression combines a parameter only with what the
    runtime will know, it is the same for all its values, so that it is traced with the parameter
    left open. Neutral numbers are not such values: what adds 0 is not written.
    """

    def __init__(self) -> None:
        self._traced: dict[object, Expansion | None] = {}

    def of(self, node: ir.Node, operator: Operator) -> Expansion:
        """What the node computes.

        Raises:
            ModelError: The operator refuses its parameters; a type or a rank is not known.
        """
        arrays = _constants(node)
        if any(array is not None and array.nbytes > _LARGEST for array in arrays):
            return _expansion(node, operator, arrays)
        fixed = _without_open(operator, arrays)
        open_inputs = [index for index, each in enumerate(fixed) if each is not arrays[index]]
        found = None
        if open_inputs:
            signature = _signature(node, operator, fixed)
            if signature not in self._traced:
                self._traced[signature] = _open_expansion(node, operator, fixed, open_inputs)
            found = self._traced[signature]
        if found is None:
            signature = _signature(node, operator, arrays)
            found = self._traced.get(signature) or _expansion(node, operator, arrays)
            self._traced[signature] = found
        return found


def _constants(node: ir.Node) -> _Arrays:
    return tuple(
        array_of(value) if value is not None and is_constant(value) else None
        for value in node.inputs
    )


def _without_open(operator: Operator, arrays: _Arrays) -> _Arrays:
    """The constants, less the parameters whose value may not matter to the expression."""
    domains = [each.domain for each in operator.inputs]
    return arrays[:1] + tuple(
        None if array is not None and _may_be_open(array, domain) else array
        for array, domain in zip(arrays[1:], domains[1:], strict=False)
    )


def _may_be_open(array: Array, domain: Domain) -> bool:
    unlimited = not domain.integer and domain.minimum == -math.inf and domain.maximum == math.inf
    return unlimited and array.dtype.kind == "f" and not np.any((array == 0) | (array == 1))


def _signature(node: ir.Node, operator: Operator, arrays: _Arrays) -> object:
    """All that tracing sees of a node of which these constants are known."""
    parts: list[object] = [operator.name, *keywords_of(node, operator).items()]
    for value, array in zip(node.inputs, arrays, strict=True):
        if array is not None:
            parts.append((array.dtype, array.shape, array.tobytes()))
        elif value is not None:
            shape = None if value.shape is None else known_sizes(value.shape)
            parts.append((value.dtype, shape, is_constant(value)))
        else:
            parts.append(None)
    return tuple(parts)


def _open_expansion(
    node: ir.Node, operator: Operator, arrays: _Arrays, open_inputs: Collection[int]
) -> Expansion | None:
    """The expansion for all values of some parameters; None if they matter to it."""
    try:
        expansion = _expansion(node, operator, arrays)
    except ModelError:  # raised again, if it is not for this reason
        return None
    opened = {expansion.inputs[index] for index in open_inputs}
    # Whether each part has an open parameter in it, and what only the runtime knows.
    parts: dict[Traced, tuple[bool, bool]] = {}
    for each in operands_first(expansion.result, parts):
        of = [parts[operand] for operand in each.operands]
        has_open = each in opened or any(first for first, _ in of)
        has_others = (each.value is not None and each not in opened) or any(last for _, last in of)
        if each.operands and has_open and not has_others:
            return None
        parts[each] = has_open, has_others
    return expansion


def _expansion(node: ir.Node, operator: Operator, arrays: _Arrays) -> Expansion:
    """The expansion if these inputs are known now."""
    arguments = tuple(
        known(array) if array is not None else None if value is None else _traced(node, value)
        for value, array in zip(node.inputs, arrays, strict=True)
    )
    # A known x would send the function to the kernel, known parameters are checked as they are.
    parameters = [
        traced if array is None else array
        for traced, array in zip(arguments[1:], arrays[1:], strict=True)
    ]
    try:
        result = operator.reference(arguments[0], *parameters, **keywords_of(node, operator))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{described(node)}: {error}") from error
    return Expansion(result if isinstance(result, Traced) else known(result), arguments)


def _traced(node: ir.Node, value: ir.Value) -> Traced:
    if value.const_value is not None:
        return of_value(value, value.const_value.dtype.numpy())
    if value.dtype in (None, ir.DataType.UNDEFINED):
        raise ModelError(
            f"{described(node)}: the type of {value.name!r} is not known; declare it in the model"
        )
    return of_value(value, value.dtype.numpy())
