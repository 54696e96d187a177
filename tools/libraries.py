# SPDX-License-Identifier: Apache-2.0
"""What is asked of every library that is released, in a wheel or alone, for any system.

It needs nothing but an old system, exports one symbol, was stripped, knows no path of the machine
that built it, and has the instructions of every level: a compiler that ignores a flag makes slow
code without a word.
"""

import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lief

MEGABYTES = 6
NEWEST_GLIBC = (2, 17)
NEWEST_MACOS = (13, 0, 0)
SYSTEM = re.compile(
    r"(lib(c|m|dl|rt|pthread)|ld-linux-(x86-64|aarch64))\.so\.\d|/usr/lib/libSystem\.B\.dylib"
    r"|(?i:kernel32|ntdll|ucrtbase|api-ms-win-crt-[a-z0-9-]+)\.dll"
)
OF_LINKER = {"__dso_handle", "_mh_dylib_header"}  # which Zig's exports for macOS
# Folders in which nobody's program is built or installed may be named: devices, settings.
PATHS = re.compile(
    rb"/(?:home|root|tmp|opt|build|work|mnt|Users|usr/(?:lib|local|include))/[\w./+-]+"
)
# What the system has there, for macOS.
SYSTEM_PATHS = {b"/usr/lib/libSystem.B.dylib", b"/usr/lib/libstdc++.6.dylib", b"/usr/lib/dyld"}


class Level(NamedTuple):
    """Of instructions: a file of its kernels, what it has, and what only higher levels have."""

    name: str
    source: str
    has: str
    lacks: str = "(?!)"


LEVELS = {
    "x86_64": (
        Level("baseline", "kernels", "%xmm", r"%[yz]mm"),
        Level("avx2", "kernels", "%ymm", "%zmm"),
        Level("avxvnni", "integer_kernels", r"\{vex\}\s+vpdpbusds?\s", "%zmm"),
        Level("avx512", "kernels", "%zmm"),
        Level("avx512", "product_kernels", "%zmm", "vpdpbusd|vpopcnt[dq]"),
        Level("avx512vnni", "integer_kernels", r"vpdpbusds?\s.*%zmm", "vpopcnt[dq]"),
        Level("avx512vpopcnt", "integer_kernels", r"vpopcnt[dq]\s.*%zmm"),
        Level("amx", "amx", r"tdpb[us][us]d\s"),
    ),
    "aarch64": (  # Macs have dot products throughout
        Level("baseline", "kernels", r"\.4s"),
        Level("baseline", "product_kernels", r"cnt.*\.16b"),
        Level("dotprod", "integer_kernels", r"\s[su]dot\s"),
    ),
}


def wrong_in_library(data: bytes, symbol: str, also_needed: str = "(?!)") -> Iterator[str]:
    """Yield the faults of a library; `also_needed` matches libraries besides the system's."""
    library = lief.parse(list(data))
    needed = needed_by(library)
    strange = [each for each in needed if not SYSTEM.fullmatch(each)]
    if strange := [each for each in strange if not re.fullmatch(also_needed, each)]:
        yield f"needs {strange}"
    if (exported := exported_by(library)) != {symbol}:
        yield f"exports {sorted(exported)[:5]}"
    if newer := sorted(newer_than_allowed(library)):
        yield f"needs {newer}"
    if has_symbols(library):
        yield "has the symbols of its functions: it is to be stripped"
    if paths := sorted(set(PATHS.findall(data)) - SYSTEM_PATHS):
        yield f"names {paths[:3]}"
    if unsigned(library):
        yield "is not signed"
    yield from missing_levels(library, data)


def exported_by(library: lief.Binary) -> set[str]:
    if isinstance(library, lief.ELF.Binary):
        return {each.name for each in library.dynamic_symbols if each.exported}
    if isinstance(library, lief.MachO.Binary):
        return {each.name.removeprefix("_") for each in library.exported_symbols} - OF_LINKER
    return {each.name for each in library.get_export().entries}


def needed_by(library: lief.Binary) -> list[str]:
    if isinstance(library, lief.ELF.Binary):
        return list(library.libraries)
    if isinstance(library, lief.MachO.Binary):
        kind = lief.MachO.LoadCommand.TYPE.ID_DYLIB  # its own name lies among them
        return [each.name for each in library.libraries if each.command != kind]
    return [each.name for each in library.imports]


def newer_than_allowed(library: lief.Binary) -> Iterator[str]:
    """Versions of the system, or of its C library, that are not everywhere."""
    if isinstance(library, lief.ELF.Binary):
        for requirement in library.symbols_version_requirement:
            for version in requirement.get_auxiliary_symbols():
                number = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version.name)
                if number is None or (int(number[1]), int(number[2])) > NEWEST_GLIBC:
                    yield version.name
    if isinstance(library, lief.MachO.Binary):
        version = tuple(library.build_version.minos)
        if version > NEWEST_MACOS:
            yield f"macOS {'.'.join(map(str, version))}"


def has_symbols(library: lief.Binary) -> bool:
    """Whether functions have names that nobody needs: debuggers, and readers of our code."""
    if isinstance(library, lief.ELF.Binary):
        return library.has_section(".symtab")
    if isinstance(library, lief.PE.Binary):
        return library.header.numberof_symbols > 0
    return False


def unsigned(library: lief.Binary) -> bool:
    """Whether macOS would refuse it on ARM, where everything is signed, be it by nobody."""
    return (
        isinstance(library, lief.MachO.Binary)
        and machine_of(library) == "aarch64"
        and not library.has_code_signature
    )


def machine_of(library: lief.Binary) -> str:
    if isinstance(library, lief.MachO.Binary):
        arm = library.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    elif isinstance(library, lief.ELF.Binary):
        arm = library.header.machine_type == lief.ELF.ARCH.AARCH64
    else:
        arm = library.header.machine == lief.PE.Header.MACHINE_TYPES.ARM64
    return "aarch64" if arm else "x86_64"


def missing_levels(library: lief.Binary, data: bytes) -> Iterator[str]:
    machine = machine_of(library)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        text = disassembled(Path(file.name), machine)
    for level in dict.fromkeys(level.name for level in LEVELS[machine]):
        if not all(re.search(each.has, text) for each in LEVELS[machine] if each.name == level):
            yield f"lacks the instructions of {level}"


def wrong_in_objects(build: Path, machine: str) -> Iterator[str]:
    """Return the faults of the ISA levels in a build folder, where they are separate objects."""
    for level in LEVELS[machine]:
        folder = build / f"CMakeFiles/anybit_kernels_{level.name}.dir"
        objects = list(folder.glob(f"**/{level.source}.cpp.o*"))
        if not objects:
            yield f"has no {level.source} for {level.name}"
        for each in objects:
            text = disassembled(each, machine)
            if not re.search(level.has, text) or re.search(level.lacks, text):
                yield f"has {level.source} for {level.name} that is compiled for another level"


def disassembled(file: Path, machine: str) -> str:
    """Disassemble a file: LLVM reads every format, Binutils those of one machine."""
    names = ["llvm-objdump", f"{machine}-linux-gnu-objdump"]
    if machine == platform.machine():
        names.append("objdump")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise SystemExit(f"nothing here reads instructions of {machine}: install LLVM")
    # LLVM wants to be told of this feature.
    feature = ["--mattr=+dotprod"] if found.endswith(names[0]) and machine == "aarch64" else []
    command = [found, *feature, "-d", "--no-show-raw-insn", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
