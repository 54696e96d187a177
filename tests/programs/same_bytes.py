# SPDX-License-Identifier: Apache-2.0
"""Outputs of the same networks in every runtime, instruction set and language: the same bytes.

    python tests/programs/same_bytes.py [--python PYTHON ...] [--all] [--write]

The networks are examples/digits_w4a4.onnx and those of tests/support/exact_networks.py; the inputs
are the first images of examples/digits.npz. A place is a runtime, an ISA level, or a target of
tests/support/c_targets.py. The program lists the places that this machine lacks. PyTorch and JAX
may be installed for another PYTHON, which also has anybit. The exit status is 1 if outputs differ
from those of the first place or from docs/same_bytes.md, and with --all if a place is missing. ISA
levels that the processor lacks are left out. --write replaces the tables of the page, if all places
give the same bytes.
"""

import support_path  # noqa: F401

# isort: split
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np
import onnx
import onnxruntime
from c_targets import TARGETS, Call, run_c
from exact_networks import FORMATS, make_network
from framework_graphs import run_jax, run_torch
from onnx.reference import ReferenceEvaluator
from places import EXAMPLE, EXAMPLES, ROOT

import anybit
from anybit._native import _core
from anybit.compiler.backends.c.source import emit_c
from anybit.compiler.program import reference
from anybit.compiler.program.program import Program
from anybit.onnx import reference_ops

Run: TypeAlias = Callable[[Path, np.ndarray], bytes]
Digests: TypeAlias = dict[str, str]
Compute: TypeAlias = Callable[[Path], Digests]

PAGE = ROOT / "docs" / "same_bytes.md"
BEGIN, END = "<!-- places:begin -->", "<!-- places:end -->"
ROWS, DIGITS = 16, 12
REFERENCE = "NumPy, ONNX's reference evaluator"
LIBRARY_LEVELS = ("baseline", "avx2", "avx512")
LEVELS = (*LIBRARY_LEVELS[:2], "avxvnni", "avx512", "avx512vnni", "avx512vpopcnt", "amx")
TARGETS_IN_C = (
    *(("x86-64, GCC", "gcc", "-O0"), ("x86-64, GCC", "gcc", "-O3")),
    *(("x86-64, Clang", "clang", "-O0"), ("x86-64, Clang", "clang", "-O3")),
    *(("x86-64, as C++", "c++", "-O2"), ("WebAssembly", "wasm32", "-O2")),
    *(("Cortex-M0", "cortex_m0", "-Os"), ("Cortex-M4", "cortex_m4", "-O2")),
    *(("RISC-V, 32 bits", "riscv32", "-O2"), ("ATmega328P", "atmega", "-Os")),
)


class MissingError(Exception):
    """This machine lacks a place."""


def evaluate(path: Path, x: np.ndarray) -> bytes:
    """Run ONNX's evaluator with the references of our operators."""
    evaluator = ReferenceEvaluator(onnx.load(path), new_ops=reference_ops())
    return np.asarray(evaluator.run(None, {"x": x})[0]).tobytes()


@cache
def compile_program(path: Path) -> Program:
    """Return the integer program of a network."""
    (program,) = anybit.compile(path).report.programs
    return program


def run_program(path: Path, x: np.ndarray) -> bytes:
    """Run the compiled program in NumPy."""
    return reference.run(compile_program(path), [x])[0].tobytes()


def run_native(level: str, path: Path, x: np.ndarray) -> bytes:
    """Run the compiled program in C++ at an ISA level."""
    before = _core.isa()
    try:
        _core.set_isa(level)
    except ValueError as error:
        raise MissingError(str(error)) from None
    try:
        return anybit.compile(path).run(x)["y"].tobytes()
    finally:
        _core.set_isa(before)


def run_library(path: Path, x: np.ndarray) -> bytes:
    """Run the graph in ONNX Runtime with the operator library."""
    return anybit.load(path).run(x)["y"].tobytes()


def run_node(path: Path, x: np.ndarray) -> bytes:
    """Run the compiled file in ONNX Runtime."""
    compiled = path.with_suffix(".compiled.onnx")
    anybit.compile(path).save(compiled)
    return run_library(compiled, x)


def run_converted(form: str, path: Path, x: np.ndarray) -> bytes:
    """Run a converted file in ONNX Runtime as it is: default options, no library."""
    converted = path.with_suffix(f".{form}.onnx")
    anybit.convert(path, to=form).save(converted)
    session = onnxruntime.InferenceSession(converted, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0]).tobytes()


def run_framework(name: str, path: Path, x: np.ndarray) -> bytes:
    """Run the graph in PyTorch or JAX."""
    run = {"torch": run_torch, "jax": run_jax}[name]
    return run(onnx.load(path).graph, x).tobytes()


def run_target(target: str, optimization: str, path: Path, x: np.ndarray) -> bytes:
    """Run the C code on a target."""
    if reason := TARGETS[target].missing:
        raise MissingError(reason)
    program = compile_program(path)
    sizes = ("float", x[0].size, "float", int(program.outputs[0].sizes.prod()))
    call = Call("net.h", "net_run", *sizes, "NET_ARENA_SIZE")
    files = emit_c(program, "net").files
    return run_c(files, call, x.tobytes(), TARGETS[target], (optimization,)).outputs


CHILDREN: dict[str, Run] = {
    "library": run_library,
    "torch": partial(run_framework, "torch"),
    "jax": partial(run_framework, "jax"),
}


