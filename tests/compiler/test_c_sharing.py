# SPDX-License-Identifier: Apache-2.0
"""Functions of C that layers of equal form share: outputs of the reference, to the byte."""

import re
from pathlib import Path

import numpy as np
import pytest
from c_batches import make_case, run_batch
from c_targets import TARGETS, Call, run_c
from programs import inputs_for

from anybit.compiler.backends.c.parameters import (
    Parameter,
    fill_arguments,
    find_arguments,
    hide_arguments,
)
from anybit.compiler.backends.c.source import emit_c
from anybit.compiler.program import program as p
from anybit.compiler.program import reference

WARNINGS = ("-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror")
COMPILERS = (
    ("gcc", "-std=c99", "-O0", *WARNINGS, "-fsanitize=address,undefined"),
    ("gcc", "-std=c99", "-Os", *WARNINGS),
    ("g++", "-x", "c++", "-std=c++11", "-O2", "-pedantic", "-Wall", "-Wextra", "-Werror"),
    ("clang", "-std=c99", "-O2", *WARNINGS),
)
CODINGS = ((0, 256), (-128, 256), (-8, 16), (0, 2))


def make_blocks(rng: np.random.Generator, lowest: int, levels: int) -> p.Program:
    """Return two blocks of a window, a depthwise and a pointwise product and a maximum.

    All sizes of the second block differ from those of the first.
    """
    pads = (1, 1, 1, 1)
    tensors = [p.Tensor(6, 5, 3, lowest, 1, levels)]
    steps: list[p.Instruction] = [
        p.Quantize(0, 0, np.int32([1]), np.sort(rng.normal(0, 1, levels - 1)).astype("f4"), 0)
    ]

    def add_target(window: p.Window, channels: int) -> int:
        x = tensors[-1]
        height, width = (
            (size + first + last - kernel) // window.stride_height + 1
            for size, first, last, kernel in (
                (x.height, window.pad_top, window.pad_bottom, window.kernel_height),
                (x.width, window.pad_left, window.pad_right, window.kernel_width),
            )
        )
        tensors.append(p.Tensor(height, width, channels, lowest, 1, levels))
        return len(tensors) - 1

    def add_product(window: p.Window, channels: int, groups: int = 1) -> None:
        source = len(tensors) - 1
        target = add_target(window, channels)
        inner = tensors[source].channels // groups
        size = window.kernel_height * window.kernel_width * inner
        weights = rng.integers(0, 256, size * channels).astype(np.uint8)
        reach = size * 128 * max(-lowest, lowest + levels)
        gains = rng.normal(0, 6 * levels / reach, channels).astype(np.float32)
        epilogue = p.Affine(gains, rng.normal(0, 1, channels).astype(np.float32), levels // 2)
        values = np.arange(-128, 128, dtype=np.int32)
        steps.append(p.Product(source, target, window, groups, 8, weights, values, epilogue))

    for stride, channels in ((1, 8), (2, 16)):
        add_product(p.Window(3, 3, stride, stride, 1, 1, *pads), channels)
        add_product(p.Window(3, 3, 1, 1, 1, 1, *pads), channels, groups=channels)
        add_product(p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0), channels + 4)
        window = p.Window(2, 2, 1, 1, 1, 1, 1, 1, 0, 0)
        source = len(tensors) - 1
        steps.append(p.MaxPool(source, add_target(window, channels + 4), window))
    y = tensors[-1]
    steps.append(p.Dequantize(len(tensors) - 1, 0, rng.normal(0, 1, levels).astype(np.float32)))
    ports = [
        p.Port(np.int32([t.height * t.width * t.channels]), t.height, t.width, t.channels, 0)
        for t in (tensors[0], y)
    ]
    return p.Program((ports[0],), (ports[1],), tuple(tensors), tuple(steps))


@pytest.mark.parametrize("command", COMPILERS, ids=lambda command: f"{command[0]} {command[2]}")
def test_shared_functions_give_same_bytes(command: tuple[str, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    programs = [make_blocks(rng, *coding) for coding in CODINGS]
    cases = [
        make_case(program, f"n{number}", inputs_for(program, 2, number))
        for number, program in enumerate(programs)
    ]
    assert run_batch(cases, command, tmp_path) == []


@pytest.mark.parametrize("target", ["cortex_m4", "riscv32", "atmega"])
def test_shared_functions_give_same_bytes_on_devices(target: str) -> None:
    if reason := TARGETS[target].missing:
        pytest.skip(reason)
    rng = np.random.default_rng(1)
    program = make_blocks(rng, 0, 256)
    x = rng.normal(0, 1, (2, program.inputs[0].sizes[0])).astype(np.float32)
    (expected,) = reference.run(program, [x])
    call = Call(
        "net.h", "net_run", "float", x.shape[1], "float", expected.shape[1], "NET_ARENA_SIZE"
    )
    files = emit_c(program, "net").files
    result = run_c(files, call, x.tobytes(), TARGETS[target], ("-Os",))
    assert result.outputs == expected.tobytes()
    assert result.ram == 0


def test_layout_decides_whether_functions_are_shared() -> None:
    program = make_blocks(np.random.default_rng(2), 0, 256)
    source, fast = (emit_c(program, "net", layout=layout) for layout in ("size", "speed"))
    shared = re.findall(r"^static void (\w+)\(const struct", source.files["net.c"], re.MULTILINE)
    assert {"convolve", "convolve_channels", "find_maxima", "multiply"} <= set(shared)
    assert "READ_LAYER" not in fast.files["net.c"]
    for layer in source.layers:
        assert layer.function in source.files["net.c"]


def test_equal_layers_share_a_function_without_a_struct(tmp_path: Path) -> None:
    tensors = (p.Tensor(3, 4, 2, 0, 1, 4),) * 3
    window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    port = p.Port(np.int32([24]), 3, 4, 2, 0)
    steps = (
        p.Quantize(0, 0, np.int32([1]), np.float32([-1, 0, 1]), 0),
        p.MaxPool(0, 1, window),
        p.MaxPool(1, 2, window),
        p.Dequantize(2, 0, np.float32([-2, -1, 1, 2])),
    )
    program = p.Program((port,), (port,), tensors, steps)
    case = make_case(program, "net", inputs_for(program, 2, 0))
    text = case.source.files["net.c"]
    assert text.count("static void find_maxima") == 1
    assert text.count(" layer1_maxpool: ") == text.count(" layer2_maxpool: ") == 1
    assert run_batch([case], COMPILERS[0], tmp_path) == []


def test_parameters_print_as_fields_or_values() -> None:
    width, stride = Parameter(7, "width"), Parameter(2, "stride")
    text = f"{(width - 1) * stride} + {width * 1} + {3 - 0}"
    assert int((width - 1) * stride) == 12
    assert fill_arguments(text) == "12 + 7 + 3"
    assert fill_arguments(text, ["stride"]) == "((7 - 1) * layer->stride) + 7 + 3"
    assert {name: value.text for name, value in find_arguments(text).items()} == {
        "width": "7",
        "stride": "2",
    }
    other = f"{(Parameter(5, 'width') - 1) * Parameter(3, 'stride')} + {Parameter(5, 'width')} + 3"
    assert hide_arguments(text) == hide_arguments(other)
    assert hide_arguments(text) != hide_arguments(other.replace("3", "4"))
