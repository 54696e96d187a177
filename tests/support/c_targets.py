# SPDX-License-Identifier: Apache-2.0
"""C functions compiled for hosts and microcontrollers, run in emulators.

`run_c` compiles a function `int NAME_run(const T *in, U *out, void *arena)` for a `Target` and runs
it on rows. Debian's packages: gcc-arm-none-eabi, libnewlib-arm-none-eabi, qemu-system-arm;
gcc-riscv64-unknown-elf, picolibc-riscv64-unknown-elf, qemu-system-misc; gcc-avr, avr-libc,
libsimavr-dev; clang, lld, nodejs for WebAssembly. Start-up code and linker scripts are in
tests/programs/c_targets.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

PLATFORMS = Path(__file__).resolve().parents[1] / "programs" / "c_targets"
WARNINGS = ("-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror")
PAIRS = ("-U__SSE2__", "-D__ARM_FEATURE_SIMD32", "-isystem", str(PLATFORMS / "acle"))
"""Options of a host for the variant of Cortex-M4, whose instructions are functions of C there."""
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
QEMU = ("-nographic", "-monitor", "none", "-serial", "none", "-icount", "shift=0")
SEMIHOSTING = ("-semihosting-config", "enable=on,target=native")
TIMEOUT = 240


@dataclass(frozen=True)
class Target:
    """A compiler and the machine that runs its programs.

    Attributes:
        compiler: Compiler with the options of the machine.
        platform: Start-up code, a file in tests/programs/c_targets.
        emulator: Command that runs a program, if it is not for this machine.
        link: Options of the linker.
        linker: Program that the compiler calls, if the compiler comes without it.
        libraries: Libraries for the linker.
        size: Program that prints the sizes of sections; empty if they are not measured.
        language: Options that select the language of the function.
        has_stack: Whether the depth of the stack is measured.
    """

    compiler: tuple[str, ...]
    platform: str = "host.c"
    emulator: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    linker: str = ""
    libraries: tuple[str, ...] = ("-lm",)
    size: str = "size"
    language: tuple[str, ...] = ("-std=c99",)
    has_stack: bool = False

    @property
    def missing(self) -> str:
        """Return why the target cannot be used here; empty if it can."""
        tools = filter(None, (self.compiler[0], self.linker, *self.emulator[:1], self.size))
        absent = [tool for tool in tools if tool != "simavr_run" and not shutil.which(tool)]
        if not absent and "simavr_run" in self.emulator and not simavr_run():
            absent = ["libsimavr"]
        return f"not installed: {', '.join(absent)}" if absent else ""


def _cortex_m(cpu: str, machine: str, mhz: int, ram: str, *flags: str) -> Target:
    memory = [f"-Wl,--defsym={name}" for name in ram.split()]
    return Target(
        ("arm-none-eabi-gcc", f"-mcpu={cpu}", "-mthumb", *flags, f"-DCLOCK_MHZ={mhz}"),
        "cortex_m.c",
        ("qemu-system-arm", "-M", machine, *QEMU, *SEMIHOSTING, "-kernel"),
        ("-nostartfiles", "-T", str(PLATFORMS / "cortex_m.ld"), *memory),
        size="arm-none-eabi-size",
        has_stack=True,
    )


_MPS2 = "FLASH_SIZE=0x400000 RAM_ORIGIN=0x20000000 RAM_SIZE=0x400000"
_MPS3 = "FLASH_SIZE=0x80000 RAM_ORIGIN=0x01000000 RAM_SIZE=0x200000"
_RISCV = (
    "-march=rv32imac",
    "-misa-spec=2.2",
    "-mabi=ilp32",
    "-mcmodel=medany",
    "--specs=picolibc.specs",
)
_WASM = ("--target=wasm32", "-mbulk-memory", "-ffreestanding", "-I", str(PLATFORMS / "wasm"))
_FPU = ("-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")

TARGETS = {
    "gcc": Target(("gcc",)),
    "clang": Target(("clang",)),
    "sanitizers": Target(("gcc", *SANITIZERS)),
    "clang_sanitizers": Target(("clang", *SANITIZERS)),
    "c++": Target(("g++",), language=("-x", "c++", "-std=c++11")),
    # Cortex-M0 has a subset of the instructions of Cortex-M3, and qemu no such board with memory.
    "cortex_m0": _cortex_m("cortex-m0", "mps2-an385", 25, _MPS2),
    "cortex_m3": _cortex_m("cortex-m3", "mps2-an385", 25, _MPS2),
    "cortex_m4": _cortex_m("cortex-m4", "mps2-an386", 25, _MPS2, *_FPU),
    "cortex_m55": _cortex_m("cortex-m55", "mps3-an547", 32, _MPS3, "-mfloat-abi=hard"),
    "riscv32": Target(
        ("riscv64-unknown-elf-gcc", *_RISCV),
        "riscv32.c",
        (
            *("qemu-system-riscv32", "-M", "virt", "-bios", "none", *QEMU, *SEMIHOSTING),
            "-kernel",
        ),
        ("-nostartfiles", "-T", str(PLATFORMS / "riscv32.ld")),
        size="riscv64-unknown-elf-size",
        has_stack=True,
    ),
    "wasm32": Target(
        ("clang", *_WASM),
        "wasm.c",
        ("node", str(PLATFORMS / "run_wasm.mjs")),
        ("-nostdlib", "-Wl,--no-entry"),
        size="",
        linker="wasm-ld",
        libraries=(),
    ),
    "atmega": Target(
        ("avr-gcc", "-mmcu=atmega328p"),
        "atmega.c",
        ("simavr_run",),
        ("-Wl,--defsym=platform_free_memory=__heap_start",),
        size="avr-size",
        has_stack=True,
    ),
}


@dataclass(frozen=True)
class Call:
    """The signature of a function.

    Attributes:
        header: File that declares it.
        run: Name of the function.
        input_type, input_count: C type and number of the elements of a row of the input.
        output_type, output_count: The same of the output.
        arena_bytes: Size of the arena: a number or a macro of the header.
    """

    header: str
    run: str
    input_type: str
    input_count: int
    output_type: str
    output_count: int
    arena_bytes: int | str


@dataclass(frozen=True)
class RunResult:
    """Outputs of a program, and the sizes of its parts in bytes.

    Attributes:
        outputs: The outputs of all rows.
        count: Instructions of all calls together, within 50 a row, or cycles on an ATmega; 0 on
            hosts.
        stack: Deepest stack of a call, within 100 bytes; 0 on hosts and for WebAssembly.
        flash: Code and constants of the function's files, without libraries; 0 for WebAssembly.
        ram: Static data of the function's files; the arena and the stack are not included.
    """

    outputs: bytes
    count: int
    stack: int
    flash: int
    ram: int


def run_c(
    files: Mapping[str, str],
    call: Call,
    rows: bytes,
    target: Target,
    optimization: Sequence[str] = ("-O2",),
    warnings: Sequence[str] = WARNINGS,
) -> RunResult:
    """Compile files and a program that calls a function on all rows; run it.

    Args:
        files: Text by file name. Names that end in .c are compiled.
        call: The function.
        rows: The inputs of all rows, in the byte order of the target: little-endian.
        target: One of TARGETS.
        optimization: Options of the compiler for all files.
        warnings: Options of the compiler for `files`.

    Raises:
        RuntimeError: The files cannot be compiled, the program fails or the function returns
            another status than 0.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        row_count = _write_call(call, rows, folder)
        common = [*target.compiler, *optimization, "-ffunction-sections", "-fdata-sections"]
        common += ["-I", str(folder), "-I", str(PLATFORMS)]
        objects = []
        for file in sorted(files):
            if file.endswith(".c"):
                objects.append(f"{file}.o")
                _run([*common, *target.language, *warnings, "-c", file, "-o", objects[-1]], folder)
        flash, ram = _sizes(target, objects, folder)
        stack = ["-DPLATFORM_HAS_STACK"] if target.has_stack else []
        sources = [str(PLATFORMS / "main.c"), str(PLATFORMS / target.platform)]
        for source in sources:
            objects.append(f"{Path(source).stem}_.o")
            language = ("-x", "c++") if "c++" in target.language else ("-std=gnu99",)
            _run([*common, *language, *stack, "-c", source, "-o", objects[-1]], folder)
        _run([*target.compiler, "-c", "rows.S", "-o", "rows.o"], folder)
        objects.append("rows.o")
        link = [*common, *target.link, "-Wl,--gc-sections", *objects, *target.libraries]
        _run([*link, "-o", "program"], folder)
        emulator = [simavr_run() if part == "simavr_run" else part for part in target.emulator]
        text = _run([*emulator, str(folder / "program")], folder)
    outputs, numbers = _parse(text)
    if len(outputs) != row_count:
        raise RuntimeError(f"{len(outputs)} rows of {row_count} were printed")
    count = numbers.get("cycles", numbers["count"])
    return RunResult(b"".join(outputs), count, numbers["stack"], flash, ram)


