# SPDX-License-Identifier: Apache-2.0
"""Rates of the best instruction loops of an ISA level, on the processor at hand.

A loop does what a product must do at least: multiply and add in registers, with nothing to load.
It is written in assembly, so that no compiler can shorten it.
"""

import ctypes
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from _measure import best_times

REPEATS = 20_000

# Sums in registers: as many as the other operands leave, to hide the latency of an instruction.
ACCUMULATORS = 11


@dataclass(frozen=True)
class Loop:
    """Instructions of one accumulator, for templates {s}, {t}, {u} and constants {a}, {b}, {c}.

    Attributes:
        text: Instructions; {r} is the letter of the registers.
        work: Multiplications per byte of a register.
    """

    text: tuple[str, ...]
    work: float


# Products of bytes in sums of 16 bits, of any bytes in 32 bits, of words, and of bits: shuffles
# that look up the sums of 4 channels, or counts of ones.
_VEX = {
    "bytes": Loop(("vpmaddubsw {a},{b},{t}", "vpaddw {t},{s},{s}"), 1),
    "any bytes": Loop(("vpmaddubsw {a},{b},{t}", "vpmaddwd {t},{c},{t}", "vpaddd {t},{s},{s}"), 1),
    "words": Loop(("vpmaddwd {a},{b},{t}", "vpaddd {t},{s},{s}"), 0.5),
    "bits": Loop(("vpshufb {a},{b},{t}", "vpaddb {t},{s},{s}"), 4),
}
_SSE = {
    "bytes": Loop(("movdqa {b},{t}", "pmaddubsw {a},{t}", "paddw {t},{s}"), 1),
    "any bytes": Loop(
        ("movdqa {b},{t}", "pmaddubsw {a},{t}", "pmaddwd {c},{t}", "paddd {t},{s}"), 1
    ),
    "words": Loop(("movdqa {b},{t}", "pmaddwd {a},{t}", "paddd {t},{s}"), 0.5),
    "bits": Loop(("movdqa {b},{t}", "pshufb {a},{t}", "paddb {t},{s}"), 4),
}
_VNNI = Loop(("vpdpbusd {a},{b},{s}",), 1)
_VNNI_WORDS = Loop(("vpdpwssd {a},{b},{s}",), 0.5)
_AVX_VNNI = Loop(("{{vex}} vpdpbusd {a},{b},{s}",), 1)
_COUNT = Loop(
    (
        *("vpxord {a},{b},{t}", "vpandd {c},{t},{u}", "vpsrlw $4,{t},{t}", "vpandd {c},{t},{t}"),
        *("vpshufb {u},{b},{u}", "vpshufb {t},{b},{t}", "vpaddb {u},{s},{s}", "vpaddb {t},{s},{s}"),
    ),
    8,
)
_POPCNT = Loop(("vpxord {a},{b},{t}", "vpopcntd {t},{t}", "vpaddd {t},{s},{s}"), 8)
_AVX512 = {**_VEX, "bits": _COUNT}
_DOTS = {"bytes": _VNNI, "any bytes": _VNNI, "words": _VNNI_WORDS}

# Letter of the registers, and loops, per level. AMX is left out: it must be asked for.
LEVELS: Mapping[str, tuple[str, Mapping[str, Loop]]] = {
    "baseline": ("x", _SSE),
    "avx2": ("y", _VEX),
    "avxvnni": ("y", {**_VEX, **dict.fromkeys(("bytes", "any bytes"), _AVX_VNNI)}),
    "avx512": ("z", _AVX512),
    "avx512vnni": ("z", {**_AVX512, **_DOTS}),
    "avx512vpopcnt": ("z", {"bits": _POPCNT, **_DOTS}),
}

# Loop of a kernel, and how many multiplications of the loop one of the kernel takes.
KERNELS: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(("dot8", "dot4", "dot3", "dot2", "dot1", "depthwise"), ("bytes", 1)),
    "wide8": ("any bytes", 1),
    "winograd": ("words", 1 / 4),
    **dict.fromkeys(("rows11", "xor11", "ternary11", "signs12"), ("bits", 1)),
    **dict.fromkeys(("rows22", "xor12", "ternary12", "and21"), ("bits", 2)),
    "and22": ("bits", 4),
}


def roofs(level: str) -> dict[str, float]:
    """Return the multiplications per second of each loop of a level; none without a compiler.

    The processor must have the level.
    """
    if level not in LEVELS:
        return {}
    letter, loops = LEVELS[level]
    source = "\n".join(_function(f"loop{i}", letter, loop) for i, loop in enumerate(loops.values()))
    with tempfile.TemporaryDirectory() as folder:
        library = assembled(source, Path(folder))
        if library is None:
            return {}
        calls = {name: getattr(library, f"loop{i}") for i, name in enumerate(loops)}
        times = best_times(calls, rounds=200, at_least=0.0002)
    size = {"x": 16, "y": 32, "z": 64}[letter]
    return {
        name: ACCUMULATORS * REPEATS * size * loop.work / times[name]
        for name, loop in loops.items()
    }


def least_seconds(kernels: Mapping[str, int], rates: Mapping[str, float]) -> float:
    """Return the time of multiplications per kernel at the rates of `roofs`."""
    total = 0.0
    for kernel, count in kernels.items():
        loop, factor = KERNELS[kernel]
        total += count * factor / rates[loop]
    return total


def _function(name: str, letter: str, loop: Loop) -> str:
    """Return a function that repeats a loop over all accumulators."""

    def register(number: int) -> str:
        return f"%{letter}mm{number}"

    others = {name: register(number) for number, name in enumerate("tuabc", ACCUMULATORS)}
    lines = []
    for i in range(ACCUMULATORS):
        lines += [text.format(s=register(i), **others) for text in loop.text]
    body = "\n".join(lines)
    return f".globl {name}\n{name}:\nmov ${REPEATS},%ecx\n1:\n{body}\ndec %ecx\njnz 1b\nret\n"


def assembled(source: str, folder: Path) -> ctypes.CDLL | None:
    """Return a shared library of assembly, or None without a compiler."""
    text, library = folder / "loops.s", folder / "loops.so"
    text.write_text(source + '.section .note.GNU-stack,"",@progbits\n')
    compiler = shlex.split(os.environ.get("CC", "cc"))
    try:
        subprocess.run(
            [*compiler, "-shared", "-o", str(library), str(text)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return ctypes.CDLL(str(library))
