# SPDX-License-Identifier: Apache-2.0
"""Commands refuse an output that would replace a file they read, before any work."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from float_models import convolutions, data_for
from shell import Shell


@pytest.fixture
def files(shell: Shell) -> Shell:
    x = np.concatenate([sample["x"] for sample in data_for("convolutions")])
    onnx.save(convolutions(), "net.onnx")
    shutil.copy("net.onnx", "net")
    np.savez("data.npz", x=x)
    np.save("data.npy", x)
    Path("folder").mkdir()
    np.save("folder/a.npy", x)
    Path("names.txt").write_text("one\ntwo\n")
    return shell


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


COMMANDS = [
    "quantize net.onnx --data data.npz -o data.npz",
    "quantize net.onnx --data data.npy -o data.npy",
    "quantize net.onnx --data folder -o folder/a.npy",
    "quantize net --report net -o q.onnx",
    "compile model.onnx --verify x.npy -o x.npy",
    "compile model.onnx --verify x=x.npy -o x.npy",
    "convert model.onnx --to qdq -o model.onnx",
    "convert net --to qdq -o out.onnx --report net",
    "check net --report net",
    "run model.onnx --input both.npz --output both.npz",
    "run model.onnx --input x.npy --expect both.npz --output both.npz",
    "inspect net -o net",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_replaces_an_input_is_refused(files: Shell, command: str) -> None:
    before = contents()
    line = files.fails(*command.split())
    assert "another name" in line
    assert contents() == before


def test_page_that_replaces_an_input_is_refused(files: Shell) -> None:
    """Refuse the overwrite for any suffix: models and data may end in .html."""
    shutil.copy("model.onnx", "model.html")
    shutil.copy("x.npy", "x.html")
    before = contents()
    for command in (
        "diff model.html --report model.html",
        "inspect model.html -o model.html",
        "inspect model.onnx --data x.html -o x.html",
        "diff model.onnx --input x=x.html --report x.html",
    ):
        assert "another name" in files.fails(*command.split())
    assert contents() == before


@pytest.mark.parametrize(
    "link",
    [os.symlink, os.link, lambda path, other: None],
    ids=["symbolic link", "hard link", "relative path"],
)
def test_output_is_compared_as_a_file(files: Shell, link: Callable[[str, str], None]) -> None:
    link("data.npz", "other.npz")
    output = "other.npz" if Path("other.npz").exists() else f"../{Path.cwd().name}/data.npz"
    before = contents()
    line = files.fails("quantize", "net.onnx", "--data", "data.npz", "-o", output)
    assert f"{output}: --output would overwrite an input (--data)" in line
    assert contents() == before


def test_outputs_are_different_files(files: Shell) -> None:
    line = files.fails("convert", "model.onnx", "--to", "qdq", "-o", "new", "--report", "./new")
    assert "--report would overwrite the file of --output" in line
    assert not Path("new").exists()


def test_new_file_in_a_folder_of_data_is_written(files: Shell) -> None:
    status, _, err = files(
        *("quantize", "net.onnx", "--data", "folder", "-o", "folder/q.onnx", "--effort", "fast")
    )
    assert (status, err) == (0, "")
    assert Path("folder/q.onnx").exists()


def test_device_may_be_written_twice(files: Shell) -> None:
    command = "convert model.onnx --to qdq -o /dev/null --report /dev/null"
    assert files(*command.split())[0] == 0
