# SPDX-License-Identifier: Apache-2.0
"""Release checks of native libraries, in a wheel or alone, for any system.

A library depends on an old system only, exports one symbol, is stripped, contains no path of the
build machine, and has the instructions of every ISA level: a compiler that ignores a flag silently
makes slow code.
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
LINKER_SYMBOLS = {"__dso_handle", "_mh_dylib_header"}  # exported by Zig's linker for macOS
# Paths in folders where programs are built or installed; devices and settings may be named.
PATHS = re.compile(
    rb"/(?:home|root|tmp|opt|build|work|mnt|Users|usr/(?:lib|local|include))/[\w./+-]+"
)
# Libraries of macOS in these folders.
SYSTEM_PATHS = {b"/usr/lib/libSystem.B.dylib", b"/usr/lib/libstdc++.6.dylib", b"/usr/lib/dyld"}


class Level(NamedTuple):
    """An ISA level: a source file of its kernels and patterns of instructions."""

    name: str
    source: str
    required: str
    forbidden: str = "(?!)"  # instructions of higher levels


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


def check_library(data: bytes, symbol: str, dependencies: str = "(?!)") -> Iterator[str]:
    """Yield the faults of a library that exports `symbol`.

    The pattern `dependencies` matches libraries that it may need besides those of the system.
    """
    library = lief.parse(list(data))
    unexpected = [
        name
        for name in list_dependencies(library)
        if not SYSTEM.fullmatch(name) and not re.fullmatch(dependencies, name)
    ]
    if unexpected:
        yield f"needs {unexpected}"
    if (exported := list_exports(library)) != {symbol}:
        yield f"exports {sorted(exported)[:5]}"
    if newer := sorted(list_newer_versions(library)):
        yield f"needs {newer}"
    if has_symbols(library):
        yield "has the symbols of its functions: strip it"
    if paths := sorted(set(PATHS.findall(data)) - SYSTEM_PATHS):
        yield f"names {paths[:3]}"
    if needs_signature(library) and not library.has_code_signature:
        yield "is not signed"
    yield from check_levels(library, data)


def list_exports(library: lief.Binary) -> set[str]:
    if isinstance(library, lief.ELF.Binary):
        return {symbol.name for symbol in library.dynamic_symbols if symbol.exported}
    if isinstance(library, lief.MachO.Binary):
        names = {symbol.name.removeprefix("_") for symbol in library.exported_symbols}
        return names - LINKER_SYMBOLS
    return {symbol.name for symbol in library.get_export().entries}


def list_dependencies(library: lief.Binary) -> list[str]:
    if isinstance(library, lief.ELF.Binary):
        return list(library.libraries)
    if isinstance(library, lief.MachO.Binary):
        own_name = lief.MachO.LoadCommand.TYPE.ID_DYLIB
        return [entry.name for entry in library.libraries if entry.command != own_name]
    return [entry.name for entry in library.imports]


def list_newer_versions(library: lief.Binary) -> Iterator[str]:
    """Yield the required versions of the system or its C library that are too new."""
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
    """Return whether the library has a symbol table for debuggers."""
    if isinstance(library, lief.ELF.Binary):
        return library.has_section(".symtab")
    if isinstance(library, lief.PE.Binary):
        return library.header.numberof_symbols > 0
    return False


def needs_signature(library: lief.Binary) -> bool:
    """Return whether the system loads signed libraries only, as macOS does on ARM."""
    return isinstance(library, lief.MachO.Binary) and get_machine(library) == "aarch64"


def get_machine(library: lief.Binary) -> str:
    if isinstance(library, lief.MachO.Binary):
        arm = library.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    elif isinstance(library, lief.ELF.Binary):
        arm = library.header.machine_type == lief.ELF.ARCH.AARCH64
    else:
        arm = library.header.machine == lief.PE.Header.MACHINE_TYPES.ARM64
    return "aarch64" if arm else "x86_64"


def check_levels(library: lief.Binary, data: bytes) -> Iterator[str]:
    machine = get_machine(library)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        text = disassemble(Path(file.name), machine)
    missing = [level.name for level in LEVELS[machine] if not re.search(level.required, text)]
    yield from (f"lacks the instructions of {name}" for name in dict.fromkeys(missing))


def check_objects(build: Path, machine: str) -> Iterator[str]:
    """Yield the faults of a build folder, where the kernels of each ISA level are an object."""
    for level in LEVELS[machine]:
        folder = build / f"CMakeFiles/anybit_kernels_{level.name}.dir"
        objects = list(folder.glob(f"**/{level.source}.cpp.o*"))
        if not objects:
            yield f"has no {level.source} for {level.name}"
        for path in objects:
            text = disassemble(path, machine)
            if not re.search(level.required, text) or re.search(level.forbidden, text):
                yield f"has {level.source} for {level.name} that is compiled for another level"


def disassemble(file: Path, machine: str) -> str:
    """Disassemble a file: LLVM reads every format, Binutils those of one machine."""
    names = ["llvm-objdump", f"{machine}-linux-gnu-objdump"]
    if machine == platform.machine():
        names.append("objdump")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        raise SystemExit(f"no disassembler for {machine} is installed: install LLVM")
    # LLVM does not enable this feature by itself.
    feature = ["--mattr=+dotprod"] if program.endswith(names[0]) and machine == "aarch64" else []
    command = [program, *feature, "-d", "--no-show-raw-insn", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
