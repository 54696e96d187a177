# SPDX-License-Identifier: Apache-2.0
"""Whether the wheels given are fit for a release: one line for each, and what is wrong.

They must run on every Linux since 2014, be small, carry the licenses of all that is linked in, and
hold libraries that are fit for it, too: see libraries.py.
"""

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from libraries import MEGABYTES, wrong_in_library

SYMBOLS = {"_core": "PyInit__core", "anybit_onnxruntime": "RegisterCustomOps"}
UNWINDER = r"libgcc_s\.so\.1"
LICENSES = ("LICENSE", "libcxx.txt", "libcxxabi.txt", "libunwind.txt", "nanobind.txt",
            "robin-map.txt", "zig.txt")  # fmt: skip


def wrong_in(wheel: Path) -> Iterator[str]:
    """Return the faults of a wheel."""
    if wheel.stat().st_size > MEGABYTES * 1e6:
        yield f"{wheel.stat().st_size / 1e6:.1f} MB are more than {MEGABYTES}"
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True
    )
    if '"manylinux_2_17_' not in shown.stdout:
        yield f"auditwheel does not call it manylinux2014: {shown.stdout}{shown.stderr}"
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        for text in LICENSES:
            if not any(
                re.search(rf"dist-info/licenses/(licenses/)?{text}$", name) for name in names
            ):
                yield f"the license {text} is missing"
        found = {Path(name).name.split(".")[0]: name for name in names if name.endswith(".so")}
        if set(found) != set(SYMBOLS):
            yield f"has the libraries {sorted(found.values())}"
        for library, name in found.items():
            wrong = wrong_in_library(files.read(name), SYMBOLS.get(library, ""), UNWINDER)
            yield from (f"{name} {fault}" for fault in wrong)


def main() -> None:
    wheels = [Path(argument) for argument in sys.argv[1:]]
    if not wheels:
        sys.exit(__doc__)
    bad = 0
    for wheel in wheels:
        faults = list(wrong_in(wheel))
        bad += len(faults)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB", "" if faults else "and fit")
        for fault in faults:
            print(f"  {fault}")
    if bad:
        sys.exit(f"{bad} faults")


if __name__ == "__main__":
    main()
