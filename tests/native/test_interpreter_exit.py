# SPDX-License-Identifier: Apache-2.0
"""Tests of the interpreter's exit while daemon threads run operators."""

import os
import subprocess
import sys

import pytest

SETUP = """
import threading, time
import numpy as np, anybit
from anybit._native import _core
anybit.set_num_threads({threads})
x = np.linspace(-2, 2, {size}, dtype={dtype!r})
calls = [0]
def work():
    while True:
        {call}
        calls[0] += 1
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
while calls[0] < {calls}:
    time.sleep(0.001)
"""
FORWARD = "anybit.int_quant(x, 0.1, 0, 4)"
BOTH = FORWARD + "; _core.int_quant_backward(x, x, 0.1, 0, 4, requested=('x', 'scale'))"
# Calls that run Python code inside: conversion of lists, other dtypes, names, errors.
CONVERTED = (
    "anybit.int_quant(list(x[:9]), np.float16(0.1), [0], 4, rounding_mode=anybit.RoundingMode.UP)"
)
FAILING = """
        try:
            anybit.int_quant(x, 0.1, 0, 2.5)
        except ValueError:
            pass
"""


@pytest.mark.sample(4)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("size", "dtype", "call", "calls"),
    [
        pytest.param(16, "f4", FORWARD, 500, id="small"),
        pytest.param(16, "f2", FORWARD, 500, id="small-float16"),
        pytest.param(16, "f4", BOTH, 500, id="small-backward"),
        pytest.param(16, "f4", CONVERTED, 500, id="converted"),
        pytest.param(16, "f4", FAILING, 500, id="failing"),
        pytest.param(5000, "f4", BOTH, 100, id="without-gil"),
        pytest.param(600_000, "f4", BOTH, 5, id="large"),
    ],
)
def test_interpreter_exits_cleanly_with_daemon_threads_in_operators(
    size: int, dtype: str, call: str, calls: int, threads: int
) -> None:
    code = SETUP.format(threads=threads, size=size, dtype=dtype, call=call, calls=calls)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    # With a race, one run in four passes by chance.
    for _ in range(6):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment,
        )
        assert (done.returncode, done.stderr) == (0, "")
