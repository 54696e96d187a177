# SPDX-License-Identifier: Apache-2.0
"""C source of programs: its outputs are those of the reference, to the byte."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_batches import Case, make_case, run_batch
from c_targets import PAIRS
from programs import FromGenerator, inputs_for, make_integer_program, make_program

from anybit.compiler.backends.c.identifiers import make_comment, make_identifier
from anybit.compiler.backends.c.ports import SourceNames
from anybit.compiler.backends.c.source import emit_c
from anybit.compiler.backends.integer_epilogues import make_integer_epilogues
from anybit.compiler.program import program as p
from anybit.compiler.program.open_bits import is_open
from anybit.errors import ModelError, OptionError

WARNINGS = ("-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
CHECKED = ("gcc", "-std=c99", "-O0", *WARNINGS, *SANITIZERS)
COMPILERS = (
    ("gcc", "-std=c99", "-O3", "-flto", *WARNINGS),
    ("gcc", "-std=c99", "-Os", *WARNINGS),
    ("gcc", "-std=c99", "-march=native", "-O3", *WARNINGS),
    ("gcc", "-std=c99", "-U__SSE2__", "-O1", *WARNINGS, *SANITIZERS),  # no vectors
    ("g++", "-x", "c++", "-std=c++11", "-O2", "-pedantic", "-Wall", "-Wextra", "-Werror"),
    ("g++", "-x", "c++", "-std=c++11", "-O2", "-march=native", *WARNINGS),
    ("clang", "-std=c99", "-O0", *WARNINGS),
    ("clang", "-std=c99", "-O3", *WARNINGS),
)
SEEDS = [
    (*range(11), 3035),
    *(pytest.param(range(i, i + 40), marks=pytest.mark.slow) for i in (12, 52)),
]


def assert_same_bytes(cases: Sequence[Case], command: Sequence[str], folder: Path) -> None:
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    assert run_batch(cases, command, folder) == []


def random_cases(seeds: Sequence[int], codes: bool) -> list[Case]:
    cases = []
    for seed in seeds:
        choices = FromGenerator(np.random.default_rng(seed))
        program = make_integer_program(choices, codes=codes)
        try:
            cases.append(make_case(program, f"n{seed}", inputs_for(program, 3, seed), codes=codes))
        except OptionError:
            assert codes
    assert cases
    return cases


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_random_programs_match_reference(seeds: Sequence[int], codes: bool, tmp_path: Path) -> None:
    assert_same_bytes(random_cases(seeds, codes), CHECKED, tmp_path)


@pytest.mark.parametrize("command", COMPILERS, ids=lambda command: f"{command[0]} {command[2]}")
def test_compilers_give_same_bytes(command: tuple[str, ...], tmp_path: Path) -> None:
    cases = random_cases(range(200, 203), False) + random_cases(range(206, 209), True)
    assert_same_bytes(cases, command, tmp_path)


CODINGS = ((-128, 1, 256), (-100, 1, 256), (-1, 2, 2), (0, 1, 16), (-1, 1, 3), (-300, 7, 40))
CODINGS += ((-70000, 3, 5), (7, 1, 1), (0, 1, 2))


def make_product(rng: np.random.Generator, bits: int) -> p.Program:
    """Return a program of one product, of any window, coding and weights."""

    def pick(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    groups = pick(1, 2, 3, 4, 8, 16)
    inner, outer = pick((1, 1), (1, 2), (1, 3), (2, 3), (5, 4), (11, 9))
    source_channels, channels = groups * inner, groups * outer
    kernel, stride, dilation = (rng.integers(1, most, 2).tolist() for most in (4, 4, 4))
    pads = rng.integers(0, 4, 4).tolist() if pick(0, 1) else [0] * 4
    sizes = [(k - 1) * d + int(rng.integers(1, 5)) for k, d in zip(kernel, dilation, strict=True)]
    target_sizes = [
        (size + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilation[i] - 1) // stride[i] + 1
        for i, size in enumerate(sizes)
    ]
    first, last = pick(*CODINGS), pick(*CODINGS)
    tensors = (
        p.Tensor(*sizes, source_channels, *first),
        p.Tensor(*target_sizes, channels, *last),
    )
    window = p.Window(*kernel, *stride, *dilation, *pads)
    count = channels * inner * kernel[0] * kernel[1]
    values = np.sort(rng.choice(np.arange(-128, 128), int(rng.integers(1, 2**bits + 1)), False))
    values = pick(values, values, np.array([-1, 1]), np.array([-128, 0]), np.array([-1, 0, 1]))
    values = values[: 2**bits].astype(np.int32)
    indices = rng.integers(0, len(values), count).astype(np.uint8)
    flags = indices[:, None] >> np.arange(bits) & 1
    weights = np.packbits(flags.ravel(), bitorder="little")
    reach = float(max(abs(first[0]), abs(first[0] + first[1] * first[2]))) * count / channels * 128
    epilogues = (
        p.Affine(
            *rng.normal(0, 4 * last[2] / reach, (1, channels)).astype(np.float32),
            rng.normal(last[2] / 2, 2, channels).astype(np.float32),
            0,
        ),
        p.Thresholds(
            rng.choice([-1, 1], channels).astype(np.int32),
            np.sort(rng.normal(0, reach / 9, (channels, last[2] - 1))).astype(np.int32).ravel(),
        ),
        p.Arithmetic(
            rng.normal(0, 1, channels).astype(np.float32),
            (p.Step(p.Operation.ADD, rng.normal(0, 9, channels).astype(np.float32)),),
        ),
    )
    epilogue = pick(*epilogues)
    input_port, output_port = (
        p.Port(np.int32([h * w * c]), h, w, c, int(rng.integers(2)))
        for h, w, c in ((*sizes, source_channels), (*target_sizes, channels))
    )
    thresholds = np.linspace(-2, 2, first[2] - 1).astype(np.float32)
    floats = isinstance(epilogue, p.Arithmetic)
    product = p.Product(0, 0 if floats else 1, window, groups, bits, weights, values, epilogue)
    steps: list[p.Instruction] = [p.Quantize(0, 0, np.int32([1]), thresholds, 0), product]
    if not floats:
        steps.append(p.Dequantize(1, 0, rng.normal(0, 1, last[2]).astype(np.float32)))
    return p.Program((input_port,), (output_port,), tensors[: 2 - floats], tuple(steps))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_products_match_reference(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    programs = [make_product(rng, bits) for bits in range(1, 9) for _ in range(3)]
    cases = [
        make_case(program, f"n{number}", inputs_for(program, 3, number))
        for number, program in enumerate(programs)
    ]
    assert_same_bytes(cases, CHECKED, tmp_path)
    assert_same_bytes(cases, (*CHECKED, "-U__SSE2__"), tmp_path)
    assert_same_bytes(cases, (*CHECKED, "-march=native"), tmp_path)
    assert_same_bytes(cases, (*CHECKED, *PAIRS), tmp_path)


def is_refused(at: p.Instruction, inputs: int) -> bool:
    """Return whether an instruction of a program with integer epilogues has no C code."""
    match at:
        case p.Product():
            return isinstance(at.epilogue, p.Affine | p.Rounded)
        case p.Quantize():
            return at.source >= inputs
    blocks = p.BlockProduct | p.AsymmetricBlockProduct
    return isinstance(at, blocks | p.Elementwise | p.MatMul | p.DynamicQuantize)


@pytest.mark.parametrize("codes", [False, True])
def test_only_programs_with_floats_or_attention_inside_are_refused(codes: bool) -> None:
    refused = 0
    for seed in range(40):
        program = make_program(FromGenerator(np.random.default_rng(seed)))
        integers = make_integer_epilogues(program).instructions
        opened = any(is_open(at) for at in program.instructions)
        if program.floats or opened or any(is_refused(at, len(program.inputs)) for at in integers):
            refused += 1
            with pytest.raises(ModelError if not codes else (ModelError, OptionError)):
                emit_c(program, "net", codes=codes)
        elif not codes:
            emit_c(program, "net")
    assert refused > 10


def test_damaged_program_is_refused() -> None:
    program = make_integer_program(FromGenerator(np.random.default_rng(0)))
    tensor = replace(program.tensors[0], levels=0)
    with pytest.raises(ModelError, match="damaged"):
        emit_c(replace(program, tensors=(tensor, *program.tensors[1:])), "net")


HOSTILE = (
    "*/ int x; /*",
    "a??/",
    "\n#error",
    "\u202e\u00e9",
    "int",
    "run",
    "".join(map(chr, range(32))),  # the marks of parameters and places, too
    "\x01size\x02\x021\x03",
    "\x04a\x051\x06\x0e\x10\x11\x12",
    "x" * 5000,
    "",
    "\\",
    "0",
)


def test_names_of_models_cannot_become_code(tmp_path: Path) -> None:
    program = make_integer_program(FromGenerator(np.random.default_rng(3)))
    labels = SourceNames(dict(enumerate(HOSTILE * 3)), HOSTILE, HOSTILE)
    source = emit_c(program, "net", labels=labels)
    inputs = inputs_for(program, 2, 0)
    case = replace(make_case(program, "net", inputs), source=source)
    assert_same_bytes([case], CHECKED, tmp_path)
    for text in HOSTILE:
        identifier, comment = make_identifier(text), make_comment(f"{text}*/??/{text}")
        assert len(identifier) <= 24
        assert f"_{identifier}".isidentifier()
        assert f"_{comment}".isascii()
        assert comment.isprintable()
        assert not {"*/", "??"} & {comment[i : i + 2] for i in range(len(comment))}
    for name in ("", "int", "layer0", "a-b", "_a", "\u00e9", "0a", "a" * 64, "a\n"):
        with pytest.raises(OptionError, match="cannot be the name"):
            emit_c(program, name)
    for name in ("stdint", "String", "test"):
        with pytest.raises(OptionError, match="system header or of a target of CMake"):
            emit_c(program, name)


def test_equal_factors_become_part_of_thresholds(tmp_path: Path) -> None:
    port, tensor = p.Port(np.int32([8]), 1, 1, 8, 0), p.Tensor(1, 1, 8, 0, 1, 4)
    factors, offsets = np.full(8, -0.3, np.float32), np.full(8, 0.7, np.float32)
    thresholds = np.float32([-1, 0, np.inf])
    quantize = p.Quantize(0, 0, np.int32([1]), thresholds, 0, factors, offsets)
    dequantize = p.Dequantize(0, 0, np.arange(4, dtype=np.float32))
    program = p.Program((port,), (port,), (tensor,), (quantize, dequantize))
    case = make_case(program, "net", inputs_for(program, 30, 0))
    assert_same_bytes([case], CHECKED, tmp_path)
    assert "scaled" not in case.source.files["net.c"]


def test_header_has_range_of_codes() -> None:
    port, window = p.Port(np.int32([2]), 1, 1, 2, 0), p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    for tensor, text in (
        (p.Tensor(1, 1, 2, -8, 1, 16), "-8 to 7"),
        (p.Tensor(1, 1, 2, -9, 3, 7), "-9 to 9 in steps of 3"),
    ):
        thresholds, values = np.arange(tensor.levels - 1), np.arange(tensor.levels)
        instructions = (
            p.Quantize(0, 0, np.int32([1]), thresholds.astype(np.float32), 0),
            p.MaxPool(0, 1, window),
            p.Dequantize(1, 0, values.astype(np.float32)),
        )
        program = p.Program((port,), (port,), (tensor, tensor), instructions)
        header = emit_c(program, "net", codes=True).files["net.h"]
        assert header.count(f": int8_t, {text}, 1 x 1 x 2 (height, width, channels).") == 2


ODDITIES = (
    r".{101}",
    r"= 0; \w+ < 1;",
    r"[*/] 1\b(?!\.)",
    r" [-+] 0\b(?!\.)",
    r"\(\(\w+\)[ )]",
)
"""Long lines, loops of one iteration, and needless terms, factors and parentheses."""


@pytest.mark.parametrize("layout", ["size", "speed"])
def test_code_reads_as_if_written_by_hand(layout: str) -> None:
    rng = np.random.default_rng(5)
    programs = [make_product(rng, bits) for bits in range(1, 9)]
    programs += [
        make_integer_program(FromGenerator(np.random.default_rng(seed))) for seed in range(60, 70)
    ]
    for program in programs:
        text = emit_c(program, "net", layout=layout).files["net.c"]
        for line in text.splitlines():
            if not line.lstrip().startswith(("#", "/*", "* ")):
                assert not any(re.search(oddity, line) for oddity in ODDITIES), line
