# SPDX-License-Identifier: Apache-2.0
"""Put the expression that a reference leaves in the place of a node."""

from functools import partial

import onnx_ir as ir

from anybit.onnx.expansion.traced import Traced
from anybit.onnx.expansion.writer import Body
from anybit.onnx.graph.editor import Editor


def expand(editor: Editor, node: ir.Node, result: Traced) -> None:
    """Replace a node by nodes that compute the expression; its constants are initializers.

    Equal constants are one initializer.
    """
    assert node.graph is not None, "nodes in a graph only"
    constant = partial(editor.shared_constant, "constant")
    body = Body(constant, editor.unique, str(node.outputs[0].name))
    new = body.write(result)
    if new.producer() not in body.nodes:  # a constant or an input, which has a name already
        new = body.append("Identity", [new], ir.DataType.from_numpy(result.dtype))
    node.graph.insert_before(node, body.nodes)
    editor.replace(node, new)
