# SPDX-License-Identifier: Apache-2.0
"""Lower the opset of a model to one that runtimes have, where that changes no operator."""

from collections.abc import Iterator

import onnx_ir as ir

from anybit.onnx.forms import NEWEST_OPSET
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.walk import nodes_in

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
# 1.1 has no such members.
_SIX_BITS, _SIX_BITS_OPSET = ("FLOAT6E2M3", "FLOAT6E3M2"), 28


def lower_opset(model: ir.Model) -> bool:
    """Import the oldest opset from 25 on in which the operators are the same; True if it changed.

    Local functions are lowered with the model. Opsets that are not known stay.
    """
    graphs = (model.graph, *(each.graph for each in model.functions.values()))
    present = [graph.opset_imports.get("", 0) for graph in graphs]
    if not NEWEST_OPSET < max(present) <= _NEWEST_KNOWN:
        return False
    needed = max((opset for opset, _ in _needs(model)), default=NEWEST_OPSET)
    for graph, opset in zip(graphs, present, strict=True):
        if opset > needed:
            graph.opset_imports[""] = needed
    return max(present) > needed


def obstacle(model: ir.Model) -> str:
    """Return why the opset cannot be lowered to 25; empty if it can, or is not newer."""
    present = model.graph.opset_imports.get("", 0)
    if present <= NEWEST_OPSET:
        return ""
    what = f"opset {present} cannot be lowered to {NEWEST_OPSET}"
    if present > _NEWEST_KNOWN:
        return f"{what}: opsets after {_NEWEST_KNOWN} are not known"
    needs = sorted({f"{name} is of opset {opset}" for opset, name in _needs(model)})
    return f"{what}: {', '.join(needs)}" if needs else ""


def _needs(model: ir.Model) -> Iterator[tuple[int, str]]:
    """Yield the operators and types that opset 25 does not have, each with its first opset."""
    for graph in (model.graph, *(each.graph for each in model.functions.values())):
        for node in nodes_in(graph):
            for opset, names in _CHANGED.items():
                if node.op_type in names and not node.domain:
                    yield opset, node.op_type
            for value in (*node.inputs, *node.outputs):
                dtype = None if value is None else value.dtype
                if dtype is not None and dtype.name in _SIX_BITS:
                    yield _SIX_BITS_OPSET, dtype.name
            if not node.domain and _named(node) in _SIX_BITS:
                yield _SIX_BITS_OPSET, _named(node)


def _named(node: ir.Node) -> str:
    """Return the name of the type that an attribute of the node asks for; empty for none."""
    attribute = {"Cast": "to", "QuantizeLinear": "output_dtype"}.get(node.op_type)
    dtype = attribute_of(node, attribute, 0) if attribute else 0
    return next((each.name for each in ir.DataType if each.value == dtype), "")
