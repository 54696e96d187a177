# SPDX-License-Identifier: Apache-2.0
"""Tests of the ONNX Runtime library in all supported versions of ONNX Runtime.

    python tests/programs/ort_matrix.py [--wheel FILE] [--environments FOLDER] [VERSION ...]

Makes one virtual environment per version of ONNX Runtime, installs the wheel there with NumPy and
onnx of the same age, and runs tests/matrix. Without --wheel, the wheel is built from this checkout.
The converted models are made once, in the environment of this process (see forms_matrix.py).
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
# Packages that each ONNX Runtime needs in an older version.
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
    # In one write: other threads print at the same time.
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()
    return done.returncode


def build_wheel(folder: Path) -> Path:
    if run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT):
        raise SystemExit("cannot build the wheel")
    (wheel,) = folder.glob("anybit-*.whl")
    return wheel


def test(version: str, wheel: Path, folder: Path, forms: Path) -> str:
    """Run the tests with one version of ONNX Runtime, and return the outcome as text."""
    # Symbolic links: a copied interpreter is busy while another thread starts a process from it.
    venv.create(folder, symlinks=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    runtime = "onnxruntime" if version == NEWEST else f"onnxruntime=={version}"
    packages = [runtime, *COMPANIONS[version], "numpy", "onnx", "onnx-ir", "array-api-compat"]
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q")
    uv = ("uv", "pip", "install", "-q", "--python", python)
    install = uv if shutil.which("uv") else pip
    if run(*install, *packages, "pytest"):
        return "cannot make the environment"
    if run(*install, "--no-deps", "--force-reinstall", wheel):
        return "cannot install the wheel"
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
    parser.add_argument("--environments", type=Path, help="folder to keep the environments in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.environments or Path(scratch)
        wheel = options.wheel or build_wheel(Path(scratch))
        forms = (folder / "forms").resolve()
        if run(sys.executable, ROOT / "tests" / "programs" / "forms_matrix.py", forms):
            raise SystemExit("cannot make the converted models")
        versions = options.versions or list(COMPANIONS)

        def outcome_of(version: str) -> str:
            return test(version, wheel.resolve(), folder / f"onnxruntime-{version}", forms)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            outcomes = dict(zip(versions, pool.map(outcome_of, versions), strict=True))
    for version, outcome in outcomes.items():
        print(f"ONNX Runtime {version}: {outcome}")
    return sum(outcome != "passed" for outcome in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
