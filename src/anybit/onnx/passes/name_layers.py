# SPDX-License-Identifier: Apache-2.0
"""Names of layers after their weights: `backbone.3.conv2`, not `node_Conv_497`."""

import re
from collections.abc import Iterable

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.names import EXPORTED_NAME_KEY, NameGenerator
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.walk import iter_nodes

# Suffixes of weights in PyTorch and Keras; exporters invent other names.
_WEIGHT = re.compile(r"(.+)(?:\.weight|[/_.]kernel(?::0)?)")
# The module around an operator, in metadata of PyTorch's exporter: "[..., 'MODULE', 'OPERATOR']".
_SCOPES_KEY = "pkg.torch.onnx.name_scopes"
_MODULE = re.compile(r".*'([^']+)', '[^']*'\]")
_FARTHEST, _MOST_NODES = 8, 32


class NameLayers(InPlacePass):
    """Renaming of Conv, ConvTranspose, Gemm and MatMul to the module of their weight.

    A weight `NAME.weight` or `NAME/kernel`, possibly followed by quantizers or data movement,
    yields NAME. If the weight has another name, such as that of a folded constant, the module that
    PyTorch recorded is taken. The previous name is kept in the node's metadata. The pass is
    idempotent.
    """

    def call(self, model: ir.Model) -> PassResult:
        nodes = list(iter_nodes(model.graph))
        taken = NameGenerator(node.name for node in nodes)
        modified = False
        for node in nodes:
            module = _find_module(node)
            if module is None or EXPORTED_NAME_KEY in node.metadata_props or node.name == module:
                continue
            node.metadata_props[EXPORTED_NAME_KEY] = node.name or ""
            node.name = taken(module)
            modified = True
        return PassResult(model, modified)


def _find_module(node: ir.Node) -> str | None:
    """Return the name of the module whose weight a node multiplies; None if there is none."""
    if not has_trait(node, OpTrait.MATMUL):
        return None
    sources = [source for value in node.inputs[1::-1] if (source := _find_constant(value))]
    for source in sources:
        match = _WEIGHT.fullmatch(source.name or "")
        if match is not None:
            return match[1]
    match = _MODULE.fullmatch(node.metadata_props.get(_SCOPES_KEY, "")) if sources else None
    return None if match is None else match[1]


def _find_constant(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer that a value is computed from, with other constants at most."""
    for _ in range(_FARTHEST):
        node = None if value is None else value.producer()
        if value is None or node is None:
            return value if value is not None and value.is_initializer() else None
        if not _follow_from_constants(node.inputs[1:]):
            return None
        value = node.inputs[0] if node.inputs else None
    return None


def _follow_from_constants(values: Iterable[ir.Value | None]) -> bool:
    """Return whether values are computed from constants by a few nodes."""
    pending, seen = list(values), set[ir.Value]()
    while pending:
        value = pending.pop()
        if value is None or value in seen or value.is_initializer():
            continue
        node = value.producer()
        seen.add(value)
        if node is None or len(seen) > _MOST_NODES:
            return False
        pending.extend(node.inputs)
    return True
