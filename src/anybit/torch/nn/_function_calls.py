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
from anybit.torch.nn._in_place import augmented, changes_what_is_seen
from anybit.torch.nn._scores import may_be_scores

KINDS: dict[str, type[QuantizedFunction]] = {
    "add": QuantAdd,
    "concat": QuantConcat,
    "matmul": QuantMatMul,
    "attention": QuantScaledDotProductAttention,
}

_TARGETS: dict[Any, str] = {
    **dict.fromkeys((operator.add, torch.add, "add", "add_", "__add__"), "add"),
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


def function_calls(graph: Graph, root: torch.nn.Module) -> Iterator[tuple[Node, str]]:
    """The calls of functions of activations alone, each with its kind.

    What may be scores or a mask is none, nor are sums in place whose target something else sees.
    """
    numbers: set[Node] = set()
    for node in graph.nodes:
        if _is_number(node, numbers):
            numbers.add(node)
    active: set[Node] = set()
    for node in graph.nodes:
        read = node.all_input_nodes
        if node in numbers:
            continue
        if node.op in ("placeholder", "call_module") or any(each in active for each in read):
            active.add(node)
        kind = None if node.op == "call_module" else _TARGETS.get(node.target)
        if _is_augmented_sum(node):
            kind = "add"
        if kind is None or not _are_activations(node, kind, active):
            continue
        if kind in ("add", "concat") and may_be_scores(node, root, numbers):
            continue
        in_place = node.target in (augmented, "add_")
        if in_place and changes_what_is_seen(node, root, numbers):
            continue
        yield node, kind


def normalize_arguments(node: Node, kind: str) -> None:
    """Let a call have the arguments of the module of that kind."""
    if node.target is augmented:
        node.target, node.args = operator.add, node.args[1:]
    if "mat2" in node.kwargs:
        node.op, node.target = "call_function", torch.matmul
    names = _ARGUMENTS.get(kind)
    if names:
        node.kwargs = {names[name]: each for name, each in node.kwargs.items()}


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


def _is_augmented_sum(node: Node) -> bool:
    return node.target is augmented and node.args[0] == "iadd"


def _are_activations(node: Node, kind: str, active: set[Node]) -> bool:
    if kind != "attention" and not node.kwargs.keys() <= _ARGUMENTS[kind].keys():
        return False
    if kind == "concat":
        given = node.args[0] if node.args else node.kwargs.get("tensors")
        parts = given if isinstance(given, list | tuple) else [given]
        return all(isinstance(each, Node) and each in active for each in parts)
    wanted = 3 if kind == "attention" else 2
    given = node.args[1:] if node.target is augmented else node.args
    operands = [*given, *node.kwargs.values()][:wanted]
    if len(operands) < wanted or (kind != "attention" and len(given) > wanted):
        return False
    return all(isinstance(each, Node) and each in active for each in operands)
