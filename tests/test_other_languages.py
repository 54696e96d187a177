# SPDX-License-Identifier: Apache-2.0
"""The examples in other languages print what Python prints, where there are compilers for them.

ANYBIT_OPERATOR_LIBRARY names another operator library than the one of this installation.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from places import EXAMPLES

import anybit
from anybit.onnxruntime import library_path

MODEL = EXAMPLES / "digits_w4a4.onnx"


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def built(*command: object) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


def cpp(folder: Path) -> list[object]:
    for words in (
        ("-S", EXAMPLES / "cpp", "-B", folder / "cpp", f"-DCMAKE_PREFIX_PATH={folder}"),
        ("--build", folder / "cpp"),
    ):
        built("cmake", *words)
    return [folder / "cpp/digits"]


def rust(folder: Path) -> list[object]:
    source = EXAMPLES / "rust/digits.rs"
    built("rustc", "--edition=2021", source, "-L", folder / "lib", "-o", folder / "digits")
    return [folder / "digits"]


def csharp(folder: Path) -> list[object]:
    built("mcs", EXAMPLES / "csharp/Digits.cs", f"-out:{folder}/Digits.exe")
    return ["mono", folder / "Digits.exe"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ONNX Runtime's shared library under the names that linkers look for, and the images."""
    folder = tmp_path_factory.mktemp("languages")
    shipped = list(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not shipped:
        pytest.skip("this wheel of ONNX Runtime has no shared library")
    (folder / "lib").mkdir()
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / "lib" / name).symlink_to(shipped[0])
    with np.load(EXAMPLES / "digits.npz") as arrays:
        np.save(folder / "x.npy", arrays["x"])
    return folder


@pytest.mark.parametrize(
    ("compilers", "program"),
    [(("cmake", "c++"), cpp), (("rustc",), rust), (("mcs", "mono"), csharp)],
    ids=["cpp", "rust", "csharp"],
)
def test_other_languages_run_digits_model(
    compilers: tuple[str, ...], program: Callable[[Path], list[object]], folder: Path
) -> None:
    if missing := [compiler for compiler in compilers if shutil.which(compiler) is None]:
        pytest.skip(f"no {' and no '.join(missing)} here")
    library = os.environ.get("ANYBIT_OPERATOR_LIBRARY") or library_path()
    command, path = program(folder), {"LD_LIBRARY_PATH": str(folder / "lib")}

    done = run(*command, MODEL, library, folder / "x.npy", **path)
    assert done.returncode == 0, done.stderr
    y = anybit.load(MODEL).run(np.load(folder / "x.npy"))["y"]
    assert done.stdout == "".join(f"{row.argmax()} {row.max():.6f}\n" for row in y)

    refused = run(*command, MODEL, folder / "none.so", folder / "x.npy", **path)
    assert refused.returncode == 1
    assert "none.so" in refused.stderr
