# SPDX-License-Identifier: Apache-2.0
"""Exit statuses of all commands: 0 for success, 1 for a negative answer, 2 for bad input."""

from typing import Any

import numpy as np
import onnx
import pytest
from pass_checks import random
from shell import Shell
from small_models import model, node

from anybit.cli._table import COMMANDS

DATA = ["--data", "data.npy"]
RUN = ["run", "model.onnx", "--input", "x.npy"]


@pytest.fixture
def files(shell: Shell) -> Shell:
    for name, seed in (("net", 1), ("other", 2)):
        nodes = [node("MatMul", "x w", domain="")]
        onnx.save(
            model(nodes, {"w": random(4, 6, seed=seed)}, inputs={"x": ["n", 4]}), f"{name}.onnx"
        )
    np.save("data.npy", random(40, 4))
    np.savez("wrong.npz", y=np.zeros((1, 4), np.float32))
    return shell


QUANTIZE = ["quantize", "net.onnx", "-o", "q.onnx", *DATA, "--effort", "fast"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("arguments", [[], ["none.onnx"], ["--no-such-option"]])
def test_exit_status_of_bad_input_and_usage_is_2(
    files: Shell, command: str, arguments: list[str]
) -> None:
    code, _, err = files(command, *arguments)
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([*RUN, "--expect", "wrong.npz"], 1),
        (RUN, 0),
        (["diff", "net.onnx", "other.onnx", "--input", "data.npy"], 1),
        (["diff", "net.onnx", "net.onnx", "--input", "data.npy"], 0),
        (["check", "net.onnx", "--target", "finn"], 1),
        (["check", "net.onnx"], 0),
        ([*QUANTIZE, "--fail-below", "200dB"], 1),
        ([*QUANTIZE, "--fail-below", "200dB", "--json"], 1),
        ([*QUANTIZE, "--weights", "bipolar", "--activations", "bipolar"], 1),
        (QUANTIZE, 0),
        ([*QUANTIZE, "--weights", "bipolar", "--fail-below", "none"], 0),
        ([*QUANTIZE, "--fail-below", "good"], 2),
        ([*QUANTIZE, "--budget", "1B"], 2),
        (["evaluate", "net.onnx", "other.onnx", *DATA], 0),
        (["evaluate", "net.onnx", *DATA], 2),
        (["--help"], 0),
        (["--version"], 0),
    ],
)
def test_exit_status_of_a_negative_answer_is_1(
    files: Shell, arguments: list[Any], code: int
) -> None:
    assert files(*arguments)[0] == code


def test_help_documents_exit_status(files: Shell) -> None:
    _, out, _ = files("--help")
    assert "Exit status: 0 for success; 1 if" in " ".join(out.split())
    _, out, _ = files("quantize", "--help")
    words = " ".join(out.replace("│", " ").split())
    assert "Exit status: 0 if the quality check passes or there are no data, 1 if it fails" in words
    assert "--fail-below" in words