def list_places(pythons: Sequence[str]) -> dict[str, Compute]:
    """Return a function of the folder of networks per place."""
    here = (sys.executable,)
    compiled = "C++, compiled program"
    library = "ONNX Runtime, operator library"
    converted = "ONNX Runtime, converted to"
    local: dict[str, Run] = {
        REFERENCE: evaluate,
        "NumPy, compiled program": run_program,
        **{f"{compiled}, `{level}`": partial(run_native, level) for level in LEVELS},
        "ONNX Runtime, compiled file": run_node,
        **{f"{converted} `{form}`": partial(run_converted, form) for form in ("qdq", "standard")},
    }
    in_c: dict[str, Run] = {
        f"C, {name}, `{optimization}`": partial(run_target, target, optimization)
        for name, target, optimization in TARGETS_IN_C
    }
    return {
        **{name: partial(compute_digests, run) for name, run in local.items()},
        **{f"{library}, `{n}`": partial(run_child, "library", here, n) for n in LIBRARY_LEVELS},
        "PyTorch": partial(run_child, "torch", (*here, *pythons), ""),
        "JAX": partial(run_child, "jax", (*here, *pythons), ""),
        **{name: partial(compute_digests, run) for name, run in in_c.items()},
    }


def compute_digests(run: Run, folder: Path) -> Digests:
    """Return the SHA-256 of the outputs of each network in a folder."""
    x = np.load(folder / "x.npy")
    names = json.loads((folder / "names.json").read_text("utf-8"))
    return {name: hashlib.sha256(run(folder / f"{name}.onnx", x)).hexdigest() for name in names}


def run_child(child: str, pythons: Sequence[str], level: str, folder: Path) -> Digests:
    """Compute digests in a process of the first Python that can."""
    environment = {**os.environ, **({"ANYBIT_ISA": level} if level else {})}
    for python in pythons:
        command = [python, __file__, "--child", child, str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not done.returncode:
            digests: Digests = json.loads(done.stdout)
            return digests
        last = done.stderr.strip().splitlines()[-1]
        if not re.search(r"ModuleNotFoundError|DependencyError|ANYBIT_ISA", last):
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    raise MissingError(last)


def write_networks(folder: Path) -> list[str]:
    """Write the networks and their inputs; return the names of the networks."""
    with np.load(EXAMPLES / "digits.npz") as digits:
        np.save(folder / "x.npy", digits["x"][:ROWS])
    (folder / "digits.onnx").write_bytes(EXAMPLE.read_bytes())
    for name in FORMATS:
        onnx.save(make_network(name), folder / f"{name}.onnx")
    names = ["digits", *FORMATS]
    (folder / "names.json").write_text(json.dumps(names), "utf-8")
    return names


def show_tables(digests: Digests, places: Sequence[str]) -> str:
    """Return a table of the first digits of digests, and one of the places that give them."""
    digits = [digest[:DIGITS] for digest in digests.values()]
    variants: dict[str, list[str]] = {}
    for place in places:
        environment, _, variant = place.rpartition(", ")
        variants.setdefault(environment or place, []).append(variant if environment else "")
    tables = (
        [["network", *digests], ["SHA-256", *digits]],
        [["environment", "variants"], *([name, ", ".join(of)] for name, of in variants.items())],
    )
    return "\n\n".join(map(format_table, tables))


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table in Markdown; the first one is the heading."""
    head, *body = (f"|{'|'.join(row)}|" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def read_page() -> Digests:
    """Return the first digits of the digests of the page, by network."""
    text = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    names, _, row, *_ = (line.strip("|").split("|")[1:] for line in text.split("\n") if line)
    return dict(zip(names, row, strict=True))


def write_page(digests: Digests, places: Sequence[str]) -> None:
    """Replace the tables of the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{show_tables(digests, places)}\n{END}{after}", "utf-8")


def run_places(pythons: Sequence[str], folder: Path) -> tuple[dict[str, Digests], list[str]]:
    """Return the digests by place, and the places that this machine lacks; print both."""
    table: dict[str, Digests] = {}
    missing = []
    for place, compute in list_places(pythons).items():
        began = time.monotonic()
        try:
            table[place] = compute(folder)
        except MissingError as error:
            missing.append(place)
            print(f"{'not here':9} {place}: {error}", flush=True)
            continue
        state = "same" if table[place] == table[REFERENCE] else "DIFFERS"
        print(f"{state:9} {place} ({time.monotonic() - began:.1f} s)", flush=True)
    return table, missing


def main() -> None:
    """Run all places and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", default=[], help="another interpreter")
    parser.add_argument("--all", action="store_true", help="fail if a place is missing")
    parser.add_argument("--write", action="store_true", help="replace the tables of the page")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, folder = options.child
        print(json.dumps(compute_digests(CHILDREN[name], Path(folder))))
        return
    with TemporaryDirectory() as created:
        write_networks(Path(created))
        table, missing = run_places(options.python, Path(created))
    for network, digest in table[REFERENCE].items():
        print(f"{network}: {digest}")
    expected = table[REFERENCE]
    faults = [place for place, digests in table.items() if digests != expected]
    if options.write and not faults:
        write_page(expected, list(table))
    if read_page() != {network: digest[:DIGITS] for network, digest in expected.items()}:
        faults.append(f"{PAGE.relative_to(ROOT)}: write it again with --write")
    if options.all:
        levels = tuple(f"`{level}`" for level in LEVELS)
        faults += [place for place in missing if not place.endswith(levels)]
    if faults:
        print("differs or is missing:", *faults, sep="\n  ")
        sys.exit(1)
    print(f"{len(table)} places, the same bytes")


if __name__ == "__main__":
    main()
