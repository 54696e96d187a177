# SPDX-License-Identifier: Apache-2.0
"""What the tests of a session share with PyTorch in it."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def translations_read_once() -> Iterator[None]:
    """PyTorch reads its library of translations to ONNX anew for each export, half of the time of a
    small one. Here it is read once; each export has a registry of its own all the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        with contextlib.suppress(ImportError):
            patch_registry(patch)
        yield


def patch_registry(patch: pytest.MonkeyPatch) -> None:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = functools.cache(ONNXRegistry.from_torchlib)

    def from_torchlib(*version: int, **named: int) -> Any:
        kept, registry = read(*version, **named), ONNXRegistry()
        registry.__dict__ |= kept.__dict__
        registry.functions = {name: [*each] for name, each in kept.functions.items()}
        return registry

    patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(from_torchlib))
