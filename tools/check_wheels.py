# SPDX-License-Identifier: Apache-2.0
"""Whether the wheels given are fit for a release: one line for each, and what is wrong.

They must run on every Linux since 2014, be small, carry the licenses of all that is linked in,
export one symbol per library, know no path of the machine that built them, and have the
instructions of every level: a compiler that ignores a flag makes slow code without a word.
"""

import io
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile

MEGABYTES = 6
NEWEST_GLIBC = (2, 17)
LIBRARIES = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s)|ld-linux-(x86-64|aarch64))\.so\.\d")
SYMBOLS = {"_core": {"PyInit__core"}, "anybit_onnxruntime": {"RegisterCustomOps"}}
LICENSES = ("LICENSE", "libcxx.txt", "libcxxabi.txt", "libunwind.txt", "nanobind.txt",
            "robin-map.txt", "zig.txt")  # fmt: skip
# Folders in which nobody's program is built or installed may be named: devices, settings.
PATHS = re.compile(
    rb"/(?:home|root|tmp|opt|build|work|mnt|Users|usr/(?:lib|local|include))/[\w./+-]+"
)
# One instruction, or register, that only the objects of a level have.
INSTRUCTIONS = {
    "x86_64": {
        "avx2": r"%ymm",
        "avxvnni": r"\{vex\} vpdpbusds?|\tvpdpbusds? +[^z]*%ymm",
        "avx512": r"%zmm",
        "avx512vnni": r"vpdpbusds? .*%zmm",
        "avx512vpopcnt": r"vpopcnt[dq] ",
        "amx": r"tdpb[us][us]d ",
    },
    "aarch64": {},
}


def wrong_in(wheel: Path) -> Iterator[str]:
    """What is wrong with a wheel."""
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
            yield from (f"{name} {fault}" for fault in wrong_in_library(library, files.read(name)))


def wrong_in_library(library: str, data: bytes) -> Iterator[str]:
    elf = ELFFile(io.BytesIO(data))
    needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    if strange := [name for name in needed if not LIBRARIES.fullmatch(name)]:
        yield f"needs {strange}"
    exported = {
        symbol.name
        for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
    }
    if exported != SYMBOLS.get(library):
        yield f"exports {sorted(exported)[:5]}"
    if newer := sorted(set(newer_versions(elf))):
        yield f"needs {newer}"
    if elf.get_section_by_name(".symtab") is not None:
        yield "has the symbols of its functions: it is to be stripped"
    if paths := sorted(set(PATHS.findall(data))):
        yield f"names {paths[:3]}"
    machine = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}[elf["e_machine"]]
    yield from missing_levels(machine, data)


def newer_versions(elf: ELFFile) -> Iterator[str]:
    for _, versions in elf.get_section_by_name(".gnu.version_r").iter_versions():
        for version in versions:
            number = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version.name)
            if number is None or (int(number[1]), int(number[2])) > NEWEST_GLIBC:
                yield version.name


def missing_levels(machine: str, data: bytes) -> Iterator[str]:
    if not INSTRUCTIONS[machine]:
        return
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(data)
        file.flush()
        text = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", file.name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    for level, pattern in INSTRUCTIONS[machine].items():
        if not re.search(pattern, text):
            yield f"lacks the instructions of {level}"


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
