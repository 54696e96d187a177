# SPDX-License-Identifier: Apache-2.0
"""Class names: unique in the package, unless private to a file."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"

# Names that several modules define on purpose, with the number of definitions.
EXCEPTIONS = {
    "DynamicScale": 2,  # of a program, and the PyTorch module
    "Layout": 3,  # of integer layers, of the scales of a module, of a Triton kernel
    "Quantizer": 2,  # of an ONNX graph, and the PyTorch module
}


def test_class_names_are_unique_in_the_package() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path.relative_to(SOURCES)))
    repeated = {name: paths for name, paths in files.items() if len(paths) > 1}
    faults = {name: paths for name, paths in repeated.items() if name not in EXCEPTIONS}
    assert not faults, faults
    assert {name: len(paths) for name, paths in repeated.items()} == EXCEPTIONS
