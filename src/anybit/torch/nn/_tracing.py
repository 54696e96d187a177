# SPDX-License-Identifier: Apache-2.0
"""Forward passes of users' modules as graphs, for all cases in which they are called.

A forward pass is traced by torch.fx, with all that the module calls as one call each, in training
and eval mode and for every optional argument given and left out.
"""

import dis
import inspect
import itertools
import operator
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.checkpoint
from torch.fx import Graph, Node, Proxy
from torch.nn import Module

from anybit.torch.nn._function_calls import function_calls, normalize_arguments
from anybit.torch.nn._guards import guarded
from anybit.torch.nn._in_place import InPlaceProxy
from anybit.torch.nn._scores import comes_from_softmax

# Up to so many switches are traced in all combinations; of more, one by one.
_ALL = 6
_TORCH = os.path.dirname(torch.__file__) + os.sep

Case = tuple[bool, ...]
"""The mode, and for each optional argument whether it is left out, or what flag it is."""


@dataclass(frozen=True)
class Function:
    """A function of activations.

    Attributes:
        kind: A key of `KINDS`.
        unsigned: Whether the first factor comes from softmax, and is never negative.
    """

    kind: str
    unsigned: bool


@dataclass
class Traced:
    """A forward pass.

    Attributes:
        switches: The arguments that Python's branches may depend on: optional ones, flags, and
            required ones that forward compares with None.
        usual: The case of the defaults in eval mode.
        required: The switches without a default.
        graphs: What is computed, by case; calls of functions know their names.
        failed: Cases that cannot be traced, with the reasons.
        functions: By name in the module.
    """

    switches: tuple[str, ...]
    usual: Case = ()
    required: frozenset[str] = frozenset()
    graphs: dict[Case, Graph] = field(default_factory=dict)
    failed: dict[Case, str] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> "Traced":
        return self

    def refused(self) -> list[str]:
        """Which calls other than the usual ones were not traced, each with the reason."""
        found: dict[str, str] = {}
        for case, why in self.failed.items():
            unusual = zip(self.switches, case[1:], self.usual[1:], strict=True)
            names = [name for name, value, usual in unusual if value != usual]
            # Of what fails by itself, combinations are not said; nor None for what is required.
            said_before = any(set(each.split(" and ")) <= set(names) for each in found)
            if not (said_before or self.required & set(names)):
                found[" and ".join(names)] = why
        said = [f"{names} not as by default: {why}" for names, why in found.items()]
        if len(self.switches) > _ALL:
            said.append(f"not as by default more than one of {', '.join(self.switches)}")
        return said


def traced(module: Module) -> Traced | str:
    """The forward pass of a module, or why it cannot be traced."""
    parameters = _parameters(module)
    tested = _compared_with_none(type(module).forward)
    switches = tuple(name for name, each in parameters.items() if _is_switch(each, tested))
    defaults = [parameters[name].default for name in switches]
    cases = list(_cases(defaults))
    required = {name for name in switches if parameters[name].default is inspect.Parameter.empty}
    found = Traced(switches, cases[0], frozenset(required))
    names: dict[Any, str] = {}
    for case in cases:
        concrete = {
            name: value if isinstance(default, bool) else None
            for name, value, default in zip(switches, case[1:], defaults, strict=True)
            if value or isinstance(default, bool)
        }
        try:
            graph, sites = _graph(module, case[0], concrete)
        except Exception as error:  # forward is the user's code: for proxies it raises anything
            found.failed[case] = (str(error).strip() or type(error).__name__).splitlines()[0]
            if case[1:] == cases[0][1:]:
                return found.failed[case]
            continue
        found.graphs[case] = graph
        for node, kind in function_calls(graph, module):
            site = (kind, sites[node])
            if site not in names:
                names[site] = _free_name(kind, module, found)
                found.functions[names[site]] = Function(kind, unsigned=True)
            if not comes_from_softmax(node, module):
                found.functions[names[site]] = Function(kind, unsigned=False)
            node.meta["function"] = names[site]
            normalize_arguments(node, kind)
    return found


