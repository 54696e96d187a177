# SPDX-License-Identifier: Apache-2.0
"""Test of the operator library in every supported version of ONNX Runtime.

    python tests/programs/ort_matrix.py [--wheel FILE] [--environments FOLDER] [VERSION ...]

Makes one virtual environment per version of ONNX Runtime, installs the wheel there (built from
this checkout unless given) beside NumPy and onnx of the right age, and runs tests/matrix, on
converted models, too, which are made once, here, where anybit is installed (see forms_matrix.py).
Prints one line per version; the exit code is the number of versions that fail.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NEWEST = "newest"
# What each ONNX Runtime needs from its time; the newest gets the newest of everything.
COMPANIONS = {
    "1.17.3": ["numpy<2", "onnx<1.17", "ml-dtypes<0.6"],
    "1.20.1": ["onnx<1.19"],
    "1.23.2": ["onnx<1.20"],
    "1.26.0": [],
    NEWEST: [],
}
ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **variables: str | Path) -> int:
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    parts = [str(part) for part in command]
    done = subprocess.run(
        parts, check=False, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    # In one piece: others run at the same time.
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()
    return done.returncode


def build_wheel(folder: Path) -> Path:
    if run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT):
        raise SystemExit("the wheel cannot be built")
    (wheel,) = folder.glob("anybit-*.whl")
    return wheel


def test(version: str, wheel: Path, folder: Path, forms: Path) -> str:
    """Run the tests with that ONNX Runtime; the verdict in words."""
    # Links: a copy of the interpreter is busy while another thread, which starts a process, has it.
    venv.create(folder, symlinks=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    runtime = "onnxruntime" if version == NEWEST else f"onnxruntime=={version}"
    packages = [runtime, *COMPANIONS[version], "numpy", "onnx", "onnx-ir", "array-api-compat"]
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q")
    uv = ("uv", "pip", "install", "-q", "--python", python)
    install = uv if shutil.which("uv") else pip
    if run(*install, *packages, "pytest"):
        return "no such environment can be made"
    if run(*install, "--no-deps", "--force-reinstall", wheel):
        return "the wheel cannot be installed"
    # Without the project's configuration and conftest, which need newer packages.
    tests = ROOT / "tests" / "matrix"
    alone = ("-c", os.devnull, f"--rootdir={tests}", f"--confcutdir={tests}")
    command = (python, "-m", "pytest", "-q", *alone, "-p", "no:cacheprovider", tests)
    code = run(*command, ANYBIT_FORMS=forms, ANYBIT_FORMS_COLUMN=version)
    return "passed" if code == 0 else f"failed (pytest exit code {code})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=", ".join(COMPANIONS))
    parser.add_argument("--wheel", type=Path, help="the wheel to test")
    parser.add_argument("--environments", type=Path, help="where to keep the environments")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.environments or Path(scratch)
        wheel = given.wheel or build_wheel(Path(scratch))
        forms = (folder / "forms").resolve()
        if run(sys.executable, ROOT / "tests" / "programs" / "forms_matrix.py", forms):
            raise SystemExit("the converted models cannot be made")
        versions = given.versions or list(COMPANIONS)

        def verdict_on(version: str) -> str:
            return test(version, wheel.resolve(), folder / f"onnxruntime-{version}", forms)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            verdicts = dict(zip(versions, pool.map(verdict_on, versions), strict=True))
    for version, verdict in verdicts.items():
        print(f"ONNX Runtime {version}: {verdict}")
    return sum(verdict != "passed" for verdict in verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
