# SPDX-License-Identifier: Apache-2.0
"""Which module reads what another one gives: from the graph of a forward pass."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Module

from anybit.torch.nn._guards import guarded

_NORMALIZE = ("batch_norm", "native_batch_norm", "_native_batch_norm_legit")


@dataclass
class Calls:
    """What tracing says of a model's modules.

    Attributes:
        before: By module, the one whose output it alone reads. Both are called once, and the first
            one's parameters are read nowhere else.
        why: By module without one, the reason.
        functional: The modules, by name, whose forward calls batch normalization as a function.
    """

    before: dict[Module, Module] = field(default_factory=dict)
    why: dict[Module, str] = field(default_factory=dict)
    functional: list[str] = field(default_factory=list)


class _Tracer(torch.fx.Tracer):
    """Enters containers and modules of users; ours, PyTorch's and all normalization are calls."""

    proxy_buffer_attributes = True

    def call_module(self, m: Module, forward: Any, args: Any, kwargs: Any) -> Any:
        name = self.path_of_module(m)
        if has_hooks(m) and not self.is_leaf_module(m, name):
            raise NotImplementedError(f"{name} has hooks, which may do anything")
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        ours = type(m).__module__.startswith("anybit.")
        ours = ours or isinstance(m, torch.nn.modules.batchnorm._BatchNorm)
        return ours or bool(super().is_leaf_module(m, module_qualified_name))


def has_hooks(module: Module) -> bool:
    """Whether something else runs before or behind forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def called(model: Module, name: str = "") -> Calls:
    """What the forward pass calls, in training and in eval mode alike.

    Where it cannot be traced, for it branches on values, the parts of the model are traced by
    themselves.
    """
    modes = []
    for training in (False, True):
        tracer = _Tracer()
        try:
            with guarded(model, training):
                modes.append(list(tracer.trace(model).nodes))
        except Exception as error:  # forward is the user's code: for proxies it raises anything
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            where = name or type(model).__name__
            return _part_by_part(model, name, f"forward of {where} cannot be traced: {said}")
    found, other = (_of_graph(model, name, nodes) for nodes in modes)
    for after in set(found.before) | set(other.before):
        if found.before.get(after) is not other.before.get(after):
            why = found.why.get(after) or other.why.get(after, "it reads another layer")
            found.before.pop(after, None)
            found.why[after] = f"in one of the modes, {why}"
    found.functional += other.functional
    return found


def _of_graph(model: Module, name: str, nodes: list[torch.fx.Node]) -> Calls:
    """What one graph of the forward pass calls."""
    names = dict(model.named_modules(remove_duplicate=False))
    found = Calls()
    calls = {node: names[node.target] for node in nodes if node.op == "call_module"}
    times = Counter(calls.values())
    read = {node.target.rpartition(".")[0] for node in nodes if node.op == "get_attr"}
    touched = {names[each] for each in read if each in names}
    for node, after in calls.items():
        first = node.args[0] if node.args else None
        if reason := _unlike(node, first, calls, times, touched):
            found.why[after] = reason
        else:
            found.before[after] = calls[first]
    for module in model.modules():
        if module not in times:
            also = ", but reads its parameters" if module in touched else ""
            found.why[module] = f"forward does not call it as a module{also}"
    for node in nodes:
        if getattr(node.target, "__name__", node.target) in _NORMALIZE:
            stack = list((node.meta.get("nn_module_stack") or {"": None}).values())
            inner = stack[-1][0] if stack[-1] else ""
            found.functional.append(".".join(part for part in (name, inner) if part))
    return found


def _part_by_part(model: Module, name: str, untraced: str) -> Calls:
    found = Calls()
    for child_name, child in model.named_children():
        inner = f"{name}.{child_name}".lstrip(".")
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            part = _part_by_part(child, inner, untraced)
        elif _Tracer().is_leaf_module(child, inner):
            part = Calls(why={child: untraced})
        else:
            part = called(child, inner)
        found.before |= part.before
        found.why |= part.why
        found.functional += part.functional
    return found


def _unlike(
    node: torch.fx.Node, first: Any, calls: Any, times: Counter[Module], touched: set[Module]
) -> str:
    """Why what a call reads is not that of one module for it alone; "" if it is."""
    after = calls[node]
    if times[after] > 1:
        return f"it is called {times[after]} times"
    if after in touched:
        return "forward reads its parameters, too"
    if not isinstance(first, torch.fx.Node) or first.op == "placeholder":
        return "it reads an input of the model"
    if first not in calls:
        return f"it reads what {getattr(first.target, '__name__', first.target)} gives, not a layer"
    if times[calls[first]] > 1:
        return f"layer {first.target!r} is called {times[calls[first]]} times"
    if calls[first] in touched:
        return f"forward reads the parameters of layer {first.target!r}, too"
    if len(first.users) > 1:
        return f"something else reads what layer {first.target!r} gives"
    return ""
