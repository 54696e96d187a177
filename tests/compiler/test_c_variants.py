# SPDX-License-Identifier: Apache-2.0
"""Variants of C source for instruction sets: the bytes of each other and of the reference."""

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from c_batches import Case, make_case, run_batch
from c_networks import (
    WIDTHS,
    Width,
    make_network,
    make_product,
    make_program,
    make_tiles,
    make_windows,
)
from c_targets import PAIRS, SANITIZERS, WARNINGS

from anybit.compiler.backends.c.source import emit_c
from anybit.compiler.program import program as p

GCC = ("gcc", "-std=c99", "-O0", *WARNINGS, *SANITIZERS)
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain loops": ("-U__SSE2__",),
    "plain loops, big-endian": ("-U__SSE2__", "-D__ARM_FEATURE_SIMD32", "-D__ARM_BIG_ENDIAN"),
    "vectors of the compiler": ("-U__SSE2__", "-D__ARM_NEON"),
    "pairs of products": PAIRS,
    "pairs of products, unaligned words": (*PAIRS, "-D__ARM_FEATURE_UNALIGNED"),
    "SSE2": ("-march=x86-64", "-DONLY_SSE2"),
    "SSE2, and more at run time": ("-march=x86-64",),
    "popcnt": ("-march=x86-64", "-mpopcnt"),
    "avx2": ("-march=x86-64-v3", "-DNO_AVX512"),
    "avx512_vnni": ("-march=x86-64-v4", "-mavx512vnni"),
}
"""Options by names; those that a CPU may lack have the names of its flags in /proc/cpuinfo."""

OPTIMIZATIONS = [
    (*compiler, *options)
    for compiler in (("gcc",), ("clang",))
    for options in (("-O0",), ("-O1",), ("-O2",), ("-Os",), ("-O3",), ("-O3", "-flto"))
]

ROWS = 3


def make_windows_of_24(width: Width, rng: np.random.Generator) -> p.Program:
    return make_windows(width, rng, channels=24)


def make_rows_in_place(width: Width, rng: np.random.Generator) -> p.Program:
    """Return a depthwise convolution that overwrites rows, which do not fit a tile."""
    tensors = [p.Tensor(3, 12, 1000, width.lowest, 1, width.levels)] * 2
    window = p.Window(1, 9, 1, 1, 1, 1, 0, 4, 0, 4)
    product = make_product(tensors, 0, 1, window, width, rng, groups=1000)
    return make_program(tensors, [product], rng)


@cache
def make_cases() -> list[Case]:
    cases = []
    for number, (name, width) in enumerate(WIDTHS.items()):
        makers: list[Callable[..., p.Program]] = [make_network, make_windows]
        if len(width.values) == 256:
            makers += [make_tiles, make_windows_of_24, make_rows_in_place]
        for make in makers:
            program = make(width, np.random.default_rng(len(name) + 1))
            x = np.random.default_rng(number).normal(0, 1, (ROWS, program.inputs[0].sizes[0]))
            inputs = [x.astype(np.float32)]
            cases.append(make_case(program, f"{make.__name__[5:]}{number}", inputs))
            assert len(np.unique(cases[-1].outputs[0])) > 1
    return cases


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_gives_same_bytes(name: str, tmp_path: Path) -> None:
    cpu = Path("/proc/cpuinfo").read_text(encoding="ascii")
    if name in ("popcnt", "avx2", "avx512_vnni") and f" {name} " not in cpu.replace("\n", " "):
        pytest.skip(f"this CPU has no {name}")
    assert run_batch(make_cases(), (*GCC, *VARIANTS[name]), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIMIZATIONS, ids=" ".join)
def test_optimization_gives_same_bytes(options: tuple[str, ...], tmp_path: Path) -> None:
    linker = ("-fuse-ld=lld",) if options[0] == "clang" else ()
    tools = (options[0], "ld.lld") if linker else options[:1]
    if missing := [tool for tool in tools if not shutil.which(tool)]:
        pytest.skip(f"{missing[0]} is not installed")
    command = (options[0], "-std=c99", *options[1:], *linker, *WARNINGS)
    assert run_batch(make_cases(), command, tmp_path) == []


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_variants_differ(tmp_path: Path) -> None:
    """Preprocess a network of all widths: variants with equal text would compare nothing."""
    texts = dict.fromkeys(VARIANTS, "")
    for width in WIDTHS.values():
        source = emit_c(make_network(width, np.random.default_rng(0)), "net")
        for file, text in source.files.items():
            (tmp_path / file).write_text(text, encoding="ascii")
        for name, options in VARIANTS.items():
            command = ("gcc", "-std=c99", "-E", "-P", *options, "net.c")
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True)
            texts[name] += done.stdout[done.stdout.index("layer0") :]
    texts.pop("plain loops, big-endian")
    assert len(set(texts.values())) == len(texts)