def _write_call(call: Call, rows: bytes, folder: Path) -> int:
    """Write call.h and the rows; return their number."""
    sizes = {"float": 4, "int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4}
    row_bytes = sizes[call.input_type] * call.input_count
    if not rows or len(rows) % row_bytes:
        raise ValueError(f"{len(rows)} bytes are not rows of {row_bytes} bytes")
    count = len(rows) // row_bytes
    (folder / "call.h").write_text(
        f'#include "{call.header}"\n#define RUN {call.run}\n'
        f"#define INPUT_TYPE {call.input_type}\n#define INPUT_COUNT {call.input_count}\n"
        f"#define OUTPUT_TYPE {call.output_type}\n#define OUTPUT_COUNT {call.output_count}\n"
        f"#define ARENA_BYTES ({call.arena_bytes})\n#define ROW_COUNT {count}u\n",
        encoding="utf-8",
    )
    (folder / "rows.bin").write_bytes(rows)
    (folder / "rows.S").write_text(
        '#if defined(__AVR__)\n.section .progmem.rows,"a"\n'
        '#elif defined(__wasm__)\n.section .rodata.rows,"",@\n.type rows,@object\n'
        f".size rows, {len(rows)}\n#else\n.section .rodata\n.balign 8\n#endif\n"
        '.globl rows\nrows:\n.incbin "rows.bin"\n'
        "#ifdef __x86_64__\n.section .note.GNU-stack\n#endif\n",
        encoding="utf-8",
    )
    return count


def _sizes(target: Target, objects: list[str], folder: Path) -> tuple[int, int]:
    """Return the bytes of code and constants, and those of static data."""
    flash = ram = 0
    if not target.size:
        return 0, 0
    in_ram = (".data", ".bss", *([".rodata"] if "avr-gcc" in target.compiler else []))
    for line in _run([target.size, "-A", *objects], folder).splitlines():
        if line.startswith((".text", ".rodata", ".srodata", ".data", ".sdata", ".progmem")):
            flash += int(line.split()[1])
        if line.startswith((*in_ram, ".sdata", ".sbss")):
            ram += int(line.split()[1])
    return flash, ram


def _parse(text: str) -> tuple[list[bytes], dict[str, int]]:
    """Return the rows and the numbers that a program printed."""
    rows, numbers, ended = [], {}, False
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "row":
            rows.append(bytes.fromhex(value))
        elif value.isdigit():
            numbers[name] = int(value)
        ended |= name == "end"
    if not ended or "status" in numbers:
        raise RuntimeError(f"the program failed:\n{text[-2000:]}")
    return rows, numbers


def _run(command: Sequence[str], folder: Path) -> str:
    """Return what a command prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}")
    return done.stdout


@cache
def simavr_run() -> str:
    """Return the path of the compiled emulator; empty without libsimavr."""
    folder = TemporaryDirectory()
    _KEPT.append(folder)
    path = Path(folder.name) / "simavr_run"
    command = ["cc", "-O2", str(PLATFORMS / "simavr_run.c"), "-o", str(path), "-lsimavr"]
    try:
        _run(command, Path(folder.name))
    except (RuntimeError, FileNotFoundError):
        return ""
    return str(path)


_KEPT: list[TemporaryDirectory[str]] = []
