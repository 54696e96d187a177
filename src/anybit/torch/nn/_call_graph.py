# SPDX-License-Identifier: Apache-2.0
"""Graph of the calls between the modules of a model."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Module

from anybit.torch.nn._tracing import StrictTracer, trace

_NORMALIZE = ("batch_norm", "native_batch_norm", "_native_batch_norm_legit")


@dataclass
class CallGraph:
    """Pairs of modules in which the second is the only user of the first one's output.

    Attributes:
        producers: The first module of each pair, by the second. Both are called once, and their
            parameters are used nowhere else.
        reasons: The reason why a module has no producer, by module.
        functional: The modules, by name, whose forward calls batch normalization as a function.
    """

    producers: dict[Module, Module] = field(default_factory=dict)
    reasons: dict[Module, str] = field(default_factory=dict)
    functional: list[str] = field(default_factory=list)


class _Tracer(StrictTracer):
    """A tracer of containers and users' modules; those of PyTorch and anybit are calls."""

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
    """Return whether hooks run before or after forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def make_call_graph(model: Module, name: str = "") -> CallGraph:
    """Return the pairs that hold in training and in eval mode.

    The children of a model that cannot be traced are traced by themselves.
    """
    graphs = []
    for training in (False, True):
        try:
            nodes = list(trace(model, _Tracer(), training).nodes)
        except Exception as error:  # whatever the user's forward raises for proxies
            message = (str(error).strip() or type(error).__name__).splitlines()[0]
            where = name or type(model).__name__
            return _merge_children(model, name, f"forward of {where} cannot be traced: {message}")
        graphs.append(_trace_mode(model, name, nodes))
    graph, other = graphs
    for module in set(graph.producers) | set(other.producers):
        if graph.producers.get(module) is not other.producers.get(module):
            default = other.reasons.get(module, "its input is another layer")
            reason = graph.reasons.get(module) or default
            graph.producers.pop(module, None)
            graph.reasons[module] = f"in one of the modes, {reason}"
    graph.functional += other.functional
    return graph


def _trace_mode(model: Module, name: str, nodes: list[torch.fx.Node]) -> CallGraph:
    """Return the pairs in one graph of the forward pass."""
    modules = dict(model.named_modules(remove_duplicate=False))
    graph = CallGraph()
    calls = {node: modules[node.target] for node in nodes if node.op == "call_module"}
    counts = Counter(calls.values())
    owners = {node.target.rpartition(".")[0] for node in nodes if node.op == "get_attr"}
    accessed = {modules[owner] for owner in owners if owner in modules}
    for node, module in calls.items():
        first = node.args[0] if node.args else None
        if reason := _explain_obstacle(node, first, calls, counts, accessed):
            graph.reasons[module] = reason
        else:
            graph.producers[module] = calls[first]
    for module in model.modules():
        if module not in counts:
            also = ", but reads its parameters" if module in accessed else ""
            graph.reasons[module] = f"forward does not call it as a module{also}"
    for node in nodes:
        if getattr(node.target, "__name__", node.target) in _NORMALIZE:
            stack = list((node.meta.get("nn_module_stack") or {"": None}).values())
            inner = stack[-1][0] if stack[-1] else ""
            graph.functional.append(".".join(part for part in (name, inner) if part))
    return graph


def _merge_children(model: Module, name: str, reason: str) -> CallGraph:
    """Return the pairs within children; the reason is for modules between them."""
    graph = CallGraph()
    for child_name, child in model.named_children():
        inner = f"{name}.{child_name}".lstrip(".")
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            part = _merge_children(child, inner, reason)
        elif _Tracer().is_leaf_module(child, inner):
            part = CallGraph(reasons={child: reason})
        else:
            part = make_call_graph(child, inner)
        graph.producers |= part.producers
        graph.reasons |= part.reasons
        graph.functional += part.functional
    return graph


def _explain_obstacle(
    node: torch.fx.Node, first: Any, calls: Any, counts: Counter[Module], accessed: set[Module]
) -> str:
    """Return why a call is not the only user of a module's output; "" if it is."""
    module = calls[node]
    if counts[module] > 1:
        return f"it is called {counts[module]} times"
    if module in accessed:
        return "forward reads its parameters, too"
    if not isinstance(first, torch.fx.Node) or first.op == "placeholder":
        return "its input is an input of the model"
    if first not in calls:
        function = getattr(first.target, "__name__", first.target)
        return f"its input is the output of {function}, not of a layer"
    if counts[calls[first]] > 1:
        return f"layer {first.target!r} is called {counts[calls[first]]} times"
    if calls[first] in accessed:
        return f"forward reads the parameters of layer {first.target!r}, too"
    if len(first.users) > 1:
        return f"the output of layer {first.target!r} has other users"
    return ""
