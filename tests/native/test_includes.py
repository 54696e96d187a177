# SPDX-License-Identifier: Apache-2.0
"""Tests of the include order of the C++ folders."""

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "anybit"
# Folders that a folder may include besides itself.
ALLOWED = {
    "ops": set(),
    "_native/isa": {"ops"},
    "_native/threads": {"ops"},
    "_native/engine": {"ops", "_native/isa", "_native/threads"},
    "_native/lowbit": {"ops", "_native/isa", "_native/threads"},
    "_native/lowbit/kernels": {"ops", "_native/isa", "_native/lowbit"},
    "_native/ort": {"ops", "_native/engine", "_native/lowbit", "_native/threads"},
    "_native/xla": {"ops", "_native/engine", "_native/threads"},
    "_native/wasm": {"ops", "_native/engine"},
    "_native/python": {
        *("ops", "_native/isa", "_native/engine", "_native/lowbit", "_native/threads"),
        "_native/xla",
    },
}


def included_folders(folder: str) -> dict[str, set[str]]:
    """Return the folders that each file includes, by file name."""
    folders = {}
    for file in (SOURCES / folder).glob("*.[ch]pp"):
        paths = [Path(path) for path in re.findall(r'#include "(.+)"', file.read_text())]
        for path in paths:
            assert (SOURCES / path if len(path.parts) > 1 else file.parent / path).is_file()
        folders[file.name] = {path.parent.as_posix() for path in paths if len(path.parts) > 1}
    return folders


def test_includes_cover_every_folder() -> None:
    folders = {
        file.parent.relative_to(SOURCES).as_posix()
        for pattern in ("*.cpp", "*.hpp")
        for file in SOURCES.rglob(pattern)
    }
    assert folders == set(ALLOWED)


@pytest.mark.parametrize("folder", ALLOWED)
def test_includes_follow_the_order_of_folders(folder: str) -> None:
    files = included_folders(folder)
    assert files
    beyond = {name: used - ALLOWED[folder] for name, used in files.items()}
    assert {name: used for name, used in beyond.items() if used} == {}
