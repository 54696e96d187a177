# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the PyTorch tests."""

import contextlib
import functools
import typing
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def exported_quickly() -> Iterator[None]:
    """Cache computations that PyTorch repeats in each export, most of the time of a small one."""
    with pytest.MonkeyPatch.context() as patch:
        with contextlib.suppress(ImportError):
            read_translations_once(patch)
            make_composite_operators_once(patch)
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: on small tensors more of them wait for one another."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def read_translations_once(patch: pytest.MonkeyPatch) -> None:
    """Cache the registry of translations; each export gets a copy."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = functools.cache(ONNXRegistry.from_torchlib)

    def from_torchlib(*version: int, **named: int) -> Any:
        kept, registry = read(*version, **named), ONNXRegistry()
        registry.__dict__ |= kept.__dict__
        registry.functions = {name: [*values] for name, values in kept.functions.items()}
        return registry

    patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(from_torchlib))


def make_composite_operators_once(patch: pytest.MonkeyPatch) -> None:
    """Search composite operators only if there are new ones, instead of 80 times per export.

    Thousands of decorators create the type `Callable[P, T]`, which that of `typing` caches.
    """
    from torch import _C, _ops
    from torch._export import utils

    make, made = utils._materialize_cpp_cia_ops, set[str]()

    def make_new() -> None:
        result = _C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if not made.issuperset(result):
            make()
            made.update(result)

    patch.setattr(utils, "_materialize_cpp_cia_ops", make_new)
    patch.setattr(_ops, "Callable", typing.Callable)
