# SPDX-License-Identifier: Apache-2.0
"""Error classes, and the `Raises` sections of public functions."""

import ast
import builtins
import inspect
import pickle
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import anybit
from anybit import errors
from anybit._public import PUBLIC
from anybit.onnx._public import PUBLIC as ONNX

CLASSES = [
    errors.AnybitError,
    errors.ModelError,
    errors.DataError,
    errors.OptionError,
    errors.DependencyError,
]
FUNCTIONS = {
    **{f"anybit.{name}": public for name, public in PUBLIC.items()},
    **{f"anybit.onnx.{name}": public for name, public in ONNX.items()},
}


def documented(function: Any) -> set[str]:
    """Return the exceptions of the `Raises` section."""
    section = re.search(
        r"^Raises:\n((?:[ ]+.*\n?|\n)+)", inspect.getdoc(function) or "", re.MULTILINE
    )
    return set() if section is None else set(re.findall(r"^    (\w+):", section[1], re.MULTILINE))


def raised(function: Any) -> set[str]:
    """Return the exceptions that the body of a function raises itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {
        node.exc.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
    }


def public_functions() -> Iterator[Any]:
    for path in FUNCTIONS:
        package, _, name = path.rpartition(".")
        value = getattr(anybit if package == "anybit" else anybit.onnx, name)
        if inspect.isfunction(value):
            yield pytest.param(value, id=path)
        elif inspect.isclass(value):
            for method, member in vars(value).items():
                if inspect.isfunction(member) and not method.startswith("_"):
                    yield pytest.param(member, id=f"{path}.{method}")


@pytest.mark.parametrize("function", list(public_functions()))
def test_raises_sections_name_what_the_body_raises(function: Any) -> None:
    function = inspect.unwrap(function)
    names = documented(function)
    for name in names:
        assert hasattr(errors, name) or hasattr(builtins, name), name
    assert raised(function) <= names


@pytest.mark.parametrize("error", CLASSES)
def test_errors_have_one_line_and_can_be_pickled(error: type[errors.AnybitError]) -> None:
    value = error("a node:\n  no such\toperator")
    assert str(value) == "a node: no such operator"
    assert isinstance(value, errors.AnybitError)
    copy = pickle.loads(pickle.dumps(value))
    assert (type(copy), str(copy)) == (error, str(value))


def test_errors_derive_from_builtin_errors() -> None:
    assert issubclass(errors.DependencyError, ImportError)
    for error in (errors.ModelError, errors.DataError, errors.OptionError):
        assert issubclass(error, ValueError)


def test_prefixed_keeps_the_class() -> None:
    with (
        pytest.raises(errors.DataError, match=r"^sample 3: it is empty$"),
        errors.prefix_errors("sample 3: "),
    ):
        raise errors.DataError("it is empty")