class _Tracer(torch.fx.Tracer):
    """Everything that is called is one call; every call knows where it comes from."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[Node, Any] = {}
        self._times: Counter[Any] = Counter()
        self._state = _state()

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: Node) -> Proxy:
        return InPlaceProxy(node, self)

    def create_proxy(self, *arguments: Any, **named: Any) -> Proxy:
        if _state() != self._state:
            raise NotImplementedError("it changes the mode of gradients or of autocast")
        found: Proxy = super().create_proxy(*arguments, **named)
        site = tuple(_frames())
        if any(file == torch.utils.checkpoint.__file__ for file, _, _ in site):
            raise NotImplementedError("it uses activation checkpointing, which a graph has not")
        self.sites[found.node] = (site, self._times[site])
        self._times[site] += 1
        return found


def _frames() -> Iterator[tuple[str, int, int]]:
    """Where the user's forward pass is now."""
    frame = sys._getframe(2)
    while frame.f_code is not _graph.__code__:
        code = frame.f_code
        checkpoint = code.co_filename == torch.utils.checkpoint.__file__
        if checkpoint or not code.co_filename.startswith(_TORCH):
            yield code.co_filename, code.co_firstlineno, frame.f_lasti
        assert frame.f_back is not None
        frame = frame.f_back


def _state() -> tuple[bool, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
    )


def _graph(module: Module, training: bool, concrete: dict[str, Any]) -> tuple[Graph, Any]:
    """The graph of a forward pass with these arguments, and where its calls come from."""
    with guarded(module, training):
        tracer = _Tracer()
        graph = tracer.trace(module, concrete_args=concrete)
    if any(str(node.target).startswith("_tensor_constant") for node in graph.nodes):
        raise NotImplementedError("it makes a tensor that depends on no input: make it a buffer")
    _drop_assertions(graph)
    return graph, tracer.sites


def _drop_assertions(graph: Graph) -> None:
    """Drop what says which arguments were traced: that is asked before, in one place."""
    for node in reversed(list(graph.nodes)):
        if node.target in (torch.fx._symbolic_trace._assert_is_none, torch._assert):
            read = node.all_input_nodes
            if not node.users:
                graph.erase_node(node)
            for each in read:
                if each.target is operator.eq and not each.users:
                    graph.erase_node(each)


def _parameters(module: Module) -> Mapping[str, inspect.Parameter]:
    return arguments_of(type(module).forward)


def arguments_of(forward: Any) -> dict[str, inspect.Parameter]:
    parameters = list(inspect.signature(forward).parameters.items())
    return dict(parameters[1:])


def _is_switch(parameter: inspect.Parameter, tested: set[str]) -> bool:
    required = parameter.default is parameter.empty and parameter.name in tested
    return required or parameter.default is None or isinstance(parameter.default, bool)


def _compared_with_none(forward: Any) -> set[str]:
    """The names that the code of a function asks whether they are None."""
    steps = list(dis.get_instructions(inspect.unwrap(forward)))
    found = set()
    for step, after in itertools.pairwise(steps):
        jump = after.opname.startswith("POP_JUMP") and after.opname.endswith("_NONE")
        if jump or (after.opname == "LOAD_CONST" and after.argval is None):
            # Later versions of Python load two variables by one instruction.
            found.add(step.argval[-1] if isinstance(step.argval, tuple) else step.argval)
    return {each for each in found if isinstance(each, str)}


def _cases(defaults: list[Any]) -> Iterator[Case]:
    """All cases to trace, usual ones first."""
    usual = tuple(each is None or each is True for each in defaults)
    if len(usual) <= _ALL:
        every = itertools.product(*((each, not each) for each in usual))
        combinations = list(every)
    else:
        flipped = (
            tuple(each != (place == other) for other, each in enumerate(usual))
            for place in range(len(usual))
        )
        combinations = [usual, *flipped]
    for each, training in itertools.product(combinations, (False, True)):
        yield training, *each


def _free_name(kind: str, module: Module, found: Traced) -> str:
    names = itertools.chain([kind], (f"{kind}_{number}" for number in itertools.count(1)))
    return next(each for each in names if not hasattr(module, each) and each not in found.functions)
