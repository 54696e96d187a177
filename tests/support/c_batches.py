# SPDX-License-Identifier: Apache-2.0
"""Programs in C, several compiled together and run in one process, in memory of exact sizes."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anybit.compiler.backends.c.source import CSource, emit_c
from anybit.compiler.backends.c.types import store_tensor
from anybit.compiler.program import program as p
from anybit.compiler.program import reference

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *take(size_t size) {
    void *memory = malloc(size);
    if (!memory) { exit(9); }
    return memset(memory, 0xAA, size);
}

static void *read_all(size_t size) {
    void *memory = take(size);
    if (fread(memory, 1, size, stdin) != size) { exit(8); }
    return memory;
}

static void write_all(void *memory, size_t size) {
    fwrite(memory, 1, size, stdout);
    free(memory);
}
"""


@dataclass(frozen=True, eq=False)
class Case:
    """A program in C with its inputs and the outputs that are expected.

    Attributes:
        source: The program in C.
        inputs, outputs: Arrays of rows, in the types of C.
        status: What the function returns.
    """

    source: CSource
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    status: int = 0


def make_case(
    program: p.Program, name: str, inputs: Sequence[np.ndarray], *, codes: bool = False
) -> Case:
    """Emit a program; return it with the outputs of the reference."""
    source = emit_c(program, name, codes=codes)
    if not codes:
        try:
            return Case(source, inputs, reference.run(program, inputs))
        except ValueError:
            return Case(source, inputs, [], status=1)
    run = reference._Run(program, inputs, len(inputs[0]))
    for at in program.instructions:
        getattr(run, type(at).__name__.lower())(at)
    codes_in, codes_out = list(inputs), {}
    for at in program.instructions:
        if isinstance(at, p.Quantize):
            codes_in[at.source] = _store(program.tensors[at.target], run.indices[at.target])
        elif isinstance(at, p.Dequantize):
            number = at.target - len(program.floats)
            codes_out[number] = _store(program.tensors[at.source], run.indices[at.source])
    return Case(source, codes_in, [codes_out[number] for number in sorted(codes_out)])


def _store(tensor: p.Tensor, indices: np.ndarray) -> np.ndarray:
    stored = store_tensor(tensor)
    elements = stored.lowest + stored.step * indices
    return elements.astype(stored.ctype.dtype)


def run_batch(cases: Sequence[Case], command: Sequence[str], folder: Path) -> list[str]:
    """Compile and run cases; return names of those whose status or outputs differ.

    Args:
        cases: Cases, of different names.
        command: Compiler with its options.
        folder: A folder for the files.

    Raises:
        RuntimeError: The compiler warns, or the process fails.
    """
    for case in cases:
        for name, text in case.source.files.items():
            (folder / name).write_text(text, encoding="ascii")
    (folder / "main.c").write_text(_write_main(cases), encoding="ascii")
    sources = [f"{case.source.name}.c" for case in cases]
    _run([*command, *sources, "main.c", "-o", "batch"], folder)
    rows = [
        np.ascontiguousarray(x[row]).tobytes()
        for case in cases
        for row in range(len(case.inputs[0]))
        for x in case.inputs
    ]
    printed = _run([str(folder / "batch")], folder, b"".join(rows))
    return _compare(cases, printed)


def _write_main(cases: Sequence[Case]) -> str:
    includes = [f'#include "{case.source.name}.h"' for case in cases]
    calls = [
        f"    for (i = 0; i < {len(case.inputs[0])}; i++) {{ call_{case.source.name}(); }}"
        for case in cases
    ]
    main = ["int main(void) {", "    int i;", *calls, "    return 0;", "}", ""]
    return "\n".join([*includes, MAIN, *map(_write_call, cases), *main])


def _write_call(case: Case) -> str:
    """Return a function that reads the inputs of a row, and writes status and outputs."""
    name = case.source.name
    before, ports, after = [], [], []
    for word, letter, arrays in (("in", "x", case.inputs), ("out", "y", case.outputs)):
        action = "read_all" if word == "in" else "take"
        before += [f"void *{letter}{i} = {action}({a[0].nbytes});" for i, a in enumerate(arrays)]
        if len(arrays) == 1:
            kind = arrays[0].dtype.name
            ports.append(f"({'float' if kind == 'float32' else f'{kind}_t'} *){letter}0")
            continue
        before.append(f"{name}_{word}puts {word};")
        before += [
            f"memcpy(&{word}.{letter}{i}, &{letter}{i}, sizeof(void *));"
            for i in range(len(arrays))
        ]
        ports.append(f"&{word}")
    after += [f"write_all(y{i}, {y[0].nbytes});" for i, y in enumerate(case.outputs)]
    after += [f"free(x{i});" for i in range(len(case.inputs))]
    lines = [
        *before,
        f"void *arena = take({name.upper()}_ARENA_SIZE);",
        f"putchar({name}_run({', '.join(ports)}, arena));",
        *after,
        "free(arena);",
    ]
    body = "\n    ".join(lines)
    return f"static void call_{name}(void) {{\n    {body}\n}}\n"


def _compare(cases: Sequence[Case], printed: bytes) -> list[str]:
    different, place = [], 0
    for case in cases:
        same = True
        for row in range(len(case.inputs[0])):
            expected = b"".join([bytes([case.status]), *(y[row].tobytes() for y in case.outputs)])
            same &= _equal(expected, printed[place : place + len(expected)], case, row)
            place += len(expected)
        if not same:
            different.append(case.source.name)
    assert place == len(printed)
    return different


def _equal(expected: bytes, actual: bytes, case: Case, row: int) -> bool:
    if expected == actual:
        return True
    if expected[0] != actual[0]:
        return False
    place = 1
    for y in case.outputs:
        z = np.frombuffer(actual[place : place + y[row].nbytes], y.dtype)
        place += y[row].nbytes
        x = y[row].ravel()
        bits = z.view(f"u{y.dtype.itemsize}") == np.ascontiguousarray(x).view(
            f"u{y.dtype.itemsize}"
        )
        if not np.all(bits | ((z != z) & (x != x))):
            return False
    return True


def _run(command: Sequence[str], folder: Path, data: bytes = b"") -> bytes:
    done = subprocess.run(command, cwd=folder, input=data, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:300]}\n{done.stderr.decode()[:4000]}")
    return done.stdout
