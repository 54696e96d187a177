# SPDX-License-Identifier: Apache-2.0
"""The operator library for ONNX Runtime, built for all platforms on one Linux machine.

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
    """A platform, and the suffixes of its library and archive."""

    target: str  # in the form of Zig
    suffix: str
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
    arguments = parser.parse_args()
    if unknown := set(arguments.platforms) - set(PLATFORMS):
        parser.error(f"platforms are {', '.join(PLATFORMS)}, got {', '.join(sorted(unknown))}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.platforms or PLATFORMS:
        # As deep as the build folder of a wheel, so that both share the compiler's cache.
        library = build_library(PLATFORMS[name], ROOT / "build" / f"library-{name}")
        print(write_archive(name, library, arguments.folder))
    write_checksums(arguments.folder)


def build_library(platform: Platform, folder: Path) -> Path:
    """Build the library for a platform, stripped and without paths of this machine."""
    environment = os.environ | {"ZIG": get_zig_command()}
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
    paths = [folder / f"anybit_onnxruntime{suffix}" for suffix in (".so", ".dll")]
    return next(path for path in paths if path.exists())


def write_archive(name: str, library: Path, folder: Path) -> Path:
    """Write the archive of a platform: the library, its headers and licenses."""
    platform = PLATFORMS[name]
    top = f"anybit-onnxruntime-{read_version()}-{name}"
    contents = {
        f"lib/anybit_onnxruntime{platform.suffix}": library.read_bytes(),
        "include/anybit_onnxruntime.h": (HERE / "anybit_onnxruntime.h").read_bytes(),
        "cmake/anybit_onnxruntime-config.cmake": (
            HERE / "anybit_onnxruntime-config.cmake"
        ).read_bytes(),
        "README.txt": (HERE / "README.txt").read_bytes(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
        "LICENSES-LINKED.txt": read_linked_licenses(platform),
    }
    contents = {f"{top}/{path}": content for path, content in sorted(contents.items())}
    packed = pack_zip(contents) if platform.archive == ".zip" else pack_tar(contents)
    path = folder / (top + platform.archive)
    path.write_bytes(packed)
    return path


def pack_tar(contents: dict[str, bytes]) -> bytes:
    """Return a reproducible tar.gz: it has no times and owners."""
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


def pack_zip(contents: dict[str, bytes]) -> bytes:
    """Return a reproducible zip file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, content in contents.items():
            member = zipfile.ZipInfo(path)  # its time is 1980
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    return packed.getvalue()


def write_checksums(folder: Path) -> None:
    archives = sorted([*folder.glob("anybit-*.tar.gz"), *folder.glob("anybit-*.zip")])
    sums = [hashlib.sha256(archive.read_bytes()).hexdigest() for archive in archives]
    lines = [f"{sum}  {archive.name}\n" for sum, archive in zip(sums, archives, strict=True)]
    (folder / "SHA256SUMS").write_text("".join(lines))


def read_linked_licenses(platform: Platform) -> bytes:
    """Return the licenses of the libraries that Zig's compiler links in."""
    environment = subprocess.run(
        [*get_zig_command().split(), "env"], capture_output=True, text=True, check=True
    )
    folder = re.search(r'\.lib_dir = "(.*)"', environment.stdout)
    if folder is None:
        sys.exit("zig env names no lib_dir")
    lib = Path(folder[1])
    files = {
        "libc++ and libc++abi": lib / "libcxx/LICENSE.TXT",
        "libunwind": lib / "libunwind/LICENSE.TXT",
        "Zig's compiler-rt": lib.parent / "LICENSE",
    }
    if "windows" in platform.target:
        files["mingw-w64"] = lib / "libc/mingw/COPYING"
    texts = [f"== {name}\n\n{path.read_text().strip()}\n" for name, path in files.items()]
    return "\n\n".join(texts).encode()


def get_zig_command() -> str:
    return os.environ.get("ZIG", f"{sys.executable} -m ziglang")


def read_version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


if __name__ == "__main__":
    main()
