# SPDX-License-Identifier: Apache-2.0
"""What the tests of a session share with PyTorch in it."""

import contextlib
import functools
import typing
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def exported_quickly() -> Iterator[None]:
    """What PyTorch does again for each export is done once: most of the time of a small one."""
    with pytest.MonkeyPatch.context() as patch:
        with contextlib.suppress(ImportError):
            read_translations_once(patch)
            make_composite_operators_once(patch)
        yield


def read_translations_once(patch: pytest.MonkeyPatch) -> None:
    """Each export has a registry of its own all the same."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = functools.cache(ONNXRegistry.from_torchlib)

    def from_torchlib(*version: int, **named: int) -> Any:
        kept, registry = read(*version, **named), ONNXRegistry()
        registry.__dict__ |= kept.__dict__
        registry.functions = {name: [*each] for name, each in kept.functions.items()}
        return registry

    patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(from_torchlib))


def make_composite_operators_once(patch: pytest.MonkeyPatch) -> None:
    """All of them were looked for some eighty times per export; now only where one is new. And
    each of thousands of decorators made the type `Callable[P, T]`, which that of `typing` keeps.
    """
    from torch import _C, _ops
    from torch._export import utils

    make, made = utils._materialize_cpp_cia_ops, set[str]()

    def make_new() -> None:
        found = _C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if not made.issuperset(found):
            make()
            made.update(found)

    patch.setattr(utils, "_materialize_cpp_cia_ops", make_new)
    patch.setattr(_ops, "Callable", typing.Callable)
