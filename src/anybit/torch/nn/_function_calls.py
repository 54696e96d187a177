# SPDX-License-Identifier: Apache-2.0
"""Which calls in a graph are functions of several activations."""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.nn import functional

from anybit.torch.nn._functions import (
    QuantAdd,
    QuantConcat,
    QuantizedFunction,
    QuantMatMul,
    QuantScaledDotProductAttention,
)

KINDS: dict[str, type[QuantizedFunction]] = {
    "add": QuantAdd,
    "concat": QuantConcat,
    "matmul": QuantMatMul,
    "attention": QuantScaledDotProductAttention,
}

_TARGETS: dict[Any, str] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_", "__add__"), "add"),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), "concat"),
    **dict.fromkeys((operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"), "matmul"),
    functional.scaled_dot_product_attention: "attention",
}
# Names of arguments that one of the functions of PyTorch has, and others call otherwise.
_ARGUMENTS = {
    "add": {"input": "input", "other": "other"},
    "concat": {"tensors": "tensors", "dim": "dim", "axis": "dim"},
    "matmul": {"input": "input", "other": "other", "mat2": "other"},
}
_OF_SIZES = {"size", "dim", "numel", "nelement", "item", "tolist", "stride", "ndimension"}
_SIZES = {"shape", "ndim", "dtype", "device"}
_SOFTMAX: set[Any] = {functional.softmax, torch.softmax, "softmax", torch.nn.Softmax}
# What lies between the sum of scores and a mask, and softmax; or softmax and a product.
_BETWEEN: set[Any] = {
    *(operator.add, operator.mul, operator.truediv, torch.add, torch.mul, torch.div),
    *("add", "mul", "div", "masked_fill", "clamp", "to", "float", "type_as", "type"),
    *(functional.dropout, torch.nn.Dropout, torch.nn.Identity, torch.where),
}


def function_calls(graph: Graph, root: torch.nn.Module) -> Iterator[tuple[Node, str]]:
    """The calls of functions of activations alone, each with its kind.

    Sums of scores and a mask, which softmax reads, are none.
    """
    numbers: set[Node] = set()
    active: set[Node] = set()
    for node in graph.nodes:
        read = node.all_input_nodes
        if _is_number(node, numbers):
            numbers.add(node)
        elif node.op in ("placeholder", "call_module") or any(each in active for each in read):
            active.add(node)
        kind = None if node.op.startswith("call_module") else _TARGETS.get(node.target)
        if kind is None or not _are_activations(node, kind, active):
            continue
        if kind == "add" and _leads_to_softmax(node, root):
            continue
        yield node, kind


def normalize_arguments(node: Node, kind: str) -> None:
    """Name the arguments as the module of that kind does."""
    names = _ARGUMENTS.get(kind)
    if names:
        node.kwargs = {names[name]: each for name, each in node.kwargs.items()}


def comes_from_softmax(node: Node, root: torch.nn.Module) -> bool:
    """Whether the first argument of a call is what softmax gives."""
    first = node.args[0] if node.args else None
    while isinstance(first, Node) and _what(first, root) in _BETWEEN - {operator.add}:
        first = first.args[0] if first.args else None
    return isinstance(first, Node) and _what(first, root) in _SOFTMAX


def _is_number(node: Node, numbers: set[Node]) -> bool:
    if node.op == "call_method":
        return node.target in _OF_SIZES
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in _SIZES
    read = node.all_input_nodes
    return bool(read) and all(each in numbers for each in read) and not _makes_a_tensor(node)


def _makes_a_tensor(node: Node) -> bool:
    return getattr(node.target, "__module__", "").startswith("torch")


def _are_activations(node: Node, kind: str, active: set[Node]) -> bool:
    if kind != "attention" and not node.kwargs.keys() <= _ARGUMENTS[kind].keys():
        return False
    if kind == "concat":
        given = node.args[0] if node.args else node.kwargs.get("tensors")
        parts = given if isinstance(given, list | tuple) else [given]
        return all(isinstance(each, Node) and each in active for each in parts)
    wanted = 3 if kind == "attention" else 2
    operands = [*node.args, *node.kwargs.values()][:wanted]
    if len(operands) < wanted or (kind != "attention" and len(node.args) > wanted):
        return False
    if node.target in (operator.iadd, "add_") and _is_read_again(node):
        return False
    return all(isinstance(each, Node) and each in active for each in operands)


def _is_read_again(node: Node) -> bool:
    """Whether something reads what a call has changed in place by its former name."""
    changed = node.args[0]
    return isinstance(changed, Node) and any(node < user for user in changed.users)


def _leads_to_softmax(node: Node, root: torch.nn.Module) -> bool:
    waiting, seen = [node], {node}
    while waiting:
        for user in waiting.pop().users:
            what = _what(user, root)
            if what in _SOFTMAX:
                return True
            if what in _BETWEEN and user not in seen:
                seen.add(user)
                waiting.append(user)
    return False


def _what(node: Node, root: torch.nn.Module) -> Any:
    """What a call calls: a function, the name of a method, or the type of a module."""
    if node.op == "call_module":
        return type(root.get_submodule(str(node.target)))
    return node.target
