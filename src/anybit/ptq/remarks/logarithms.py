# SPDX-License-Identifier: Apache-2.0
"""Remark on quantized layers before a logarithm, where small values count as much as large ones."""

from collections.abc import Container, Iterator

import onnx_ir as ir

from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_onnx_op
from anybit.ptq.graph.branches import walk_reachable
from anybit.ptq.search.candidates import MeasuredCandidate
from anybit.text import escape_name, join_names

# Powers, their sums and their roots keep small values small.
_OPERATORS = {
    *("Abs", "Add", "Clip", "Div", "Max", "Mul", "Pow", "Sqrt", "Where"),
    *("ReduceL2", "ReduceSumSquare"),
}
_EFFECTS = OpTrait.DATA_MOVEMENT | OpTrait.MEAN | OpTrait.REDUCTION | OpTrait.MATMUL


def describe_logarithms(candidate: MeasuredCandidate, model: ir.Model) -> tuple[str, ...]:
    """Return the remark on quantized layers before a logarithm, if the result fails its check."""
    if candidate.verdict.passed:
        return ()
    layers = {layer.node for layer in candidate.plan.weights}
    names = [get_label(node) for node in _find_nodes_before_logarithms(model) if node in layers]
    if not names:
        return ()
    keep = " ".join(f"--keep {escape_name(name)!r}" for name in names[:4])
    those = "them" if len(names) > 1 else "it"
    return (
        f"The outputs of {join_names(map(escape_name, names))} lead to a logarithm, "
        "for which small values count as much as large ones. "
        f"Few bits lose these: keep {those} in float ({keep}).",
    )


def _find_nodes_before_logarithms(model: ir.Model) -> Iterator[ir.Node]:
    """Return the nodes with a path to a logarithm on which small values stay small."""
    nodes = list(walk_reachable(model.graph))
    on_the_way: set[ir.Node] = set()
    for node in reversed(nodes):
        if _is_logarithm(node) or (_keeps_small(node) and _is_read_by(node, on_the_way)):
            on_the_way.add(node)
    return (node for node in nodes if node in on_the_way)


def _is_logarithm(node: ir.Node) -> bool:
    return is_onnx_op(node, "Log")


def _keeps_small(node: ir.Node) -> bool:
    is_listed = is_onnx_op(node, *_OPERATORS)
    return is_listed or has_trait(node, _EFFECTS)


def _is_read_by(node: ir.Node, readers: Container[ir.Node]) -> bool:
    return any(reader in readers for value in node.outputs for reader, _ in value.uses())
