# SPDX-License-Identifier: Apache-2.0
"""Propagation of Transposes down the graph, until they cancel."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.layout import (
    Order,
    compose_orders,
    get_transpose_order,
    has_provisional_name,
    insert_transpose,
    invert_order,
    set_provisional_name,
    swap_names,
)
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.require import require_graph, require_input
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.passes._reorder import (
    change_input,
    change_value,
    drop_unread,
    get_rank,
    is_known,
    make_permutation,
    take_names,
)


class MoveTransposes(InPlacePass):
    """Exchange of Transposes with the elementwise nodes that read them, and merging of pairs.

    Other operands of such a node must be constant, perhaps quantized, and are transposed; so is a
    constant that a Transpose reads. Results are equal bit for bit.
    """

    def call(self, model: ir.Model) -> PassResult:
        editor = Editor(model)
        count = 0
        for node in list(model.graph.all_nodes()):
            order = get_transpose_order(node)
            if order is None:
                count += _try_move_after(node, editor)
            else:
                count += _try_merge(node, order) or _try_move_into_constant(node, order, editor)
        if count:
            RemoveUnusedNodesPass()(model)
        return PassResult(model, bool(count))


def is_elementwise(node: ir.Node) -> bool:
    """Return whether each output element depends on one element per input, after broadcasting."""
    if len(node.outputs) != 1:
        return False
    operator = find_operator(node)
    if operator is not None:
        return operator.broadcasts
    # The second input of CastLike is only used for its type.
    if node.domain != "" or node.op_type == "CastLike":
        return False
    return has_trait(node, OpTrait.ELEMENTWISE | OpTrait.RECTIFIER) or node.op_type == "Identity"


def _try_merge(node: ir.Node, order: Order) -> bool:
    """Drop a Transpose without effect, or merge it with a preceding one; return whether it was."""
    x = require_input(node)
    before = x.producer()
    first = None if before is None else get_transpose_order(before)
    if before is not None and first is not None and len(first) == len(order):
        x, order = require_input(before), compose_orders(first, order)
    elif order != tuple(sorted(order)):
        return False
    if order == tuple(sorted(order)):
        return _try_drop(node, x)
    node.replace_input_with(0, x)
    node.attributes.add(ir.AttrInt64s("perm", order))
    return True


def _try_drop(node: ir.Node, x: ir.Value) -> bool:
    """Let readers of an output that equals x read x. Graph outputs keep their names."""
    result = node.outputs[0]
    if not result.is_graph_output():
        result.replace_all_uses_with(x)
        if has_provisional_name(x) and not has_provisional_name(result):
            swap_names(x, result)
        return True
    producer = x.producer()
    if producer is None or producer.graph is not node.graph or x.is_graph_output():
        node.op_type = "Identity"
        node.replace_input_with(0, x)
        del node.attributes["perm"]
        return True
    result.replace_all_uses_with(x, replace_graph_outputs=True)
    swap_names(result, x)
    return True


def _try_move_after(node: ir.Node, editor: Editor) -> bool:
    if not is_elementwise(node):
        return False
    orders = [_find_order(value) for value in node.inputs]
    order = next((order_before for order_before in orders if order_before is not None), None)
    if order is None or any(order_before not in (None, order) for order_before in orders):
        return False
    if find_operator(node) is not None and orders[0] is None:  # a computed parameter
        return False
    others = {
        index: value
        for index, value in enumerate(node.inputs)
        if orders[index] is None and value is not None
    }
    if not all(_can_follow(value, len(order)) for value in others.values()):
        return False
    for index in others:
        change_input(node, index, make_permutation(invert_order(order)), editor)
    for index, value in enumerate(node.inputs):
        before = None if value is None or orders[index] is None else value.producer()
        if before is not None:
            node.replace_input_with(index, before.inputs[0])
    _insert_after(node, order, editor)
    return True


def _find_order(value: ir.Value | None) -> Order | None:
    before = None if value is None else value.producer()
    return None if before is None or is_known(before.inputs[0]) else get_transpose_order(before)


def _can_follow(value: ir.Value, rank: int) -> bool:
    known_rank = get_rank(value) if is_known(value) else None
    return known_rank is not None and known_rank <= rank


def _insert_after(node: ir.Node, order: Order, editor: Editor) -> None:
    """Insert a Transpose after a node; its output takes the name of the node's output."""
    name = editor.unique(f"{node.name or node.op_type}_transposed")
    last = insert_transpose(node, order, name)
    set_provisional_name(last, name)
    swap_names(node.outputs[0], last)


def _try_move_into_constant(node: ir.Node, order: Order, editor: Editor) -> bool:
    """Transpose a constant, perhaps quantized, that a Transpose reads; return whether it was."""
    x = require_input(node)
    if not is_known(x) or get_rank(x) != len(order):
        return False
    new = change_value(x, make_permutation(order), editor, node)
    if new is x or node.outputs[0].is_graph_output():
        return False
    node.outputs[0].replace_all_uses_with(new)
    require_graph(node).remove(node, safe=True)
    drop_unread(x)
    take_names(new, x)
    return True
