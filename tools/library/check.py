# SPDX-License-Identifier: Apache-2.0
"""Whether archives of the operator library hold what they promise.

    python tools/library/check.py FOLDER

looks into every archive that build.py wrote to FOLDER (`pip install lief`): the checksum, what
belongs to the library, and the library itself: see ../libraries.py. Where the build folder is
still there: that the kernels of each level have the instructions of that level and of none above
it.
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

from libraries import MEGABYTES, wrong_in_library, wrong_in_objects  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    sums = [line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    if not sums:
        sys.exit(f"no archives in {folder}")
    faults = [f"{name}: {fault}" for sum, name in sums for fault in faults_of(folder, name, sum)]
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(sums)} archives hold what they promise")


def faults_of(folder: Path, name: str, checksum: str) -> Iterator[str]:
    path = folder / name
    if hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
        yield "SHA256SUMS says otherwise"
    if path.stat().st_size > MEGABYTES * 1e6:
        yield f"{path.stat().st_size / 1e6:.1f} MB are more than {MEGABYTES}"
    contents = read(path)
    files = {each.split("/", 1)[1] for each in contents}
    needed = {"LICENSE", "LICENSES-LINKED.txt", "README.txt", "include/anybit_onnxruntime.h"}
    if missing := needed - files:
        yield f"lacks {', '.join(sorted(missing))}"
    platform = re.sub(r"\.(tar\.gz|zip)$", "", name).split("-", 3)[3]
    libraries = [content for each, content in contents.items() if "/lib/" in each]
    if len(libraries) != 1:
        yield f"has {len(libraries)} libraries"
    for content in libraries:
        yield from wrong_in_library(content, "RegisterCustomOps")
    build = ROOT / "build" / f"library-{platform}"
    if build.exists():
        yield from wrong_in_objects(build, "x86_64" if "x86_64" in platform else "aarch64")


def read(path: Path) -> dict[str, bytes]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return {each: archive.read(each) for each in archive.namelist()}
    with tarfile.open(path) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}


if __name__ == "__main__":
    main()
