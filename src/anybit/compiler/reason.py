# SPDX-License-Identifier: Apache-2.0
"""Reasons why a node stays float32.

Stages return reasons as values. Inside a stage they travel as exceptions, which it catches.
"""

from dataclasses import dataclass
from typing import TypeVar

import onnx_ir as ir

from anybit.quant_types.grids import OffGridError

T = TypeVar("T")


@dataclass(frozen=True)
class Reason:
    """Why a node stays float32.

    Attributes:
        text: The reason, as reports show it.
        node: The node that has to stay float32 if it is not the one that was to be lowered.
    """

    text: str
    node: ir.Node | None = None

    def __str__(self) -> str:
        return self.text


class Unsupported(Exception):
    """Integer code for a node does not exist, for a reason. Never leaves a stage."""

    @property
    def reason(self) -> Reason:
        """The message as a value."""
        return Reason(str(self))


class MustStayFloat(Exception):
    """An earlier node has to stay float32. Never leaves the partition stage."""

    def __init__(self, node: ir.Node, text: str) -> None:
        super().__init__(text)
        self.node = node
        self.reason = Reason(text)


UNSUPPORTED = (Unsupported, OffGridError)
"""Exceptions that the evaluation of float nodes on codes raises."""


def accept(result: T | Reason) -> T:
    """Return the result of a later stage.

    Raises:
        Unsupported: It is the reason why there is none.
        MustStayFloat: It is such a reason, and names another node.
    """
    if not isinstance(result, Reason):
        return result
    if result.node is not None:
        raise MustStayFloat(result.node, result.text)
    raise Unsupported(result.text)
