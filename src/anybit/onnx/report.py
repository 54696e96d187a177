# SPDX-License-Identifier: Apache-2.0
"""Reports of conversions, node by node."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.passes import PassResult


@dataclass(frozen=True)
class ConversionStep:
    """The conversion of one node.

    Attributes:
        node: The node's name, or that of its output.
        operator: Its operator before the conversion.
        action: The result, in a few words: "DequantizeLinear int4", "standard operators", ...
        reason: The reason for that form; empty if it is the shortest.
        exact: Whether all values are preserved. Otherwise `reason` describes the change.
    """

    node: str
    operator: str
    action: str
    reason: str = ""
    exact: bool = True


@dataclass
class ConversionReport(PassResult):
    """The result of a pass with a report.

    Attributes:
        steps: One per node that was changed, or that could not be.
        left: Reasons for nodes that are left to another pass, by the name of their output.
        remarks: Remarks about the whole model, one line each.
        pairs: The DequantizeLinear that were written.
    """

    steps: tuple[ConversionStep, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    pairs: tuple[ir.Node, ...] = ()
