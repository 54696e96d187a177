# SPDX-License-Identifier: Apache-2.0
"""Hostile and broken arguments and arrays: one line on stderr, exit code 2, no file."""

import io
import os
import pickle
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from shell import Shell


class Exploding:
    def __reduce__(self):
        return print, ("code from the file has run",)


def stored(header: str, content: bytes = bytes(64)) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def shaped(shape: str, dtype: str = "<f4") -> bytes:
    return stored(f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}")


def zipped(at: int, in_directory: int, bits: int) -> bytes:
    """Return an .npz with flipped bits in the headers of its first entry and its directory."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", shaped("(16,)"))
    content = bytearray(file.getvalue())
    content[at] |= bits
    content[content.rindex(b"PK\1\2") + in_directory] |= bits
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"", "not an .npy or .npz"),
        ("a.npy", b"\x93NUMPY\x01\x00", "not an .npy or .npz"),
        ("a.npz", b"PK\3\4", "not an .npy or .npz"),
        ("a.npy", pickle.dumps(Exploding()), "not an .npy or .npz"),
        ("a.npy", shaped("(1152921504606846976,)"), "cut off"),
        ("a.npy", stored("{[]: 1}"), "its header is broken"),
        ("a.npy", stored("(" * 5000), "its header is broken"),
        ("a.npy", stored("-" * 9000 + "1"), "its header is broken"),
        ("a.npy", stored("{'descr': (), 'fortran_order': False, 'shape': ()}"), "is broken"),
        ("a.npy", shaped(f"({2**70}, 0)"), "there is no array of shape"),
        ("a.npy", shaped("(-1, 4)"), "there is no array of shape (-1, 4)"),
        ("a.npy", shaped("(-2, -2)"), "there is no array of shape (-2, -2)"),
        ("a.npy", shaped("(4,)", "|S0"), "of 0-byte elements"),
        ("a.npz", zipped(6, 8, 1), "encrypted"),
        ("a.npz", zipped(8, 10, 99), "another method than deflate"),
        ("a.npz", zipped(35, 4, 255), "a.npz is not"),
        ("a.npz", zipped(-6, 67, 255), "a.npz is not"),
    ],
)
def test_run_rejects_broken_arrays(
    shell: Shell,
    name: str,
    content: bytes,
    message: str,
) -> None:
    Path(name).write_bytes(content)
    assert message in shell.fails("run", "model.onnx", "--input", name)


def test_run_never_unpickles_arrays(shell: Shell) -> None:
    np.savez("objects.npz", x=np.array([Exploding()], dtype=object))
    message = shell.fails("run", "model.onnx", "--input", "objects.npz")
    assert "objects.npz" in message
    assert "pickle" in message


def test_run_rejects_invalid_options(shell: Shell, tmp_path: Path) -> None:
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


def test_interrupt_ends_a_command_with_130(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("anybit.cli._outputs.write_arrays", interrupted)
    code, _, err = shell("run", "model.onnx", "--output", "out.npz")
    assert code == 130
    assert "Traceback" not in err


def test_interrupt_during_imports_ends_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(
        "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "anybit", "inspect", "model.onnx"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        # A shell that started the tests in the background may have had it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_closed_pipe_is_silent(shell: Shell, tmp_path: Path) -> None:
    script = "from anybit.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "inspect", "model.onnx", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.communicate()[1] == b""


@pytest.mark.parametrize("variable", ["ANYBIT_ISA", "ANYBIT_NUM_THREADS"])
@pytest.mark.parametrize("command", [["-m", "anybit"], ["{bin}/anybit"]])
def test_invalid_environment_variable_is_one_line(
    shell: Shell, variable: str, command: list[str]
) -> None:
    folder = Path(sys.executable).parent
    words = [word.format(bin=folder) for word in command]
    if "-m" not in words and not Path(words[0]).exists():
        pytest.skip("the command is not installed beside Python")
    done = subprocess.run(
        [sys.executable, *words, "run", "model.onnx"],
        env={**os.environ, variable: "nonsense"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"error: .*{variable}.*'nonsense'\n", done.stderr)


def test_usage_errors_have_no_prefix_of_validators(shell: Shell) -> None:
    error = shell.fails("convert", "model.onnx", "--to", "nonsense", "-o", "out.onnx")
    assert "Value error" not in error
    assert "'nonsense' is not one of 'qonnx'" in error
