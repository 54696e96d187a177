# SPDX-License-Identifier: Apache-2.0
"""Names of classes and type aliases: unique in the package, unless private to a file."""

import ast
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"

# Names that several modules define on purpose, with the number of definitions.
EXCEPTIONS = {
    "DynamicScale": 2,  # of a program, and the PyTorch module
    "Layout": 3,  # of integer layers, of the scales of a module, of a Triton kernel
    "Quantizer": 2,  # of an ONNX graph, and the PyTorch module
}


def find_repeated(get_name: Callable[[ast.stmt], str]) -> dict[str, list[str]]:
    """Return the files of the names that several modules define."""
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for name in map(get_name, ast.parse(path.read_text(encoding="utf-8")).body):
            if name and not name.startswith("_"):
                files[name].append(str(path.relative_to(SOURCES)))
    return {name: paths for name, paths in files.items() if len(paths) > 1}


def get_class_name(node: ast.stmt) -> str:
    return node.name if isinstance(node, ast.ClassDef) else ""


def get_alias_name(node: ast.stmt) -> str:
    """Return the name of an alias: a capital, then small letters."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    name = targets[0].id if isinstance(targets[0], ast.Name) else ""
    return name if name[:1].isupper() and not name.isupper() else ""


def test_alias_names_are_unique_in_the_package() -> None:
    assert not find_repeated(get_alias_name)


def test_class_names_are_unique_in_the_package() -> None:
    repeated = find_repeated(get_class_name)
    faults = {name: paths for name, paths in repeated.items() if name not in EXCEPTIONS}
    assert not faults, faults
    assert {name: len(paths) for name, paths in repeated.items()} == EXCEPTIONS
