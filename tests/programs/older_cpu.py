# SPDX-License-Identifier: Apache-2.0
"""Run a command with an ONNX Runtime that takes this CPU for one with AVX2 and without VNNI.

    python older_cpu.py [--cpu avx2|avx512|sse4] FOLDER COMMAND ...

On such CPUs ONNX Runtime saturates sums of two products of uint8 and int8. FOLDER gets a copy of
the installed onnxruntime in which each cpuid instruction is an int3, and a small library whose
signal handler answers in its place: the kernels are those of the older CPU, at native speed.

It needs Linux on x86-64 with gcc and objdump. Elsewhere it prints a reason and exits with status 0,
without running the command.
"""

import argparse
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import onnxruntime

CPUID, INT3_NOP = b"\x0f\xa2", b"\xcc\x90"
ISA = {"avx2": "avx2", "avx512": "avx512", "sse4": "baseline"}

# 255 * 127 + 255 * 127 is 64770, or 32767 saturated: 253 or 128 steps of 256.
PROBE = """
import numpy as np, onnx.parser, onnxruntime
model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 13]>
g (uint8[1, 2] x) => (uint8[1, 1] y)
<float one = {1.0}, float wide = {256.0}, uint8 zero = {0}, int8 none = {0},
 int8[2, 1] w = {127, 127}>
{ y = QLinearMatMul(x, one, zero, w, one, none, wide, zero) }''')
message, providers = model.SerializeToString(), ["CPUExecutionProvider"]
session = onnxruntime.InferenceSession(message, providers=providers)
print(session.run(None, {"x": np.uint8([[255, 255]])})[0].item())
"""


def reason_to_skip() -> str:
    """Return why this machine cannot do it, or ""."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "only Linux on x86-64"
    missing = [tool for tool in ("gcc", "objdump") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    flags = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    return "" if "avx2" in flags else "this CPU has no AVX2 itself"


def make_environment(folder: Path) -> None:
    """Write the patched copy and the library to a folder, which goes on PYTHONPATH."""
    source = Path(onnxruntime.__file__).parent
    copy = folder / "onnxruntime"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    for library in copy.glob("capi/*.so*"):
        replace_cpuid(library)
    trap = (folder / "older_cpu.so").resolve()
    code = Path(__file__).with_suffix(".c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", trap, code], check=True)
    # Before anything loads ONNX Runtime, and in processes that a test starts, too.
    (folder / "sitecustomize.py").write_text(
        f"import ctypes\nctypes.CDLL({str(trap)!r}, ctypes.RTLD_GLOBAL)\n"
    )


def replace_cpuid(library: Path) -> int:
    """Replace each cpuid instruction of a library by an int3, and return their number.

    objdump decodes the instructions, so that the same two bytes inside of another one stay.
    """
    content = bytearray(library.read_bytes())
    segments = executable_segments(content)
    addresses = cpuid_addresses(library)
    for address in addresses:
        (offset,) = (
            at + address - start for start, size, at in segments if start <= address < start + size
        )
        if content[offset : offset + 2] != CPUID:
            raise RuntimeError(f"{library}: no cpuid at {address:#x}, where objdump lists one")
        content[offset : offset + 2] = INT3_NOP
    library.unlink()  # it may be a hard link to the installed one
    library.write_bytes(content)
    return len(addresses)


def cpuid_addresses(library: Path) -> list[int]:
    """Return the addresses of the cpuid instructions in a library's code."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as objdump:
        assert objdump.stdout is not None
        matches = [re.match(r" *([0-9a-f]+):\s+cpuid\s*$", line) for line in objdump.stdout]
    if objdump.returncode:
        raise subprocess.CalledProcessError(objdump.returncode, command)
    return [int(match[1], 16) for match in matches if match]


def executable_segments(content: bytes) -> list[tuple[int, int, int]]:
    """Return the address, size and file offset of each executable segment of an ELF64 file."""
    (table,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    segments = []
    for index in range(count):
        kind, flags, offset, address, _, length = struct.unpack_from(
            "<IIQQQQ", content, table + index * size
        )
        if kind == 1 and flags & 1:  # PT_LOAD, PF_X
            segments.append((address, length, offset))
    return segments


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", choices=ISA, default="avx2")
    parser.add_argument("folder", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    skipped = reason_to_skip()
    if skipped:
        print(f"skipped: {skipped}")
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    make_environment(options.folder)
    paths = [str(options.folder.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OLDER_CPU": options.cpu,
        "ANYBIT_ISA": ISA[options.cpu],
    }
    probe = [sys.executable, "-c", PROBE]
    seen = subprocess.run(probe, capture_output=True, text=True, check=True, env=environment)
    expected = "253" if options.cpu == "sse4" else "128"
    if seen.stdout.strip() != expected:
        print(f"ONNX Runtime gives {seen.stdout.strip()} and not {expected}: not the older kernels")
        return 1
    return subprocess.run(options.command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
