# SPDX-License-Identifier: Apache-2.0
"""Write models with inputs and the outputs of ONNX Runtime on this machine, for sessions.cpp.

    python tests/programs/sessions/write_sessions.py FILE [--every NUMBER] [--programs NUMBER]

Writes rows of the case tables (one in EVERY) with parameters as constants and as inputs, compared
with the table first; the example, unchanged and compiled; and random integer programs.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper

sys.path.append(str(Path(__file__).parents[1]))
import support_path  # noqa: F401

# isort: split
import ort_backend
import programs as made
from backends import Backend, row_fault
from cases import every_case
from places import EXAMPLES

import anybit
from anybit.compiler.backends.onnx_node import OnnxNode
from anybit.compiler.program.network import Network


class Run(NamedTuple):
    """Run of a session: model, inputs, and outputs or error message."""

    model: bytes
    feeds: Mapping[str, np.ndarray]
    outputs: Sequence[np.ndarray] = ()
    error: str = ""


class Recorded:
    """Session that records its runs."""

    def __init__(self, model: bytes, written: list[Run]) -> None:
        self.model, self.written = model, written

    def run(self, names: None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        try:
            outputs = ort_session(self.model).run(names, feeds)
        except Exception as error:
            self.written.append(Run(self.model, feeds, error=str(error)))
            raise
        self.written.append(Run(self.model, feeds, outputs))
        return outputs


ROWS = (1, 5, 200)
ort_session: Callable[[bytes], onnxruntime.InferenceSession] = ort_backend.session


def rows(every: int) -> Iterator[tuple[str, Run]]:
    written: list[Run] = []
    ort_backend.session = lambda model: Recorded(model, written)
    for place, (operator, case) in enumerate(every_case()):
        for backend in (Backend.ORT, Backend.ORT_INPUTS) if place % every == 0 else ():
            written.clear()
            if fault := row_fault(backend, operator, case):
                sys.exit(f"{backend}: {operator}, {case.name}: {fault}")
            for run in written:
                if not any(feed.dtype == object for feed in run.feeds.values()):  # strings
                    yield f"{operator} {case.name} {backend}", run


def models(programs: int) -> Iterator[tuple[str, Run]]:
    with np.load(EXAMPLES / "digits.npz") as arrays:
        images = {"x": arrays["x"]}
    example = EXAMPLES / "digits_w4a4.onnx"
    yield "digits", record_run(ir.load(example), images)
    yield "digits, compiled", record_run(anybit.compile(example).model, images)
    for seed in range(programs):
        program = made.make_program(made.FromGenerator(np.random.default_rng(seed)))
        inputs = made.inputs_for(program, ROWS[seed % len(ROWS)], seed)
        feeds = {f"x{place}": x for place, x in enumerate(inputs)}
        yield f"program {seed}", record_run(OnnxNode().emit(Network(program)), feeds)


def record_run(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> Run:
    file = ir.to_proto(model).SerializeToString()
    return Run(file, feeds, ort_session(file).run(None, feeds))


class Writer:
    """Writer of numbers in 8 bytes, and of data preceded by its length."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def number(self, value: int) -> None:
        self.file.write(value.to_bytes(8, "little"))

    def bytes(self, data: bytes) -> None:
        self.number(len(data))
        self.file.write(data)

    def array(self, values: np.ndarray) -> None:
        self.number(helper.np_dtype_to_tensor_dtype(values.dtype))
        self.bytes(np.array(values.shape, "<i8").tobytes())
        self.bytes(values.tobytes())

    def run(self, name: str, run: Run) -> None:
        self.bytes(name.encode())
        self.bytes(run.model)
        self.number(len(run.feeds))
        for feed, values in run.feeds.items():
            self.bytes(feed.encode())
            self.array(values)
        outputs = onnx.load_from_string(run.model).graph.output
        self.number(len(outputs))
        for output in outputs:
            self.bytes(output.name.encode())
        self.bytes(run.error.encode())
        for values in run.outputs:
            self.array(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--programs", type=int, default=40)
    options = parser.parse_args()
    with options.file.open("wb") as file:
        writer = Writer(file)
        for name, run in itertools.chain(models(options.programs), rows(options.every)):
            writer.run(name, run)


if __name__ == "__main__":
    main()
