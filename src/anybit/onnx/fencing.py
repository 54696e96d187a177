# SPDX-License-Identifier: Apache-2.0
"""Fences around nodes that ONNX Runtime would compute in integers with other values."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from anybit.onnx.graph.names import get_label
from anybit.onnx.passes import FencePairs
from anybit.onnx.qdq.integer_kernels import Rewrite, RewriteReason, can_fence, find_rewrites
from anybit.text import format_count, join_names

_NAMED = 3


@dataclass(frozen=True)
class Fencing:
    """Proven properties of a model under ONNX Runtime's default options.

    Attributes:
        fenced: Nodes that have a fence, because their integer operators may differ.
        integer: Nodes that become integer operators, proven to keep their values.
        open: Nodes that may differ and cannot be fenced.
    """

    fenced: tuple[Rewrite, ...]
    integer: tuple[Rewrite, ...]
    open: tuple[Rewrite, ...]

    def details(self) -> str:
        """Return the numbers of fenced nodes with reasons, and of integer nodes."""
        parts = []
        if self.fenced:
            count = format_count(len(self.fenced), "node")
            reason = ", ".join(explain_rewrites(self.fenced))
            parts.append(f"a Min fences {count} against fusion to integer operators: {reason}")
        if self.integer:
            count = format_count(len(self.integer), "MatMul")
            parts.append(f"{count} may run in integers, whose sums overflow on no CPU")
        return "; ".join(parts)


def describe_unfenced(model: ir.Model) -> str:
    """Return a note on nodes that ONNX Runtime may change with default options; "" for none."""
    harmful = [rewrite for rewrite in find_rewrites(model) if rewrite.reason is not None]
    if not harmful:
        return ""
    count = format_count(len(harmful), "node")
    return (
        f"{count} without a fence: {', '.join(explain_rewrites(harmful))}; with default options "
        "ONNX Runtime may give other values or fail to load the model: use --for onnxruntime there"
    )


def explain_rewrites(rewrites: Iterable[Rewrite]) -> Iterator[str]:
    """Yield one phrase per reason: the nodes, and the rewrite by ONNX Runtime."""
    grouped: dict[RewriteReason, list[str]] = {}
    for rewrite in rewrites:
        if rewrite.reason is not None:
            grouped.setdefault(rewrite.reason, []).append(get_label(rewrite.node))
    for reason, labels in grouped.items():
        yield f"{join_names(labels, _NAMED)} ({reason.value})"


def fence(model: ir.Model) -> Fencing:
    """Fence nodes that ONNX Runtime may compute with other values, on any x86 or ARM CPU.

    A fence follows a DequantizeLinear, for all its readers. That may enable another rewrite, which
    needs fewer dequantized inputs, so this is repeated.
    """
    fenced: dict[ir.Node, Rewrite] = {}
    while True:
        rewrites = find_rewrites(model)
        harmful = [rewrite for rewrite in rewrites if rewrite.reason is not None]
        modified = False
        for rewrite in harmful:
            pairs = [node for node in rewrite.pairs if can_fence(node)]
            result = FencePairs(pairs)(model)
            before = FencePairs(filter(can_fence, rewrite.quantizers), before=True)(model)
            if result.modified or before.modified:
                modified = True
                fenced.setdefault(rewrite.node, rewrite)
        if not modified:
            integer = tuple(rewrite for rewrite in rewrites if rewrite.reason is None)
            return Fencing(tuple(fenced.values()), integer, tuple(harmful))
