# SPDX-License-Identifier: Apache-2.0
"""Graphs of forward passes by torch.fx, traced without changing the model."""

import copy
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, Proxy, Tracer
from torch.nn import Module
from torch.utils import _pytree


class StrictProxy(Proxy):
    """A proxy that raises where it would answer a question about its type wrongly."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # isinstance reads this where the real type does not match. torch.fx itself needs an answer.
        if not str(sys._getframe(1).f_globals.get("__name__")).startswith("torch."):
            raise NotImplementedError("it asks for the type of a tensor")
        return StrictProxy

    def __getattr__(self, k: str) -> Any:
        if not hasattr(torch.Tensor, k):
            raise NotImplementedError(f"it reads attribute {k!r}, which tensors do not have")
        return super().__getattr__(k)


class StrictTracer(Tracer):
    """A tracer that treats buffers as tensors of the graph and uses strict proxies."""

    proxy_buffer_attributes = True

    def proxy(self, node: torch.fx.Node) -> Proxy:
        return StrictProxy(node, self)


def trace(
    module: Module, tracer: Tracer, training: bool, concrete: Mapping[str, Any] | None = None
) -> Graph:
    """Return the graph of a module's forward pass in training or eval mode.

    A copy that shares parameters and buffers is traced. `concrete` has values for arguments.

    Raises:
        NotImplementedError: The graph would hold for this trace only.
        Exception: Whatever forward raises when it is called with proxies.
    """
    tensors = (*module.parameters(), *module.buffers())
    copied = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    for part in copied.modules():
        part.training = training
    with _refuse_random_numbers():
        graph = tracer.trace(copied, concrete_args=dict(concrete or {}))
    for part in copied.modules():
        for name, value in vars(part).items():
            if any(isinstance(leaf, Proxy) for leaf in _pytree.tree_leaves(value)):
                raise NotImplementedError(f"it stores a tensor in attribute {name!r}")
    return graph


@contextmanager
def _refuse_random_numbers() -> Iterator[None]:
    """Restore random states; NotImplementedError if numbers were drawn outside of the graph."""
    python, state = random.getstate(), torch.get_rng_state()
    try:
        with torch.random.fork_rng():
            yield
            drawn = not torch.equal(torch.get_rng_state(), state)
        if drawn or random.getstate() != python:
            raise NotImplementedError("it draws random numbers outside of the graph")
    finally:
        random.setstate(python)
