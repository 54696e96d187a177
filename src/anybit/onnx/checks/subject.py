# SPDX-License-Identifier: Apache-2.0
"""A model as the rules of a check see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.operators.registry import keywords_of, operator_of
from anybit.ops import Operator
from anybit.ops.grids import Call, Grid


@dataclass(frozen=True)
class Site:
    """One node of our operators.

    Attributes:
        node: The node in the normalised model.
        operator: What it stands for.
        spelled: The operator as the file spells it.
        parameters: The known parameters by the names of the inputs, x left out.
        attributes: All attributes by their Python names.
    """

    node: ir.Node
    operator: Operator
    spelled: str
    parameters: Mapping[str, Array]
    attributes: Mapping[str, Any]

    @property
    def call(self) -> Call:
        return Call(self.parameters, self.attributes)

    @property
    def x(self) -> ir.Value | None:
        return self.node.inputs[0]

    @property
    def constant(self) -> bool:
        """Whether it quantizes a weight, or another constant."""
        return self.x is not None and is_constant(self.x)

    @property
    def known(self) -> bool:
        """Whether every parameter that the node has is known before it runs."""
        return len(self.parameters) == sum(value is not None for value in self.node.inputs[1:])

    @cached_property
    def grid(self) -> Grid | None:
        """The values that it can give, if that can be said."""
        if self.operator.grid is None or not self.known:
            return None
        try:
            return self.operator.grid(self.call)
        except (ValueError, OverflowError):  # parameters that the operator itself refuses
            return None

    @property
    def before(self) -> str:
        """The operator that computes x; empty for inputs and constants."""
        producer = None if self.x is None else self.x.producer()
        return "" if producer is None else producer.op_type


@dataclass(frozen=True)
class Subject:
    """A model under check.

    Attributes:
        file: The model as it is in the file.
        model: The same, normalised, its shapes inferred and its scales and widths computed.
        sites: The nodes of our operators, those left out that cannot be understood.
    """

    file: ir.Model
    model: ir.Model
    sites: tuple[Site, ...]


def subject_of(file: ir.Model, model: ir.Model) -> Subject:
    spelled = {
        value.name: node.op_type for node in file.graph.all_nodes() for value in node.outputs
    }
    sites = []
    for node in model.graph.all_nodes():
        operator = operator_of(node)
        if operator is not None:
            name = spelled.get(node.outputs[0].name, node.op_type)
            attributes = keywords_of(node, operator)
            sites.append(Site(node, operator, name, _parameters(node, operator), attributes))
    return Subject(file, model, tuple(sites))


def _parameters(node: ir.Node, operator: Operator) -> dict[str, Array]:
    found = {}
    for declared, value in zip(operator.inputs[1:], node.inputs[1:], strict=False):
        if value is not None and is_constant(value):
            try:
                found[declared.name] = array_of(value)
            except ModelError:  # it is told when the model is folded
                continue
    return found
