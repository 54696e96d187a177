# SPDX-License-Identifier: Apache-2.0
"""C source of programs on emulated microcontrollers: the outputs of the reference, to the byte."""

import numpy as np
import pytest
from c_networks import WIDTHS, make_network, make_windows
from c_targets import TARGETS, Call, run_c

from anybit.compiler.backends.c.source import emit_c
from anybit.compiler.program import program as p
from anybit.compiler.program import reference

ROWS = 2


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize(
    ("target", "optimization"),
    [
        *(("cortex_m4", "-O2"), ("cortex_m0", "-Os")),
        *(("riscv32", "-O3"), ("atmega", "-Os"), ("wasm32", "-O3")),
    ],
)
def test_device_gives_same_bytes(target: str, optimization: str, name: str) -> None:
    program = make_network(WIDTHS[name], np.random.default_rng(len(name) + 1))
    assert_same_bytes(program, target, optimization)


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("target", ["gcc", "cortex_m4"])
def test_depthwise_windows_give_same_bytes(target: str, name: str) -> None:
    program = make_windows(WIDTHS[name], np.random.default_rng(len(name)))
    assert_same_bytes(program, target, "-O2")


def assert_same_bytes(program: p.Program, target: str, optimization: str) -> None:
    if reason := TARGETS[target].missing:
        pytest.skip(reason)
    x = np.random.default_rng(0).normal(0, 1, (ROWS, program.inputs[0].sizes[0]))
    x = x.astype(np.float32)
    source = emit_c(program, "net", layout="speed" if target == "cortex_m0" else "size")
    (expected,) = reference.run(program, [x])
    assert len(np.unique(expected)) > 1
    call = Call(
        "net.h", "net_run", "float", x.shape[1], "float", expected.shape[1], "NET_ARENA_SIZE"
    )
    result = run_c(source.files, call, x.tobytes(), TARGETS[target], (optimization,))
    assert result.outputs == expected.tobytes()
    assert result.ram == 0
