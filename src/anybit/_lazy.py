# SPDX-License-Identifier: Apache-2.0
"""Packages that load their public names when they are first used."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple


class PublicName(NamedTuple):
    """One public name: the module that defines it, its area, a description and a page of docs."""

    module: str
    area: str
    description: str
    page: str = ""


def load_public_name(package: str, names: Mapping[str, PublicName], name: str) -> Any:
    """Import the module of a public name and return its value.

    Raises:
        AttributeError: The package has no such public name.
    """
    public = names.get(name)
    if public is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module = import_module(public.module)
    return module if public.module == f"{package}.{name}" else getattr(module, name)
