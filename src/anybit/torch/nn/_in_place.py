# SPDX-License-Identifier: Apache-2.0
"""Augmented assignments in graphs, and what of them may be a sum like any other.

torch.fx has none: `x += y` would be traced as `x = x + y`, and other names of x, and the caller's,
would keep the old value.
"""

import operator
from typing import Any

import torch
from torch.fx import Node, Proxy
from torch.fx.proxy import Attribute
from torch.nn import functional

# Those that tensors have.
_OPERATORS = (
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
)
_OWN = {"tracer", "node", "_node", "root", "attr"}
# What gives its first argument or something anew, depending on its type or mode.
_PASSING: set[Any] = {
    *(torch.nn.Identity, torch.nn.Dropout, functional.dropout, functional.relu, torch.relu_),
    *("relu_", "contiguous", "to", "float"),
}
_FRESH: set[Any] = {
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul),
    *(torch.add, torch.sub, torch.mul, torch.div, torch.matmul, torch.bmm, torch.relu),
    *(torch.softmax, functional.softmax, functional.gelu, functional.linear),
    *(functional.layer_norm, functional.conv1d, functional.conv2d),
    *("add", "sub", "mul", "div", "matmul", "bmm", "softmax", "relu", "clone"),
}
_LAYERS = (
    *(torch.nn.Linear, torch.nn.Embedding, torch.nn.modules.conv._ConvNd),
    *(torch.nn.modules.batchnorm._NormBase, torch.nn.LayerNorm, torch.nn.GroupNorm),
)


def augmented(name: str, target: Any, value: Any) -> Any:
    """What an augmented assignment gives, by the name of its function in `operator`.

    In the code of a graph `n += 1` would change what else has the name of a number n.
    """
    return getattr(operator, name)(target, value)


class InPlaceProxy(Proxy):
    """One that keeps augmented assignments, of itself and of its attributes."""

    def __getattr__(self, k: str) -> Attribute:
        return _InPlaceAttribute(self, k)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _OWN:
            raise NotImplementedError(f"it sets {name} of a tensor")
        super().__setattr__(name, value)


class _InPlaceAttribute(InPlaceProxy, Attribute):
    """Such as `x.T`."""


def _method(name: str) -> Any:
    def method(self: Proxy, value: Any) -> Proxy:
        found: Proxy = self.tracer.create_proxy("call_function", augmented, (name, self, value), {})
        return found

    return method


for _name in _OPERATORS:
    setattr(InPlaceProxy, f"__{_name}__", _method(_name))


def changes_what_is_seen(node: Node, root: torch.nn.Module, numbers: set[Node]) -> bool:
    """Whether it matters that a call adds in place; where in doubt it does.

    It does not where the target was just made, and nothing reads it later, by a view either.
    """
    user, target = node, node.args[node.target is augmented]
    while isinstance(target, Node):
        others = set(target.users) - numbers - {user}
        if not all(each < node and _is_made(each, root)[0] for each in others):
            return True
        fresh, passes = _is_made(target, root)
        if fresh or not passes or not target.args:
            return not fresh
        user, target = target, target.args[0]
    return True


def _is_made(node: Node, root: torch.nn.Module) -> tuple[bool, bool]:
    """Whether a call makes what it gives, and whether that may be its first argument instead."""
    if node.op == "call_module":
        return _made(root.get_submodule(str(node.target)))
    called = node.op in ("call_function", "call_method") and "out" not in node.kwargs
    return called and node.target in _FRESH, called and node.target in _PASSING


def _made(module: torch.nn.Module) -> tuple[bool, bool]:
    """The same of a module."""
    if type(module) is torch.nn.Sequential:
        for each in reversed(module):
            fresh, passes = _made(each)
            if fresh or not passes:
                return fresh, passes
        return False, True
    known = type(module).__module__.startswith(("torch.nn.", "anybit."))
    if type(module) in _PASSING or getattr(module, "inplace", False):
        return False, known
    activation = type(module).__module__ == "torch.nn.modules.activation"
    return known and (activation or isinstance(module, _LAYERS)), False
