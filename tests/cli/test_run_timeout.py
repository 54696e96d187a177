# SPDX-License-Identifier: Apache-2.0
"""`anybit run --timeout` stops a model that does not end."""

from pathlib import Path

import onnx
import onnx.parser
import pytest
from shell import Shell

ENDLESS = """<ir_version: 8, opset_import: ["": 17]>
g (float[1] x) => (float[1] y) <int64 most = {9223372036854775807}, bool go = {1}> {
  y = Loop(most, go, x) <body = step (int64 i, bool c, float[1] a) => (bool d, float[1] b) {
    d = Identity(c)
    b = Neg(a)
  }>
}"""


def test_endless_loop_is_stopped(shell: Shell) -> None:
    onnx.save(onnx.parser.parse_model(ENDLESS), "endless.onnx")
    line = shell.fails("run", "endless.onnx", "--timeout", "0.2", "--output", "y.npz")
    assert line == (
        "the run was stopped after 0.2 seconds (--timeout); allow more time, or look for a Loop "
        "that does not end"
    )
    assert not Path("y.npz").exists()


@pytest.mark.parametrize("engine", ["onnxruntime", "compiled"])
def test_model_that_ends_in_time_is_run(shell: Shell, engine: str) -> None:
    status, out, err = shell("run", "model.onnx", "--engine", engine, "--timeout", "1000")
    assert (status, err) == (0, "")
    assert "1 run" in out


def test_error_of_the_model_is_not_called_a_timeout(shell: Shell) -> None:
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[m] y) '
            "<int64[1] shape = {7}> { y = Reshape(x, shape) }"
        ),
        "broken.onnx",
    )
    line = shell.fails("run", "broken.onnx", "--timeout", "1000")
    assert "--timeout" not in line


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_timeout_is_a_positive_number(shell: Shell, seconds: str) -> None:
    line = shell.fails("run", "model.onnx", "--timeout", seconds)
    assert line == f"--timeout must be a number of seconds > 0, got {float(seconds)}"
