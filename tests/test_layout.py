# SPDX-License-Identifier: Apache-2.0
"""The layout of the package: what imports what, read from the sources.

`import-linter` holds the layers, and folders free of circles; what is here sees single modules,
lazy imports included, and names.
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from places import ROOT

SOURCE = ROOT / "src"


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def folder_of(module: str) -> str:
    """The package that a module stands in; a package stands in itself."""
    return module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]


def only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run, those of functions included; not what is there for type checkers."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not only_for_types(child):
            yield from walk(child)


def imported(module: str) -> Iterator[tuple[str, str]]:
    """What a module imports of this package: (the module that it comes from, the name in it)."""
    for node in walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names if each.name.startswith("anybit"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anybit"):
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                yield (inner, "") if inner in FILES else (str(node.module), each.name)


def test_no_module_imports_itself_through_others() -> None:
    graph = {
        module: {source for source, _ in imported(module) if source in FILES} - {module}
        for module in FILES
    }
    assert sum(map(len, graph.values())) > 300, "the walk sees the imports"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        raise AssertionError(" -> ".join(reversed(circle.args[1]))) from None


def test_private_names_stay_in_their_folder() -> None:
    """`_x`, be it a module or a name in one, is for the modules of its own folder."""
    wrong = []
    for module in FILES:
        for source, name in imported(module):
            parts = [*source.split("."), *([name] if name else [])]
            private = [part.startswith("_") and not part.startswith("__") for part in parts]
            if not any(private):
                continue
            owner = ".".join(parts[: private.index(True)])
            if owner not in (folder_of(module), "anybit"):
                wrong.append(f"{module} imports {'.'.join(parts)}")
    assert not wrong


def test_files_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in (*SOURCE.rglob("*.py"), *SOURCE.rglob("*.?pp"))
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 300
    }
    assert not long
