# SPDX-License-Identifier: Apache-2.0
"""Nodes that may follow a value after ONNX Runtime has moved and dropped nodes."""

from collections.abc import Iterable

import onnx_ir as ir

from anybit.onnx.qdq.fusions import branch_results, does_nothing
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize

_SELECTING = {"MaxPool", "ReduceMax", "ReduceMin"}
_FARTHEST = 1000


class TooFarError(Exception):
    """More nodes follow a value than the search allows."""


class Reach:
    """The nodes of a model, and the values that reach them.

    Quantizers are moved across data movement, or dropped around it; nodes without effect are
    dropped.
    """

    def __init__(self, nodes: Iterable[ir.Node]) -> None:
        self._results = branch_results(nodes)

    def after(self, values: Iterable[ir.Value]) -> tuple[dict[ir.Value, None], list[ir.Node]]:
        """Return the values that may merge with any of `values`, and the nodes that read them.

        Raises:
            TooFarError: There are more of them than the search allows.
        """
        reached = dict.fromkeys(values)
        readers: list[ir.Node] = []
        waiting = list(reached)
        while waiting:
            value = waiting.pop()
            following = [self._results[value]] if value in self._results else []
            for reader, _ in value.uses():
                readers.append(reader)
                if _passes(reader):
                    following += reader.outputs
            new = [result for result in dict.fromkeys(following) if result not in reached]
            reached.update(dict.fromkeys(new))
            waiting += new
            if len(reached) > _FARTHEST:
                raise TooFarError
        return reached, readers


def _passes(node: ir.Node) -> bool:
    """Return whether quantizers may be moved across a node, or the node may be dropped."""
    if node.domain or is_quantize(node) or is_dequantize(node):
        return False
    return node.op_type in _SELECTING or does_nothing(node)
