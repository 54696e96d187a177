# SPDX-License-Identifier: Apache-2.0
"""Remark on outputs that quantization made infinite or NaN, with the layers to keep in floats."""

import math
from collections.abc import Collection, Iterator

import onnx_ir as ir

from anybit.compiler.operators import get_varying_inputs
from anybit.onnx.graph.names import get_label
from anybit.ptq.graph.intervals import Intervals
from anybit.ptq.graph.steep_nodes import find_steep_argument, is_provably_finite
from anybit.ptq.search.candidates import MeasuredCandidate
from anybit.text import escape_name, join_names


def describe_non_finite(candidate: MeasuredCandidate, model: ir.Model) -> tuple[str, ...]:
    """Return the remark, if the outputs of held-out samples are not finite and a node explains it.

    Such a node divides by a number that no constant keeps from 0, or takes its root or logarithm.
    """
    if candidate.verdict.sqnr != -math.inf:
        return ()
    intervals = Intervals(model.graph)
    steep = [node for node in model.graph if not is_provably_finite(node, intervals)]
    layers = {layer.node for layer in candidate.plan.layers}
    names = list(dict.fromkeys(get_label(node) for node in _find_layers_before(steep, layers)))
    if not names:
        return ()
    keep = " ".join(f"--keep {escape_name(name)!r}" for name in names[:4])
    at = join_names(f"{escape_name(get_label(node))} ({node.op_type})" for node in steep)
    return (
        "Outputs are infinite or NaN where those of the float model are finite: quantization can "
        f"make the argument of {at} 0. Add a small constant to it in the model, or keep the layers "
        f"before it in floats ({keep}).",
    )


def _find_layers_before(
    steep: Collection[ir.Node], layers: Collection[ir.Node]
) -> Iterator[ir.Node]:
    """Yield the layers whose results lead to an argument without a layer between."""
    waiting = [value for node in steep if (value := find_steep_argument(node)) is not None]
    seen: set[ir.Node] = set()
    while waiting:
        node = waiting.pop().producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in layers:
            yield node
        else:
            waiting += get_varying_inputs(node)
