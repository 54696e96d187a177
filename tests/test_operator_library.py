# SPDX-License-Identifier: Apache-2.0
"""Archives of the operator library: the same bytes every time, whoever makes them and when."""

import hashlib
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from places import ROOT
from scripts import load_module


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return load_module(ROOT / "tools/library/build.py")


@pytest.mark.parametrize("platform", ["linux-x86_64", "windows-x86_64"])
def test_library_archives_are_reproducible(
    build: ModuleType, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "read_linked_licenses", lambda platform: b"licences")
    made = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        library = folder / "anybit_onnxruntime"
        library.write_bytes(b"\x7fELF")
        library.chmod(0o700 if name == "first" else 0o644)
        made.append(build.write_archive(platform, library, folder))
        build.write_checksums(folder)
    first, second = (archive.read_bytes() for archive in made)
    assert first == second
    sums = (tmp_path / "second/SHA256SUMS").read_text()
    assert sums == f"{hashlib.sha256(second).hexdigest()}  {made[1].name}\n"

    suffix = build.PLATFORMS[platform].suffix
    if made[0].suffix == ".zip":
        names = zipfile.ZipFile(made[0]).namelist()
    else:
        with tarfile.open(made[0]) as archive:
            names = archive.getnames()
    assert {name.split("/", 1)[1] for name in names} == {
        "LICENSE",
        "LICENSES-LINKED.txt",
        "README.txt",
        "cmake/anybit_onnxruntime-config.cmake",
        "include/anybit_onnxruntime.h",
        f"lib/anybit_onnxruntime{suffix}",
    }
