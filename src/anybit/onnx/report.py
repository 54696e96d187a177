# SPDX-License-Identifier: Apache-2.0
"""What a conversion did, node by node."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """What became of one node.

    Attributes:
        node: The node's name, or that of its output.
        operator: Its operator before the conversion.
        action: What it became, in a few words: "QuantizeLinear int4", "standard operators", ...
        reason: Why that, and not something shorter; empty where there is nothing to explain.
        exact: Whether all values stay what they were. Otherwise `reason` says what changes.
    """

    node: str
    operator: str
    action: str
    reason: str = ""
    exact: bool = True
