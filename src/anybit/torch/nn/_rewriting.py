# SPDX-License-Identifier: Apache-2.0
"""Modules of users in which functions of activations become modules.

A module stays the object that it is, with another class: a subclass of its own, of which `forward`
is what was traced.
"""

from collections.abc import Mapping
from typing import Any

from torch.nn import Module

from anybit.torch.nn._tracing import Case, Traced, arguments_of


def rewrite(module: Module, found: Traced, functions: Mapping[str, Module]) -> None:
    """Let the module call these, by name, where its forward pass called functions."""
    for graph in found.graphs.values():
        for node in graph.nodes:
            if node.meta.get("function") in functions:
                node.op, node.target = "call_module", node.meta["function"]
        graph.lint()
    for name, function in functions.items():
        module.add_module(name, function)
    module.__class__ = _class(type(module), found)


class Rewritten(Module):
    """A module with another forward pass. Copies and pickles have it, too."""

    _traced: Traced

    def __reduce_ex__(self, protocol: Any) -> Any:
        _, _, *state = super().__reduce_ex__(protocol)
        original = type(self).__mro__[2]
        return (_blank, (original, self._traced), *state)


def _blank(original: type[Module], found: Traced) -> Module:
    made: Any = _class(original, found)
    blank: Module = made.__new__(made)
    return blank


def _class(original: type[Module], found: Traced) -> type[Module]:
    names = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    documented = {"__doc__": original.__doc__, "_traced": found}
    members = {**names, **documented, "forward": _forward(original, found)}
    return type(original.__name__, (Rewritten, original), members)


def _forward(original: type[Module], found: Traced) -> Any:
    """One function of all graphs, which looks at the mode and at the optional arguments."""
    made: dict[str, Any] = {}
    bodies: dict[Case, Any] = {}
    for case, graph in found.graphs.items():
        code = graph.python_code("self")
        if code.src not in made:
            made[code.src] = _compiled(code.src, dict(code.globals))
        bodies[case] = made[code.src]
    where = original.__name__

    def body(case: Case) -> Any:
        if case not in bodies:
            said = dict(zip(("training", *found.switches), case, strict=True))
            why = found.failed.get(case, "such a call was not traced")
            raise RuntimeError(
                f"forward of {where} has functions with quantizers, and cannot be called like "
                f"this ({said}; True for an argument that is None): {why}"
            )
        return bodies[case]

    if len(made) == 1 and not found.failed:
        return next(iter(made.values()))
    heads, passed, values, defaults = _arguments(original, found.switches)
    source = (
        f"def forward(self, {', '.join(heads)}):\n"
        f"    case = (self.training, {', '.join(values)})\n"
        f"    return (bodies[case] if case in bodies else body(case))(self, {', '.join(passed)})\n"
    )
    return _compiled(source, {"body": body, "bodies": bodies, **defaults})


def _arguments(
    original: type[Module], switches: tuple[str, ...]
) -> tuple[list[str], list[str], list[str], dict[str, Any]]:
    """Of forward: arguments as declared, as passed on, what makes a case, and their defaults."""
    heads: list[str] = []
    passed, values, defaults = [], [], {}
    for name, each in arguments_of(original.forward).items():
        star = "*" * (each.kind == each.VAR_POSITIONAL) + "**" * (each.kind == each.VAR_KEYWORD)
        if each.kind == each.KEYWORD_ONLY and not any(head.startswith("*") for head in heads):
            heads.append("*")
        heads.append(f"{star}{name}")
        passed.append(f"{star}{name}")
        if each.default is not each.empty:
            defaults[f"default_of_{name}"] = each.default
            heads[-1] += f"=default_of_{name}"
        if name in switches:
            flag = isinstance(each.default, bool)
            values.append(f"bool({name})" if flag else f"{name} is None")
    return heads, passed, values, defaults


def _compiled(source: str, known: dict[str, Any]) -> Any:
    exec(compile(source, "<forward with quantized functions>", "exec"), known)
    return known["forward"]
