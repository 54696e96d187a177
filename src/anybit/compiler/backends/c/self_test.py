# SPDX-License-Identifier: Apache-2.0
"""A test program in C: one input, and the outputs that the reference computes for it."""

from dataclasses import replace
from math import ceil, floor, log2, prod
from typing import Any

import numpy as np

from anybit.compiler.backends.c.literals import format_float
from anybit.compiler.backends.c.ports import name_port
from anybit.compiler.backends.c.source import CSource
from anybit.compiler.backends.c.templates import render
from anybit.compiler.backends.c.types import store_tensor
from anybit.compiler.backends.integer_thresholds import order_thresholds, unorder_floats
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import run
from anybit.onnx.graph.constants import Array

_SEED = 1
_STEPS = 1024
_WIDTH = 98


def emit_self_test(source: CSource, *, codes: bool) -> str:
    """Return a program that prints "ok" and returns 0, or the first difference and 1.

    The input is computed from a fixed seed, exactly, so that it takes no space. Floats are compared
    by their bits.
    """
    program = source.program
    random = _Random()
    inputs, arrays = [], []
    for number, port in enumerate(program.inputs):
        generator = _make_codes if codes else _make_floats
        values, expression, ctype = generator(source, number, random)
        arrays.append(values.reshape(1, *_list_sizes(port, codes=codes)))
        inputs.append({"number": number, "size": values.size, "value": expression, "ctype": ctype})
    outputs = []
    for number, y in enumerate(run(_read_codes(source) if codes else program, arrays)):
        expected: Array = y.ravel().view(np.uint32)
        ctype = "float"
        if codes:
            stored = store_tensor(program.tensors[_list_roots(source, "out")[number]])
            ctype = stored.ctype.value
            expected = stored.lowest + stored.step * y.ravel().astype(np.int64)
        outputs.append(
            {
                "number": number,
                "size": expected.size,
                "ctype": ctype,
                "stored": ctype if codes else "uint32_t",
                "numbers": _wrap_lines(
                    f"{number}u" if not codes else str(number) for number in expected
                ),
            }
        )
    return render(
        "self_test.c.j2",
        name=source.name,
        NAME=source.name.upper(),
        inputs=inputs,
        outputs=outputs,
        codes=codes,
        seed=_SEED,
    )


class _Random:
    """The generator of the C program: 16 bits a number."""

    def __init__(self) -> None:
        self._state = _SEED

    def draw(self, count: int, below: int) -> Array:
        """Return numbers from 0 to below - 1."""
        numbers = np.zeros(count, np.int64)
        for place in range(count):
            self._state = (self._state * 1664525 + 1013904223) % 2**32
            numbers[place] = (self._state >> 16) % below
        return numbers


def _make_floats(source: CSource, number: int, random: _Random) -> tuple[Array, str, str]:
    """Return an input in the range of its quantizer, its expression in C and its type."""
    program = source.program
    ends = [-1.0, 1.0]
    for at in program.instructions:
        if isinstance(at, p.Quantize) and at.source == number:
            keys, _ = order_thresholds(at, program.tensors[at.target].levels)
            thresholds = unorder_floats(np.clip(keys, -(2**31) + 1, 2**31 - 1).ravel())
            thresholds = thresholds[np.isfinite(thresholds) & (np.abs(thresholds) < 2.0**60)]
            if thresholds.size:
                ends = [float(thresholds.min()), float(thresholds.max())]
    margin = max((ends[1] - ends[0]) / 16, abs(ends[0]) / 16, 2.0**-20)
    exponent = ceil(log2((ends[1] - ends[0] + 2 * margin) / _STEPS))
    first = floor((ends[0] - margin) / 2.0**exponent)
    count = ceil((ends[1] + margin) / 2.0**exponent) - first + 1
    drawn = random.draw(prod(_list_sizes(program.inputs[number], codes=False)), count) + first
    step = np.float32(2.0**exponent)
    sign = f"+ {first}" if first >= 0 else f"- {-first}"
    expression = f"(float)((int32_t)(draw() % {count}u) {sign}) * {format_float(float(step))}"
    return drawn.astype(np.float32) * step, expression, "float"


def _make_codes(source: CSource, number: int, random: _Random) -> tuple[Array, str, str]:
    """Return the indices of random codes, the expression of their elements and their type."""
    tensor = source.program.tensors[_list_roots(source, "in")[number]]
    stored = store_tensor(tensor)
    drawn = random.draw(stored.elements, stored.levels)
    factor = f"{stored.step} * " if stored.step != 1 else ""
    sign = f"+ {stored.lowest}" if stored.lowest >= 0 else f"- {-stored.lowest}"
    ctype = stored.ctype.value
    expression = f"({ctype})({factor}(int32_t)(draw() % {stored.levels}u) {sign})"
    return drawn.astype(np.float32), expression, ctype


def _read_codes(source: CSource) -> p.Program:
    """Return the program with indices of codes as its inputs and outputs."""
    program = source.program
    inputs, outputs = _list_roots(source, "in"), _list_roots(source, "out")
    instructions: list[p.Instruction] = []
    for at in program.instructions:
        if isinstance(at, p.Quantize):
            steps = np.arange(program.tensors[at.target].levels - 1, dtype=np.float32)
            half = np.float32(0.5)
            at = p.Quantize(at.source, at.target, np.ones(1, np.int32), steps + half, -1)
        elif isinstance(at, p.Dequantize):
            root = outputs[at.target]
            levels = np.arange(program.tensors[root].levels, dtype=np.float32)
            at = p.Dequantize(root, at.target, levels)
        instructions.append(at)
    return replace(
        program,
        inputs=tuple(_make_code_port(program.tensors[root]) for root in inputs),
        outputs=tuple(_make_code_port(program.tensors[root]) for root in outputs),
        instructions=tuple(instructions),
    )


def _make_code_port(tensor: p.Tensor) -> p.Port:
    count = tensor.height * tensor.width * tensor.channels
    sizes = np.array([count], np.int32)
    return p.Port(sizes, tensor.height, tensor.width, tensor.channels, 0)


def _list_roots(source: CSource, parameter: str) -> list[int]:
    """Return the tensors of all inputs ("in") or outputs ("out") that are codes."""
    ports = source.program.inputs if parameter == "in" else source.program.outputs
    field = "x" if parameter == "in" else "y"
    return [source.outside[name_port(parameter, field, i, len(ports))] for i in range(len(ports))]


def _list_sizes(port: p.Port, *, codes: bool) -> tuple[int, ...]:
    if codes:
        return (port.height * port.width * port.channels,)
    return tuple(int(size) for size in port.sizes)


def _wrap_lines(numbers: Any) -> list[str]:
    lines = [""]
    for number in numbers:
        if len(lines[-1]) + len(number) + 2 > _WIDTH - 4:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{number},"
    return lines
