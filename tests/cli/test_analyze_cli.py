# SPDX-License-Identifier: Apache-2.0
"""`anybit analyze`."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from places import MODELS, needs_models
from shell import Shell
from small_models import quantized_weight


def shown_at(shell: Shell, width: int, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """The output on a terminal of that width."""
    for name, value in {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    code, out, _ = shell(*arguments)
    assert code == 0
    return re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", out)


@pytest.fixture
def file(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(str(tmp_path))
    onnx.save(quantized_weight()[0], "m.onnx")
    return "m.onnx"


def test_the_table(shell: Shell, file: str) -> None:
    code, out, err = shell("analyze", file, "--input-range", "x=uint8")
    assert (code, err) == (0, "")
    assert re.search(r"the_MatMul +MatMul +\[1, 3\] +\[4, 3\] +12 +288 +3 x 8", out)
    assert "1 of 1 layer exact in float32, 100 % of MACs." in out


@needs_models
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_terminals(shell: Shell, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    path = str(MODELS / "mobilenet_w4a4.onnx")
    data = str(MODELS / "mobilenet_w4a4.npz")
    out = shown_at(shell, width, monkeypatch, "analyze", path, "--input", data)
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    for heading in ("MACs", "acc. bits", "class", "sums seen"):
        assert heading in out
    assert ("no room here for" in out) == (width < 200)
    assert "mobilenet" not in out


def test_json_and_reports(shell: Shell, file: str) -> None:
    np.savez("x.npz", x=np.ones((1, 4), np.float32))
    arguments = ["--json", "--input", "x.npz", "--report", "r.json", "--report", "r.html"]
    code, out, _ = shell("analyze", file, *arguments)
    assert code == 0
    found = json.loads(out)
    assert found == json.loads(Path("r.json").read_text())
    assert found["total"]["macs"] == 12
    (layer,) = found["layers"]
    assert layer["seen"]["sums"] == [-1.0, 1.0] or len(layer["seen"]["sums"]) == 2
    assert Path("r.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input-range", "x=int99"], "a range must be of 1 to 24 bits, got 'int99'"),
        (["--input-range", "y=int8"], "there is no input 'y' to give a range; the inputs are x"),
        (["--input-range", "x=fast"], "a range must be such as uint8"),
        (["--report", "r.txt"], "not .txt"),
        (["--input", "none.npz"], "no such file"),
    ],
)
def test_errors(shell: Shell, file: str, arguments: list[str], message: str) -> None:
    code, out, err = shell("analyze", file, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
