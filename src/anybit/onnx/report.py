# SPDX-License-Identifier: Apache-2.0
"""What a conversion did, node by node."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.passes import PassResult


@dataclass(frozen=True)
class Step:
    """What became of one node.

    Attributes:
        node: The node's name, or that of its output.
        operator: Its operator before the conversion.
        action: What it became, in a few words: "DequantizeLinear int4", "standard operators", ...
        reason: Why that, and not something shorter; empty where there is nothing to explain.
        exact: Whether all values stay what they were. Otherwise `reason` says what changes.
    """

    node: str
    operator: str
    action: str
    reason: str = ""
    exact: bool = True


@dataclass
class Report(PassResult):
    """The result of a pass that says what it did.

    Attributes:
        steps: One per node that was changed, or that could not be.
        left: Why nodes stay for another pass, by the name of their output.
        remarks: What there is to know of the whole model, one line each.
        pairs: The DequantizeLinear that were written.
    """

    steps: tuple[Step, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    pairs: tuple[ir.Node, ...] = ()
