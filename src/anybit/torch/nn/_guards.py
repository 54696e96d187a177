# SPDX-License-Identifier: Apache-2.0
"""Tracing of users' forward passes that leaves no trace in the model, and takes no wrong branch.

A proxy is not a tensor, and Python's branches that ask what it is would be taken otherwise.
"""

import builtins
import dis
import pickle
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch.fx import Proxy
from torch.nn import Module

from anybit.torch.nn._in_place import InPlaceProxy

_LOCK = threading.RLock()  # builtins are of the whole process
_KNOWN = {"torch", "anybit", *sys.stdlib_module_names}
_OF_MODULES = vars(Module()).keys() - {"_buffers", "_parameters", "_modules"}
_TYPES = "it asks for the type of an argument"
_MISSING = object()

Saved = tuple[str, Any, tuple[Any, ...]]
"""The attribute whose value a container is, "" for attributes themselves; it; what it held."""


@contextmanager
def guarded(module: Module, training: bool) -> Iterator[None]:
    """Trace the module in one mode. Whatever that changes in it is set back.

    NotImplementedError for what a graph could not know: an argument's type that is asked for,
    random numbers, and attributes that are set, or lists, dicts and sets in them that change.
    """
    modes = [(part, part.training) for part in module.modules()]
    with _LOCK, _nothing_drawn():
        for part, _ in modes:
            part.training = training
        before = list(_containers(module))
        try:
            with _types_not_asked():
                yield
        finally:
            changed = list(dict.fromkeys(_restored(before)))
            for part, mode in modes:
                part.training = mode
    if changed:
        raise NotImplementedError(f"it sets {', '.join(changed)}")


def _containers(module: Module) -> Iterator[Saved]:
    seen: set[int] = set()
    for part in module.modules():
        stores = [vars(part), part._buffers, part._parameters, part._modules]
        waiting: list[tuple[str, Any]] = [("", each) for each in stores]
        while waiting:
            name, value = waiting.pop()
            if not isinstance(value, list | dict | set) or id(value) in seen:
                continue
            seen.add(id(value))
            held = tuple(value.items() if isinstance(value, dict) else value)
            yield name, value, held
            if value is vars(part):
                waiting += [each for each in held if each[0] not in _OF_MODULES]
            elif isinstance(value, dict):
                waiting += [(name or str(key), inner) for key, inner in held]
            else:
                waiting += [(name, inner) for inner in held]


def _restored(before: list[Saved]) -> Iterator[str]:
    """Set back what was changed: the names of the attributes."""
    for name, container, held in before:
        now = tuple(container.items() if isinstance(container, dict) else container)
        if _identities(now) == _identities(held):
            continue
        if name:
            yield name
        else:
            old, new = dict(held), dict(now)
            for each in {**new, **old}:
                # PyTorch's tracer makes an attribute of a tensor that depends on no input.
                known = each.startswith("_tensor_constant")
                if not known and old.get(each, _MISSING) is not new.get(each, _MISSING):
                    yield each
        container.clear()
        if isinstance(container, list):
            container.extend(held)
        else:
            container.update(held)


def _identities(held: tuple[Any, ...]) -> list[Any]:
    # Pairs of a dict are made anew each time.
    return [
        (id(each[0]), id(each[1])) if type(each) is tuple and len(each) == 2 else id(each)
        for each in held
    ]


@contextmanager
def _nothing_drawn() -> Iterator[None]:
    """NotImplementedError for random numbers, by which a graph would be that of one draw."""
    python, numpy = random.getstate(), _numpy_state()
    states = torch.get_rng_state()
    try:
        with torch.random.fork_rng():
            yield
            drawn = not torch.equal(torch.get_rng_state(), states)
        drawn = drawn or pickle.dumps(_numpy_state()) != pickle.dumps(numpy)
        if drawn or random.getstate() != python:
            raise NotImplementedError("it draws random numbers for no tensor")
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _numpy_state() -> Any:
    return np.random.get_state(legacy=False)  # noqa: NPY002 -- what users' code may draw from


@contextmanager
def _types_not_asked() -> Iterator[None]:
    """NotImplementedError where a forward pass asks what an argument is, or what it has."""
    thread = threading.get_ident()

    def is_asked(value: Any) -> bool:
        if not issubclass(type(value), Proxy) or threading.get_ident() != thread:
            return False
        frame = sys._getframe(2)
        return _root(frame) != "torch" or frame.f_code.co_name == "is_tensor"

    def asked(value: Any, kinds: Any) -> bool:
        if is_asked(value):
            raise NotImplementedError(_TYPES)
        return known(value, kinds)

    def attribute(proxy: Proxy, name: str) -> Any:
        code, place = sys._getframe(1).f_code, sys._getframe(1).f_lasti
        loaded = dis.opname[code.co_code[place]] in ("LOAD_ATTR", "LOAD_METHOD")
        # What is not loaded by name is asked for by hasattr or getattr.
        if not (loaded or name.startswith("__")) and is_asked(proxy):
            raise NotImplementedError("it asks which attributes an argument has")
        return next(found for kind, found in attributes.items() if known(proxy, kind))(proxy, name)

    known, profile = isinstance, sys.getprofile()
    attributes: dict[Any, Any] = {kind: kind.__getattr__ for kind in (InPlaceProxy, Proxy)}
    builtins.isinstance = asked
    for kind in attributes:
        kind.__getattr__ = attribute
    sys.setprofile(_entered())
    try:
        yield
    finally:
        sys.setprofile(profile if callable(profile) else None)
        for kind, found in attributes.items():
            kind.__getattr__ = found
        builtins.isinstance = known


def _entered() -> Any:
    """A function that looks at the code of users that a trace enters: `type` cannot be replaced."""
    seen: set[int] = set()

    def entered(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and id(code) not in seen:
            seen.add(id(code))
            known = _root(frame) in _KNOWN or not _asks_for_types(code)
            # What is imported only now, and runs for that, sees no argument.
            if not (known or _is_imported(frame)):
                raise NotImplementedError(_TYPES)

    return entered


def _asks_for_types(code: CodeType) -> bool:
    """Whether code has `type(...)`, `__class__` or a pattern, but not of self."""
    steps = list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        beside = {each.argval for each in steps[max(place - 1, 0) : place + 2] if each != step}
        asks = step.opname == "LOAD_GLOBAL" and step.argval in ("type", "callable")
        asks = asks or (step.opname == "LOAD_ATTR" and step.argval == "__class__")
        if step.opname.startswith("MATCH_") or (asks and "self" not in beside):
            return True
    return False


def _is_imported(frame: FrameType | None) -> bool:
    while frame is not None and _root(frame) != "anybit":
        if "importlib" in _root(frame):
            return True
        frame = frame.f_back
    return False


def _root(frame: FrameType) -> str:
    """The package whose code it is."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
