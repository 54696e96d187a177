# SPDX-License-Identifier: Apache-2.0
"""C code in other projects: the snippets of docs/microcontrollers.md build a program that works."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from places import EXAMPLE, EXAMPLES, ROOT

import anybit
from anybit.errors import OptionError

PAGE = ROOT / "docs" / "microcontrollers.md"
SNIPPETS = re.findall(r"^```(cpp|cmake|make)\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
(CALL,) = (code for language, code in SNIPPETS if language == "cpp")
CMAKE, ZEPHYR = (code for language, code in SNIPPETS if language == "cmake")
(MAKE,) = (code for language, code in SNIPPETS if language == "make")
ROWS = 20

MAIN = """
#include <cstdio>

int main() {
  float image[DIGITS_INPUT_SIZE];
  while (std::fread(image, sizeof image, 1, stdin)) std::printf("%d\\n", classify(image));
}
"""
PROJECT = "cmake_minimum_required(VERSION 3.18)\nproject(app LANGUAGES C CXX)\n"
# In Zephyr `app` is a library that it makes and links.
PROJECTS = {
    "cmake": f"{PROJECT}add_executable(app app.cpp)\n{CMAKE}",
    "zephyr": f"{PROJECT}add_library(app STATIC)\n{ZEPHYR}"
    "add_executable(program app.cpp)\ntarget_link_libraries(program app)\n"
    "target_include_directories(program PRIVATE net)\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the C code in `net`, and the call of the page as a program."""
    anybit.compile(EXAMPLE).to_c(tmp_path / "net", name="digits")
    (tmp_path / "app.cpp").write_text(CALL + MAIN, "utf-8")
    return tmp_path


def build(folder: Path, *command: str) -> None:
    """Run a command of a build; skip the test if it is not installed."""
    if not shutil.which(command[0]) or not shutil.which("c++"):
        pytest.skip(f"not installed: {command[0]}, or a compiler")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def assert_classes_are_right(program: Path) -> None:
    """Compare the classes that a program prints with those of the reference."""
    with np.load(EXAMPLES / "digits.npz") as digits:
        x, y = digits["x"][:ROWS], digits["y"][:ROWS]
    rows = [*x, np.full_like(x[0], np.nan)]
    done = subprocess.run(
        [program], input=np.stack(rows).tobytes(), capture_output=True, check=True
    )
    assert [int(line) for line in done.stdout.split()] == [*y.argmax(axis=1), -1]


@pytest.mark.parametrize("name", PROJECTS)
def test_c_project_builds_with_cmake(name: str, folder: Path) -> None:
    (folder / "CMakeLists.txt").write_text(PROJECTS[name], "utf-8")
    build(folder, "cmake", "-B", "build")
    build(folder, "cmake", "--build", "build")
    assert_classes_are_right(folder / "build" / ("app" if name == "cmake" else "program"))


def test_c_project_builds_with_make(folder: Path) -> None:
    (folder / "Makefile").write_text(MAKE, "utf-8")
    build(folder, "make")
    assert_classes_are_right(folder / "app")


def test_c_project_has_static_arena(folder: Path) -> None:
    call = CALL.replace("digits_run(image, scores, arena)", "digits_run_static(image, scores)")
    call = re.sub(r"  static int32_t arena.*\n", "", call)
    (folder / "app.cpp").write_text(f"#define DIGITS_STATIC_ARENA\n{call}{MAIN}", "utf-8")
    (folder / "Makefile").write_text(MAKE, "utf-8")
    build(folder, "make")
    assert_classes_are_right(folder / "app")


def test_c_self_test_is_a_unit_for_arduino(folder: Path) -> None:
    warnings = ("-Wall", "-Wextra", "-pedantic", "-Werror")
    build(folder, "cc", "-std=c99", "-DARDUINO=1", *warnings, "-c", "net/digits_test.c")


def test_c_limits_must_not_be_negative(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="limits are 0 bytes or more, got -1 for ram"):
        anybit.compile(EXAMPLE).to_c(tmp_path / "net", limits={"ram": -1})
    assert not (tmp_path / "net").exists()
