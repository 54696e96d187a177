# SPDX-License-Identifier: Apache-2.0
"""`anybit evaluate`: the table, JSON, and errors."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from float_models import convolutions, data_for
from shell import Shell

import anybit


@pytest.fixture
def files(shell: Shell) -> Shell:
    onnx.save(convolutions(), "net.onnx")
    rows = np.concatenate([batch["x"] for batch in data_for("convolutions")])
    np.savez("data.npz", x=rows, label=np.zeros(24, np.int64))
    anybit.quantize("net.onnx", activations="float").save("q.onnx")
    return shell


def test_evaluate_prints_a_row_per_model(files: Shell) -> None:
    code, out, err = files(
        "evaluate", "net.onnx", "q.onnx", "--data", "data.npz", "--labels", "label"
    )
    assert (code, err) == (0, "")
    heading, first, second = (
        line for line in out.splitlines()[1:] if ".onnx" in line or "SQNR" in line
    )
    assert heading.split() == ["model", "top1", "SQNR", "agreement", "per", "row", "size"]
    assert first.split()[0] == "net.onnx"
    assert second.split()[0] == "q.onnx"
    assert second.split()[4] == "dB"
    assert "24 samples, 24 rows; the others are compared with the first" in out


def test_evaluate_prints_json(files: Shell) -> None:
    arguments = ["evaluate", "net.onnx", "q.onnx", "--data", "data.npz", "--engine", "compiled"]
    code, out, _ = files(*arguments, "--metric", "mse", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["metric"] == "mse"
    first, second = document["models"]
    assert first["metric"] is None
    assert 0 < second["metric"] == second["mse"]
    assert second["bytes"] == Path("q.onnx").stat().st_size


def test_evaluate_imports_a_metric_from_the_working_directory(
    files: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("metric_beside.py").write_text("def rows(outputs, labels):\n    return len(labels)\n")
    arguments = ["evaluate", "net.onnx", "--data", "data.npz", "--labels", "label"]
    code, out, _ = files(*arguments, "--metric", "metric_beside:rows")
    assert code == 0
    assert "metric_beside:rows" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net.onnx", "none.onnx", "--data", "data.npz"], "none.onnx: no such file"),
        (["net.onnx", "q.onnx", "--data", "none.npz"], "none.npz: no such file"),
        (["net.onnx", "q.onnx"], "--data"),
        (["net.onnx", "--data", "data.npz", "--labels", "y"], "holds x, label, and no labels"),
        (["net.onnx", "--data", "data.npz"], "add a second model, or --labels 'NAME'"),
        (["net.onnx", "--data", "data.npz", "--metric", "there:f"], "there cannot be imported"),
    ],
)
def test_evaluate_rejects_invalid_arguments(
    files: Shell, arguments: list[str], message: str
) -> None:
    assert message in files.fails("evaluate", *arguments)
