# SPDX-License-Identifier: Apache-2.0
"""Layers whose small outputs count as much as large ones, which few bits do not have: what gives
spectra to a logarithm."""

from collections.abc import Container, Iterator

import onnx_ir as ir

from anybit.onnx.graph.names import label_of
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.ptq.graph.branches import walk_reachable
from anybit.ptq.search.candidates import QuantizedCandidate
from anybit.text import listed, shown

# Powers, their sums and their roots keep small values small.
_OPERATORS = {
    *("Abs", "Add", "Clip", "Div", "Max", "Mul", "Pow", "Sqrt", "Where"),
    *("ReduceL2", "ReduceSumSquare"),
}
_EFFECTS = OpTrait.DATA_MOVEMENT | OpTrait.MEAN | OpTrait.REDUCTION | OpTrait.MATMUL


def logarithms(found: QuantizedCandidate, model: ir.Model) -> tuple[str, ...]:
    """What is to be said of quantized layers behind which a logarithm is taken, if the outputs are
    not what they were."""
    if found.verdict is None or found.verdict.passed:
        return ()
    layers = {layer.node for layer in found.plan.weights}
    names = [label_of(node) for node in _before_logarithms(model) if node in layers]
    if not names:
        return ()
    keep = " ".join(f"--keep {shown(name)!r}" for name in names[:4])
    those = "them" if len(names) > 1 else "it"
    return (
        f"Behind {listed(map(shown, names))} a logarithm is taken, for which small values count as "
        f"much as large ones, and these few bits do not have: keep {those} in floats ({keep}).",
    )


def _before_logarithms(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes from which there is a way to a logarithm on which small values stay small."""
    nodes = list(walk_reachable(model.graph))
    on_the_way: set[ir.Node] = set()
    for node in reversed(nodes):
        if _is_logarithm(node) or (_keeps_small(node) and _is_read_by(node, on_the_way)):
            on_the_way.add(node)
    return (node for node in nodes if node in on_the_way)


def _is_logarithm(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == ("", "Log")


def _keeps_small(node: ir.Node) -> bool:
    known = not node.domain and node.op_type in _OPERATORS
    return known or has_trait(node, _EFFECTS)


def _is_read_by(node: ir.Node, readers: Container[ir.Node]) -> bool:
    return any(reader in readers for value in node.outputs for reader, _ in value.uses())
