# SPDX-License-Identifier: Apache-2.0
"""Which module reads what another one gives: from the graph of a forward pass."""

from collections import Counter
from collections.abc import Iterator

import torch
from torch.nn import Module


class _Tracer(torch.fx.Tracer):
    """Enters containers and modules of users; ours and PyTorch's are one call each."""

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        ours = type(m).__module__.startswith("anybit.")
        return ours or bool(super().is_leaf_module(m, module_qualified_name))


def followed(model: Module) -> Iterator[tuple[Module, Module]]:
    """Pairs of modules: what the first one gives is read by the second one, and by nothing else.

    Both are called once, and the first one's parameters are read nowhere else. Where a forward
    pass cannot be traced, for it branches on values, the parts of the model are traced by
    themselves.
    """
    tracer = _Tracer()
    try:
        with torch.random.fork_rng():
            nodes = list(tracer.trace(model).nodes)
    except Exception:  # forward is the user's code: what it raises for proxies is anything
        for child in model.children():
            yield from followed(child)
        return
    modules = dict(model.named_modules(remove_duplicate=False))
    calls = [node for node in nodes if node.op == "call_module"]
    times = Counter(modules[node.target] for node in calls)
    read = {node.target.rpartition(".")[0] for node in nodes if node.op == "get_attr"}
    touched = {modules[name] for name in read if name in modules}
    for node in calls:
        first = node.args[0] if node.args else None
        if not (isinstance(first, torch.fx.Node) and first.op == "call_module"):
            continue
        before, after = modules[first.target], modules[node.target]
        once = times[before] == times[after] == 1 and len(first.users) == 1
        if once and not {before, after} & touched:
            yield before, after
