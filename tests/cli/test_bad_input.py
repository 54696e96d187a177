# SPDX-License-Identifier: Apache-2.0
"""Hostile and broken arguments and arrays: one line on stderr, exit code 2, no file."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from shell import Shell


class Exploding:
    def __reduce__(self):
        return print, ("code from the file has run",)


HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,), }"
ABSURD = b"\x93NUMPY\x01\x00\x76\x00" + HEADER.ljust(117) + b"\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"", "not an .npy or .npz"),
        ("a.npy", b"\x93NUMPY\x01\x00", "not an .npy or .npz"),
        ("a.npz", b"PK\3\4", "not an .npy or .npz"),
        ("a.npy", pickle.dumps(Exploding()), "not an .npy or .npz"),
        (
            "a.npy",
            ABSURD,
            "a.npy",
        ),
    ],
    ids=["empty", "short", "zip", "pickle", "absurd"],
)
def test_bad_arrays(
    shell: Shell,
    name: str,
    content: bytes,
    message: str,
) -> None:
    Path(name).write_bytes(content)
    assert message in shell.fails("run", "model.onnx", "--input", name)


def test_arrays_of_objects(shell: Shell) -> None:
    np.savez("objects.npz", x=np.array([Exploding()], dtype=object))
    message = shell.fails("run", "model.onnx", "--input", "objects.npz")
    assert "objects.npz" in message
    assert "pickle" in message


def test_other_arguments(shell: Shell, tmp_path: Path) -> None:
    for arguments, message in (
        (["--input", "missing.npy"], "missing.npy"),
        (["--input", "."], ".: "),
        (["--output", "out.txt"], "must be an .npz file"),
        (["--output", "nowhere/out.npz"], "in a folder that exists"),
        (["--expect", "missing.npz"], "missing.npz"),
        (["--repeat", "0"], "--repeat"),
        (["--bogus"], "--bogus"),
    ):
        assert message in shell.fails("run", "model.onnx", *arguments)
    np.save("wide.npy", np.ones((1, 5), np.float32))
    assert "must have shape [1, 4]" in shell.fails("run", "model.onnx", "--input", "wide.npy")


def test_interruption(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("anybit.cli.run.write_arrays", interrupted)
    code, _, err = shell("run", "model.onnx", "--output", "out.npz")
    assert code == 130
    assert "Traceback" not in err


def test_a_closed_pipe(shell: Shell, tmp_path: Path) -> None:
    script = "from anybit.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "info", "model.onnx", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.communicate()[1] == b""


@pytest.mark.parametrize("variable", ["ANYBIT_ISA", "ANYBIT_NUM_THREADS"])
@pytest.mark.parametrize("command", [["-m", "anybit"], ["{bin}/anybit"]])
def test_a_wrong_environment_is_one_line(variable: str, command: list[str]) -> None:
    """It is found when the package is imported, before any code of the command runs."""
    folder = Path(sys.executable).parent
    words = [word.format(bin=folder) for word in command]
    if "-m" not in words and not Path(words[0]).exists():
        pytest.skip("the command is not installed beside Python")
    done = subprocess.run(
        [sys.executable, *words, "--version"],
        env={**os.environ, variable: "nonsense"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"error: .*{variable}.*'nonsense'\n", done.stderr)


def test_words_of_validators_do_not_leak(shell: Shell) -> None:
    error = shell.fails("convert", "model.onnx", "--to", "nonsense", "-o", "out.onnx")
    assert "Value error" not in error
    assert "'nonsense' is not one of 'qonnx'" in error
