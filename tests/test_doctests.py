# SPDX-License-Identifier: Apache-2.0
"""The examples in the docstrings of every module."""

import doctest
import importlib
import importlib.util
import pkgutil
import sys

import pytest

import anybit


def has_its_framework(module: str) -> bool:
    """Return False for `anybit.torch...` and `anybit.jax...` where the framework is missing."""
    _, package, *_ = [*module.split("."), ""]
    return package not in ("torch", "jax") or importlib.util.find_spec(package) is not None


# Native libraries lie beside the modules; they have no docstrings.
MODULES = [
    module.name
    for module in pkgutil.walk_packages(anybit.__path__, "anybit.")
    if has_its_framework(module.name)
    and str(importlib.util.find_spec(module.name).origin).endswith(".py")
    and not module.name.endswith("__main__")
]


def test_operators_have_examples() -> None:
    for operator in anybit.ops.OPERATORS:
        assert ">>> " + operator.name in (operator.function.__doc__ or "")


@pytest.mark.parametrize("name", MODULES)
def test_operator_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    # A function that is exported under its module's name hides the module.
    module = sys.modules[name]
    results = doctest.testmod(module)
    assert results.failed == 0
