# SPDX-License-Identifier: Apache-2.0
"""Which module reads what another one gives: from the graph of a forward pass."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Module

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

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        ours = type(m).__module__.startswith("anybit.")
        ours = ours or isinstance(m, torch.nn.modules.batchnorm._BatchNorm)
        return ours or bool(super().is_leaf_module(m, module_qualified_name))


def called(model: Module, name: str = "") -> Calls:
    """What the forward pass calls.

    Where it cannot be traced, for it branches on values, the parts of the model are traced by
    themselves.
    """
    tracer = _Tracer()
    try:
        with torch.random.fork_rng():
            nodes = list(tracer.trace(model).nodes)
    except Exception as error:  # forward is the user's code: what it raises for proxies is anything
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = name or type(model).__name__
        return _part_by_part(model, name, f"forward of {where} cannot be traced: {said}")
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
