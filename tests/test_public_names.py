# SPDX-License-Identifier: Apache-2.0
"""Public names: they exist, are documented, and cost no import before they are used."""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from places import ROOT

from anybit import _public, ops
from anybit.onnx import _public as _onnx_public

OPERATORS = sorted(operator.name for operator in ops.OPERATORS)
TABLES = {"anybit": _public.PUBLIC, "anybit.onnx": _onnx_public.PUBLIC}
PACKAGES = [
    *TABLES,
    *("anybit.comparison", "anybit.formats", "anybit.jax", "anybit.onnxruntime"),
    *("anybit.torch", "anybit.torch.nn"),
]


def package(name: str) -> ModuleType:
    for framework in ("torch", "jax"):
        if f".{framework}" in name:
            pytest.importorskip(framework)
    return importlib.import_module(name)


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_exist_and_have_docstrings(name: str) -> None:
    module = package(name)
    assert inspect.getdoc(module)
    assert set(module.__all__) <= set(dir(module))
    for attribute in module.__all__:
        value = getattr(module, attribute)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name}.{attribute}"


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_documented(name: str) -> None:
    words = set(re.findall(r"\w+", (ROOT / "docs" / "names.md").read_text(encoding="utf-8")))
    assert set(package(name).__all__) <= words


@pytest.mark.parametrize("name", TABLES)
def test_public_names_table_has_module_and_page(name: str) -> None:
    for attribute, public in TABLES[name].items():
        value = getattr(package(name), attribute)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__.startswith(public.module), attribute
        assert public.description.endswith(".")
        assert not public.page or (ROOT / "docs" / public.page.partition("#")[0]).exists()


def test_package_rejects_unknown_names() -> None:
    for name in TABLES:
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            package(name).nonsense  # noqa: B018


@pytest.mark.parametrize("name", ["anybit.torch", "anybit.jax"])
def test_stubs_match_the_operators(name: str) -> None:
    module = package(name)
    text = Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert sorted(functions) == OPERATORS
    for operator, node in functions.items():
        parameters = inspect.signature(getattr(module, operator)).parameters
        arguments = [*node.args.args, *node.args.kwonlyargs]
        assert [argument.arg for argument in arguments] == list(parameters)
        required = len(node.args.args) - len(node.args.defaults)
        defaults = [inspect.Parameter.empty] * required + [
            ast.literal_eval(default) for default in (*node.args.defaults, *node.args.kw_defaults)
        ]
        assert defaults == [parameter.default for parameter in parameters.values()]
        assert ast.get_docstring(node)
    names = next(node for node in tree.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(names.value) == sorted(module.__all__)


@pytest.mark.parametrize("name", [*PACKAGES, "anybit.ops", "anybit.compat", "anybit.cli"])
def test_submodules_are_not_shadowed_by_names(name: str) -> None:
    """Check that a name keeps its meaning whatever was imported before."""
    module = package(name)
    for submodule in pkgutil.iter_modules(getattr(module, "__path__", ())):
        framework = submodule.name if submodule.name in ("jax", "torch") else "anybit"
        if submodule.name.startswith("_") or not importlib.util.find_spec(framework):
            continue
        importlib.import_module(f"{name}.{submodule.name}")
        assert inspect.ismodule(getattr(module, submodule.name)), f"{name}.{submodule.name}"


def modules_after(code: str) -> set[str]:
    code = f"{code}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", TABLES)
def test_import_loads_no_other_module(name: str) -> None:
    loaded = modules_after(f"import {name}")
    ours = {module for module in loaded if module.startswith("anybit")}
    tables = {"anybit", "anybit._lazy", "anybit._public", "anybit.onnx", "anybit.onnx._public"}
    assert ours <= tables
    assert not loaded & {"numpy", "onnx", "onnxruntime", "signal"}


def test_import_has_no_side_effects() -> None:
    """Neither for a program of our name, nor in a wrong environment."""
    code = (
        "import os, signal, sys; sys.argv = ['bin/anybit']; os.environ['ANYBIT_ISA'] = 'nonsense'\n"
        "before = signal.getsignal(signal.SIGINT); import anybit\n"
        "assert signal.getsignal(signal.SIGINT) is before"
    )
    assert "anybit" in modules_after(code)


def test_operators_load_no_model_code() -> None:
    loaded = modules_after("import anybit, numpy as np; anybit.int_quant(np.ones(3), 1, 0, 4)")
    ours = {module.split(".")[1] for module in loaded if module.startswith("anybit.")}
    assert ours == {
        "_lazy",
        "_native",
        "_public",
        "arrays",
        "errors",
        "formats",
        "ops",
        "quant_types",
    }
    assert not loaded & {"onnx", "onnx_ir", "onnxruntime", "sympy"}


def test_api_page_lists_all_names() -> None:
    page = (ROOT / "docs" / "api" / "anybit.rst").read_text(encoding="utf-8")
    listed = re.findall(r"auto(?:function|class|exception):: anybit\.(\w+)", page)
    assert sorted(listed) == sorted({*_public.PUBLIC} - {"formats"})
