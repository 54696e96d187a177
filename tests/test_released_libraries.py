# SPDX-License-Identifier: Apache-2.0
"""Checks of libraries before their release, on small libraries that are built here."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT
from scripts import load_module

pytest.importorskip("lief", reason="lief, which reads libraries, is installed for releases only")
COMPILER = shutil.which("cc")
GLIBC = tuple(map(int, platform.libc_ver()[1].split("."))) if platform.libc_ver()[1] else (0, 0)
pytestmark = [
    pytest.mark.skipif(platform.system() != "Linux", reason="the libraries made are Linux's"),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler is installed"),
    pytest.mark.skipif(not shutil.which("objdump"), reason="no objdump reads instructions"),
]

libraries = load_module(ROOT / "tools/libraries.py")
EXPORTED = "int Register(void) { return 1; }\n"


def faults(folder: Path, source: str, *flags: str) -> list[str]:
    """Return the faults of the library that a C source is compiled to."""
    (folder / "library.c").write_text(source, encoding="utf-8")
    made = folder / "library.so"
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", *(flags or ["-s"]), "library.c", "-o", str(made)]
    subprocess.run(command, cwd=folder, check=True)
    return list(libraries.check_library(made.read_bytes(), "Register"))


def test_library_check_reports_missing_kernels(tmp_path: Path) -> None:
    messages = faults(tmp_path, EXPORTED)
    assert messages
    assert all(message.startswith("lacks the instructions of ") for message in messages)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (
            'const char *file(void) __attribute__((visibility("hidden")));\n'
            'const char *file(void) { return "/home/somebody/core.cpp"; }\n',
            "names [b'/home/somebody/core.cpp']",
        ),
        ("int second(void) { return 2; }\n", "exports ['Register', 'second']"),
        pytest.param(
            "void *dlopen(const char *, int);\n"
            'void *opened(void) __attribute__((visibility("hidden"), used));\n'
            "void *opened(void) { return dlopen(0, 1); }\n",
            "needs ['GLIBC_2.34']",
            marks=pytest.mark.skipif(GLIBC < (2, 34), reason="an old system's C library"),
        ),
    ],
)
def test_library_check_reports_faults(source: str, fault: str, tmp_path: Path) -> None:
    assert fault in faults(tmp_path, EXPORTED + source)


def test_library_check_reports_debug_symbols(tmp_path: Path) -> None:
    fault = "has the symbols of its functions: strip it"
    assert fault in faults(tmp_path, EXPORTED, "-O1")


def test_library_check_reports_uncommon_dependencies(tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text("int other(void) { return 3; }\n", encoding="utf-8")
    assert COMPILER is not None
    other = [COMPILER, "-shared", "-fPIC", "other.c", "-o", "libother.so"]
    subprocess.run(other, cwd=tmp_path, check=True)
    source = "int other(void);\nint Register(void) { return other(); }\n"
    messages = faults(tmp_path, source, "-s", "-L.", "-Wl,--no-as-needed", "-lother")
    assert "needs ['libother.so']" in messages
