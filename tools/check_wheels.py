# SPDX-License-Identifier: Apache-2.0
"""Release checks of wheels: `python tools/check_wheels.py WHEEL...` prints the faults of each.

A wheel must run on every Linux since 2014, be small and contain the licenses of everything linked
into it. Its libraries must pass the checks of libraries.py.
"""

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from libraries import MEGABYTES, check_library

SYMBOLS = {"_core": "PyInit__core", "anybit_onnxruntime": "RegisterCustomOps"}
UNWINDER = r"libgcc_s\.so\.1"
LICENSES = ("LICENSE", "libcxx.txt", "libcxxabi.txt", "libunwind.txt", "nanobind.txt",
            "robin-map.txt", "zig.txt")  # fmt: skip


def check_wheel(wheel: Path) -> Iterator[str]:
    """Yield the faults of a wheel."""
    if wheel.stat().st_size > MEGABYTES * 1e6:
        yield f"has {wheel.stat().st_size / 1e6:.1f} MB, the limit is {MEGABYTES}"
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True
    )
    if '"manylinux_2_17_' not in shown.stdout:
        yield f"is not manylinux2014: {shown.stdout}{shown.stderr}"
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        for text in LICENSES:
            if not any(
                re.search(rf"dist-info/licenses/(licenses/)?{text}$", name) for name in names
            ):
                yield f"lacks the license {text}"
        libraries = {Path(name).name.split(".")[0]: name for name in names if name.endswith(".so")}
        if set(libraries) != set(SYMBOLS):
            yield f"has the libraries {sorted(libraries.values())}, not {sorted(SYMBOLS)}"
        for library, name in libraries.items():
            faults = check_library(files.read(name), SYMBOLS.get(library, ""), UNWINDER)
            yield from (f"{name} {fault}" for fault in faults)


def main() -> None:
    wheels = [Path(argument) for argument in sys.argv[1:]]
    if not wheels:
        sys.exit(__doc__)
    count = 0
    for wheel in wheels:
        faults = list(check_wheel(wheel))
        count += len(faults)
        print(
            f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB,", "failed" if faults else "passed"
        )
        for fault in faults:
            print(f"  {fault}")
    if count:
        sys.exit(f"{count} faults")


if __name__ == "__main__":
    main()
