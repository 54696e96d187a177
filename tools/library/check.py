# SPDX-License-Identifier: Apache-2.0
"""Release checks of the operator library's archives.

    python tools/library/check.py FOLDER

checks every archive that build.py wrote to FOLDER (`pip install lief`): its checksum, its files and
the library (see ../libraries.py). If the build folder exists, it also checks that the kernels of
each ISA level have the instructions of that level, and none of a higher one.
"""

import argparse
import hashlib
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

from libraries import MEGABYTES, check_library, check_objects  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    sums = [line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    if not sums:
        sys.exit(f"no archives in {folder}")
    faults = [
        f"{name}: {fault}" for sum, name in sums for fault in check_archive(folder, name, sum)
    ]
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(sums)} archives passed")


def check_archive(folder: Path, name: str, checksum: str) -> Iterator[str]:
    path = folder / name
    if hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
        yield "its checksum is not that of SHA256SUMS"
    if path.stat().st_size > MEGABYTES * 1e6:
        yield f"has {path.stat().st_size / 1e6:.1f} MB, the limit is {MEGABYTES}"
    contents = read_archive(path)
    files = {name.split("/", 1)[1] for name in contents}
    needed = {"LICENSE", "LICENSES-LINKED.txt", "README.txt", "include/anybit_onnxruntime.h"}
    if missing := needed - files:
        yield f"lacks {', '.join(sorted(missing))}"
    platform = re.sub(r"\.(tar\.gz|zip)$", "", name).split("-", 3)[3]
    libraries = [content for file, content in contents.items() if "/lib/" in file]
    if len(libraries) != 1:
        yield f"has {len(libraries)} libraries"
    for content in libraries:
        yield from check_library(content, "RegisterCustomOps")
    build = ROOT / "build" / f"library-{platform}"
    if build.exists():
        yield from check_objects(build, "x86_64" if "x86_64" in platform else "aarch64")


def read_archive(path: Path) -> dict[str, bytes]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


if __name__ == "__main__":
    main()
