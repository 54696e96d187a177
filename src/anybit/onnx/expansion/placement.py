# SPDX-License-Identifier: Apache-2.0
"""Replacement of nodes by their expansions."""

from functools import partial

import onnx_ir as ir

from anybit.onnx.expansion.calls import Expansion
from anybit.onnx.expansion.writer import Body
from anybit.onnx.graph.editor import Editor


def expand(editor: Editor, node: ir.Node, expansion: Expansion) -> None:
    """Replace a node by nodes that compute its expression; its constants are initializers.

    Equal constants share an initializer.
    """
    assert node.graph is not None, "nodes in a graph only"
    constant = partial(editor.shared_constant, "constant")
    body = Body(constant, editor.unique, str(node.outputs[0].name))
    for traced, value in zip(expansion.inputs, node.inputs, strict=True):
        if traced is not None and traced.value is not None and value is not None:
            body.bind(traced, value)
    new = body.write(expansion.result)
    if new.producer() not in body.nodes:  # a constant or an input, which has a name already
        new = body.append("Identity", [new], ir.DataType.from_numpy(expansion.result.dtype))
    node.graph.insert_before(node, body.nodes)
    editor.replace(node, new)
