# SPDX-License-Identifier: Apache-2.0
"""The operator library for ONNX Runtime alone, for every platform, from one Linux machine.

    python tools/library/build.py FOLDER [PLATFORM ...]

builds it with Zig's compiler (`pip install ziglang cmake ninja` beside this Python) and writes one
archive per platform, the same bytes every time, and SHA256SUMS of all archives to FOLDER.
"""

import argparse
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Platform(NamedTuple):
    """What is built for whom."""

    target: str
    """As Zig calls it."""
    suffix: str
    """Of the library."""
    archive: str = ".tar.gz"


PLATFORMS = {
    "linux-x86_64": Platform("x86_64-linux-gnu.2.17", ".so"),
    "linux-aarch64": Platform("aarch64-linux-gnu.2.17", ".so"),
    "macos-arm64": Platform("aarch64-macos.13.0", ".dylib"),
    "macos-x86_64": Platform("x86_64-macos.13.0", ".dylib"),
    "windows-x86_64": Platform("x86_64-windows-gnu", ".dll", ".zip"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=", ".join(PLATFORMS))
    given = parser.parse_args()
    if unknown := set(given.platforms) - set(PLATFORMS):
        parser.error(f"platforms are {', '.join(PLATFORMS)}, got {', '.join(sorted(unknown))}")
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.platforms or PLATFORMS:
        # As far from the sources as a wheel's, so that a cache finds what they have in common.
        library = built(PLATFORMS[name], ROOT / "build" / f"library-{name}")
        print(archived(name, library, given.folder))
    write_checksums(given.folder)


def built(platform: Platform, folder: Path) -> Path:
    """Build the library for a platform, stripped and without paths of this machine."""
    environment = os.environ | {"ZIG": zig_command()}
    here = Path(sys.executable).parent
    environment["PATH"] = f"{here}{os.pathsep}{environment['PATH']}"
    configure = [
        *("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"),
        f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/tools/zig/toolchain.cmake",
        f"-DANYBIT_TARGET={platform.target}",
        "-DANYBIT_PYTHON=OFF",
    ]
    build = ["cmake", "--build", folder, "--target", "anybit_onnxruntime"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("wb") as log:
        for command in (configure, build):
            done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
            if done.returncode != 0:
                sys.exit(f"{' '.join(map(str, command[:3]))} failed, see {log.name}")
    found = [folder / f"anybit_onnxruntime{suffix}" for suffix in (".so", ".dll")]
    return next(each for each in found if each.exists())


def archived(name: str, library: Path, folder: Path) -> Path:
    """Packs the library with what belongs to it."""
    platform = PLATFORMS[name]
    top = f"anybit-onnxruntime-{version()}-{name}"
    contents = {
        f"lib/anybit_onnxruntime{platform.suffix}": library.read_bytes(),
        "include/anybit_onnxruntime.h": (HERE / "anybit_onnxruntime.h").read_bytes(),
        "cmake/anybit_onnxruntime-config.cmake": (
            HERE / "anybit_onnxruntime-config.cmake"
        ).read_bytes(),
        "README.txt": (HERE / "README.txt").read_bytes(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
        "LICENSES-LINKED.txt": linked_licenses(platform),
    }
    contents = {f"{top}/{path}": content for path, content in sorted(contents.items())}
    packed = zipped(contents) if platform.archive == ".zip" else tarred(contents)
    path = folder / (top + platform.archive)
    path.write_bytes(packed)
    return path


def tarred(contents: dict[str, bytes]) -> bytes:
    """Return a reproducible tar.gz: without times and owners."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 9, packed, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path, content in contents.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(contents: dict[str, bytes]) -> bytes:
    """Return a reproducible zip file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, content in contents.items():
            member = zipfile.ZipInfo(path)  # of 1980
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    return packed.getvalue()


def write_checksums(folder: Path) -> None:
    archives = sorted([*folder.glob("anybit-*.tar.gz"), *folder.glob("anybit-*.zip")])
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in archives]
    (folder / "SHA256SUMS").write_text("".join(lines))


def linked_licenses(platform: Platform) -> bytes:
    """Of what Zig's compiler links in."""
    environment = subprocess.run(
        [*zig_command().split(), "env"], capture_output=True, text=True, check=True
    )
    found = re.search(r'\.lib_dir = "(.*)"', environment.stdout)
    if found is None:
        sys.exit("zig env names no lib_dir")
    lib = Path(found[1])
    files = {
        "libc++ and libc++abi": lib / "libcxx/LICENSE.TXT",
        "libunwind": lib / "libunwind/LICENSE.TXT",
        "Zig's compiler-rt": lib.parent / "LICENSE",
    }
    if "windows" in platform.target:
        files["mingw-w64"] = lib / "libc/mingw/COPYING"
    texts = [f"== {name}\n\n{path.read_text().strip()}\n" for name, path in files.items()]
    return "\n\n".join(texts).encode()


def zig_command() -> str:
    return os.environ.get("ZIG", f"{sys.executable} -m ziglang")


def version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


if __name__ == "__main__":
    main()
