# SPDX-License-Identifier: Apache-2.0
"""The layout of the package: what imports what, read from the sources.

`import-linter` holds the layers, and folders free of circles; what is here sees single modules,
lazy imports included, and names.
"""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from places import ROOT

SOURCE = ROOT / "src"


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes that run, those of functions included, but not those for type checkers."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not only_for_types(child):
            yield from walk(child)


def imported(module: str) -> Iterator[tuple[str, str]]:
    """Yield the imports of a module from this package: (source module, name in it).

    Attributes of an imported module count, as in `_native._core`. So do names of modules in
    strings, which are imported when they are needed.
    """
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    bound: dict[str, str] = {}  # what names stand for
    for node in walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "anybit":
                    bound[alias.asname or "anybit"] = alias.name if alias.asname else "anybit"
                    yield alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} has a relative import"
            if str(node.module).split(".")[0] != "anybit":
                continue
            for alias in node.names:
                source, name = parted(f"{node.module}.{alias.name}")
                if not name:
                    bound[alias.asname or alias.name] = source
                yield source, name
        elif isinstance(node, ast.Constant) and node.value in FILES and node.value != "anybit":
            yield node.value, ""
    for node in walk(tree):
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and node.id in bound:
            yield parted(".".join([bound[node.id], *names]))


def parted(path: str) -> tuple[str, str]:
    """Split a dotted path into the module and the first name in it."""
    source, names = path, []
    while source not in FILES:
        source, _, name = source.rpartition(".")
        names.append(name)
    return source, names[-1] if names else ""


def test_modules_have_no_import_cycles() -> None:
    graph = {
        module: {source for source, _ in imported(module) if source in FILES} - {module}
        for module in FILES
    }
    assert sum(map(len, graph.values())) > 300, "the walk sees the imports"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        raise AssertionError(" -> ".join(reversed(circle.args[1]))) from None


def test_private_names_are_used_in_their_package_only() -> None:
    """Check that modules and names that begin with `_` are used in their package only.

    `anybit.a._b` may be imported by `anybit.a` and what is below it, at any depth, and `anybit._c`
    by everybody here, but `anybit._c._d` by `anybit._c` and what is below that only. A name in a
    module other than a package is for this module alone. Imports for type checkers do not count.
    """
    wrong = {
        f"{module} imports {'.'.join(parts)}"
        for module in FILES
        for source, name in imported(module)
        for parts in [[*source.split("."), *([name] if name else [])]]
        for at, part in enumerate(parts)
        if part.startswith("_") and not part.startswith("__")
        if not f"{module}.".startswith(".".join(parts[:at]) + ".")
    }
    assert not wrong


def test_source_files_have_at_most_600_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in (*SOURCE.rglob("*.py"), *SOURCE.rglob("*.?pp"))
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 600
    }
    assert not long


def test_no_masked_loads_of_avx2() -> None:
    # On AMD's processors they may fault at elements that the mask leaves out.
    folder = ROOT / "src" / "anybit"
    sources = [*folder.rglob("*.hpp"), *folder.rglob("*.cpp"), *folder.rglob("*.j2")]
    assert sources
    masked = re.compile(r"_mm(256)?_mask(load|store|moveu)_")
    assert [path for path in sources if masked.search(path.read_text(encoding="utf-8"))] == []
