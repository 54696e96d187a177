# SPDX-License-Identifier: Apache-2.0
"""Whether archives of the operator library hold what they promise.

    python tools/library/check.py FOLDER

looks into every archive that build.py wrote to FOLDER (`pip install lief`): the checksum, the
library's one symbol, that it needs the operating system only, and an old one, that it has no path
of the machine that built it, and a signature where the system asks for one. Where the build folder
is still there: that the kernels of each level have the instructions of that level and of none
above it.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lief

ROOT = Path(__file__).parents[2]
MOST_MEGABYTES = 6
SYSTEM = {
    "linux": r"lib(c|m|pthread|dl|rt)\.so\.\d|ld-linux-(x86-64|aarch64)\.so\.\d",
    "macos": r"/usr/lib/libSystem\.B\.dylib",
    "windows": r"(?i)(kernel32|ntdll|msvcrt|ucrtbase|advapi32|api-ms-win-[a-z0-9-]+)\.dll",
}
OLDEST_MACOS = (13, 0, 0)


class Level(NamedTuple):
    """Of instructions: a file of its kernels, and how that is recognized."""

    name: str
    source: str
    has: str
    lacks: str = "(?!)"


LEVELS = {
    "x86_64": (
        Level("baseline", "kernels", "xmm", r"[yz]mm\d"),
        Level("avx2", "kernels", "ymm", r"zmm\d"),
        Level("avxvnni", "product_kernels", "vpdpbusd.*ymm", r"zmm\d"),
        Level("avx512", "kernels", "zmm"),
        Level("avx512", "product_kernels", "zmm", "vpdpbusd|vpopcntd"),
        Level("avx512vnni", "product_kernels", "vpdpbusd.*zmm", "vpopcntd"),
        Level("avx512vpopcnt", "product_kernels", "vpopcntd.*zmm"),
        Level("amx", "amx", "tdpb"),
    ),
    "aarch64": (
        Level("baseline", "kernels", r"\.4s"),
        Level("baseline", "product_kernels", r"cnt.*\.16b"),
        Level("dotprod", "product_kernels", "[su]dot"),
    ),
}


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
    if path.stat().st_size > MOST_MEGABYTES * 2**20:
        yield f"more than {MOST_MEGABYTES} MiB"
    contents = read(path)
    files = {each.split("/", 1)[1] for each in contents}
    needed = {"LICENSE", "LICENSES-LINKED.txt", "README.txt", "include/anybit_onnxruntime.h"}
    if missing := needed - files:
        yield f"lacks {', '.join(sorted(missing))}"
    platform = re.sub(r"\.(tar\.gz|zip)$", "", name).split("-", 3)[3]
    for each, content in contents.items():
        if "/lib/" in each:
            yield from faults_of_library(content, platform.split("-")[0])
    build = ROOT / "build" / f"library-{platform}"
    if build.exists():
        yield from faults_of_levels(build, "x86_64" if "x86_64" in platform else "aarch64")


def read(path: Path) -> dict[str, bytes]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return {each: archive.read(each) for each in archive.namelist()}
    with tarfile.open(path) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}


def faults_of_library(content: bytes, system: str) -> Iterator[str]:
    for path in re.findall(rb"/(?:work|home|root|tmp|Users|build)/[\w./+-]{3,}", content):
        yield f"has a path: {path.decode()}"
    library = lief.parse(list(content))
    symbols, needed = exported_and_needed(library)
    if symbols != {"RegisterCustomOps"}:
        yield f"exports {', '.join(sorted(symbols)) or 'nothing'}"
    for each in sorted(needed):
        if re.fullmatch(SYSTEM[system], each) is None:
            yield f"needs {each}"
    if system == "linux":
        versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", content)
        if max((int(major), int(minor)) for major, minor in versions) > (2, 17):
            yield "needs a newer C library than 2.17"
    if system == "macos":
        if tuple(library.build_version.minos) > OLDEST_MACOS:
            yield f"needs macOS {library.build_version.minos}"
        arm = library.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
        if arm and not library.has_code_signature:
            yield "is not signed"


def exported_and_needed(library: lief.Binary) -> tuple[set[str], set[str]]:
    if isinstance(library, lief.ELF.Binary):
        symbols = {each.name for each in library.dynamic_symbols if each.exported}
        return symbols, set(library.libraries)
    if isinstance(library, lief.MachO.Binary):
        symbols = {each.name.removeprefix("_") for each in library.exported_symbols}
        return symbols, {each.name for each in library.libraries} - {own_name(library)}
    symbols = {each.name for each in library.get_export().entries}
    return symbols, {each.name for each in library.imports}


def own_name(library: lief.MachO.Binary) -> str:
    kind = lief.MachO.LoadCommand.TYPE.ID_DYLIB
    return next((each.name for each in library.libraries if each.command == kind), "")


def faults_of_levels(build: Path, processor: str) -> Iterator[str]:
    llvm = shutil.which("llvm-objdump")
    disassembler = [llvm or "objdump"]
    if llvm and processor == "aarch64":
        disassembler.append("--mattr=+dotprod")  # which LLVM does not read otherwise
    for level in LEVELS[processor]:
        folder = build / f"CMakeFiles/anybit_kernels_{level.name}.dir"
        objects = list(folder.glob(f"**/{level.source}.cpp.o*"))
        if not objects:
            yield f"has no {level.source} for {level.name}"
        for each in objects:
            command = [*disassembler, "-d", "--no-show-raw-insn", each]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            if re.search(level.has, text) is None or re.search(level.lacks, text):
                yield f"has {level.source} for {level.name} that is compiled for another level"


if __name__ == "__main__":
    main()
