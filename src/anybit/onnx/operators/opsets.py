# SPDX-License-Identifier: Apache-2.0
"""Lowering of the opset of a model to one that runtimes support."""

from collections.abc import Iterator

import onnx_ir as ir

from anybit.onnx.forms import NEWEST_OPSET
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.walk import iter_nodes

# The operators that each opset after `NEWEST_OPSET` added or changed.
_CHANGED = {
    26: {"BitCast", "CumProd"},
    27: {"CausalConvWithState", "LinearAttention", "Range"},
    28: {
        *("BitShift", "Celu", "Compress", "DepthToSpace", "Einsum", "Mod", "OneHot", "Optional"),
        *("OptionalGetElement", "OptionalHasElement", "ReduceLogSum", "ReduceLogSumExp"),
        *("ReverseSequence", "SpaceToDepth", "SwiGLU", "Unique"),
    },
}
_NEWEST_KNOWN = max(_CHANGED)
# QuantizeLinear, DequantizeLinear and Cast changed in opset 28 by these types only. onnx_ir before
# 1.1 lacks them.
_SIX_BITS, _SIX_BITS_OPSET = ("FLOAT6E2M3", "FLOAT6E3M2"), 28


def lower_opset(model: ir.Model) -> bool:
    """Import the oldest opset from 25 on with the same operators; return whether it changed.

    Local functions are lowered with the model. Unknown opsets stay.
    """
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    present = [graph.opset_imports.get("", 0) for graph in graphs]
    if not NEWEST_OPSET < max(present) <= _NEWEST_KNOWN:
        return False
    needed = max((opset for opset, _ in _iter_requirements(model)), default=NEWEST_OPSET)
    for graph, opset in zip(graphs, present, strict=True):
        if opset > needed:
            graph.opset_imports[""] = needed
    return max(present) > needed


def find_obstacle(model: ir.Model) -> str:
    """Return why the opset cannot be lowered to 25; empty if it can, or is not newer."""
    present = model.graph.opset_imports.get("", 0)
    if present <= NEWEST_OPSET:
        return ""
    subject = f"opset {present} cannot be lowered to {NEWEST_OPSET}"
    if present > _NEWEST_KNOWN:
        return f"{subject}: opsets after {_NEWEST_KNOWN} are not known"
    needs = sorted({f"{name} is of opset {opset}" for opset, name in _iter_requirements(model)})
    return f"{subject}: {', '.join(needs)}" if needs else ""


def _iter_requirements(model: ir.Model) -> Iterator[tuple[int, str]]:
    """Yield the operators and types that opset 25 does not have, each with its first opset."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for node in iter_nodes(graph):
            for opset, names in _CHANGED.items():
                if node.op_type in names and not node.domain:
                    yield opset, node.op_type
            for value in (*node.inputs, *node.outputs):
                dtype = None if value is None else value.dtype
                if dtype is not None and dtype.name in _SIX_BITS:
                    yield _SIX_BITS_OPSET, dtype.name
            if not node.domain and _get_type_name(node) in _SIX_BITS:
                yield _SIX_BITS_OPSET, _get_type_name(node)


def _get_type_name(node: ir.Node) -> str:
    """Return the name of the type in an attribute of the node; empty for none."""
    attribute = {"Cast": "to", "QuantizeLinear": "output_dtype"}.get(node.op_type)
    dtype = get_attribute(node, attribute, 0) if attribute else 0
    return next((native.name for native in ir.DataType if native.value == dtype), "")
