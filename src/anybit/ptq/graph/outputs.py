# SPDX-License-Identifier: Apache-2.0
"""Targets at the outputs of a model.

Each output is computed by an Identity, whose input is quantized like the activation of a layer.
These nodes are removed again after the insertion of quantizers.
"""

import onnx_ir as ir

from anybit.errors import OptionError
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.editor import Editor
from anybit.ptq.graph.targets import TargetNode
from anybit.text import escape_name

_OUTPUT = "anybit.output"
"""Metadata of the nodes: the name of the output."""


def add_output_nodes(model: ir.Model) -> tuple[str, ...]:
    """Insert an Identity before each float32 output, in place.

    Returns:
        A remark for each output that stays as it is.

    Raises:
        OptionError: No output can be quantized.
    """
    editor, reasons = Editor(model), {}
    outputs = dict.fromkeys(model.graph.outputs)
    for value in outputs:
        reason = _explain_skip(value)
        if reason:
            reasons[str(value.name)] = reason
        else:
            _add_output_node(model, value, editor)
    remarks = tuple(
        f"output {escape_name(name)} is not quantized: {reason}" for name, reason in reasons.items()
    )
    if len(reasons) == len(outputs):
        raise OptionError(f"no output can be quantized: {'; '.join(remarks)}; leave out outputs=")
    return remarks


def find_output_targets(model: ir.Model) -> tuple[TargetNode, ...]:
    """Return the nodes that `add_output_nodes` inserted, as targets."""
    nodes = (value.producer() for value in model.graph.outputs)
    return tuple(
        TargetNode(node, (0,), ()) for node in nodes if node is not None and is_output_node(node)
    )


def is_output_node(node: ir.Node) -> bool:
    """Return whether a node was inserted by `add_output_nodes`."""
    return _OUTPUT in node.metadata_props


def remove_output_nodes(model: ir.Model) -> None:
    """Remove the nodes that `add_output_nodes` inserted, in place; outputs keep their names."""
    editor = Editor(model)
    for target in find_output_targets(model):
        (value,) = [value for _, value in target.activation_values]
        editor.replace(target.node, value)


def _explain_skip(value: ir.Value) -> str:
    """Return why an output cannot be quantized, or ""."""
    if value.is_graph_input():
        return "it is an input of the model"
    if value.is_initializer() or is_constant(value):
        return "it is constant"
    if value.dtype is None:
        return "its dtype is unknown"
    return "" if value.dtype == ir.DataType.FLOAT else f"it is {str(value.dtype).lower()}"


def _add_output_node(model: ir.Model, value: ir.Value, editor: Editor) -> None:
    """Let an Identity compute an output; the output keeps its name."""
    name = str(value.name)
    value.name = editor.unique(f"{name}_float")
    node = ir.Node("", "Identity", [value], name=editor.unique(f"{name}_output"))
    node.metadata_props[_OUTPUT] = name
    result = node.outputs[0]
    result.name, result.type = name, value.type
    result.shape = None if value.shape is None else value.shape.copy()
    outputs = model.graph.outputs
    outputs[outputs.index(value)] = result
    model.graph.append(node)
