# SPDX-License-Identifier: Apache-2.0
"""`anybit inspect`, and the reports of `anybit quantize`."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from places import MODELS, ROOT, needs_models
from shell import Shell
from small_models import model, node, quantized_weight

import anybit

FLOATS, DATA = str(ROOT / "examples/digits_float.onnx"), str(ROOT / "examples/digits.npz")
MODEL = str(ROOT / "examples/digits_w4a4.onnx")


def shown_at(shell: Shell, width: int, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """Return the output on a terminal of that width."""
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


def test_inspect_prints_the_contents(shell: Shell, file: str) -> None:
    code, out, err = shell("inspect", file)
    assert (code, err) == (0, "")
    facts = {
        line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line.strip()
    }
    assert facts["operators"] == "1 Quant, 1 MatMul"
    assert facts["parameters"].startswith("12 in 1 tensor, constants ")
    assert facts["inputs"] == "x: float32[1, 4]"
    assert facts["outputs"] == "y: float32[...]"
    assert facts["work"].startswith("1 layer, 12 MACs, 1.15 k bit operations, weights of 3 bits")
    row = next(line.split() for line in out.splitlines() if line.startswith(" 1 IntQuant"))
    assert " ".join(row) == "1 IntQuant weight* 3 -4..3 0.25 tensor 0 ROUND"
    assert "guarantee" not in out


def test_inspect_prints_the_layers(shell: Shell, file: str) -> None:
    code, out, err = shell("inspect", file, "--layers", "--input-range", "x=uint8")
    assert (code, err) == (0, "")
    assert re.search(r"the_MatMul +MatMul +\[1, 3\] +\[4, 3\] +12 +288 +3 x 8", out)
    assert "1 of 1 layer exact in float32, 100 % of MACs." in out


@needs_models
@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("name", ["cnv_1w1a", "mobilenet_w4a4", "qkeras_jettagging"])
def test_inspect_fits_terminals(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, width: int, name: str
) -> None:
    path, data = str(MODELS / f"{name}.onnx"), str(MODELS / f"{name}.npz")
    out = shown_at(shell, width, monkeypatch, "inspect", path, "--data", data)
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    for heading in ("quantizers", "bits", "acc. bits", "guarantee", "sums seen"):
        assert heading in out
    assert width > 120 or "Columns omitted to fit the terminal" in out


def test_json_is_printed_and_written(shell: Shell, file: str) -> None:
    np.savez("x.npz", x=np.ones((1, 4), np.float32))
    np.savez("y.npz", x=np.zeros((2, 4), np.float32))
    arguments = ["--json", "--data", "x.npz", "--data", "y.npz"]
    code, out, _ = shell("inspect", file, *arguments, "-o", "r.json")
    assert code == 0
    record, written = json.loads(out), json.loads(Path("r.json").read_text())
    for version in (record, written):
        version["data"].pop("seconds")
    assert record == written
    assert (record["schema"], record["totals"]["macs"]) == (1, 12)
    assert (record["data"]["samples"], record["data"]["observed"]) == (3, 3)
    (layer,) = record["layers"]
    assert layer["observed"]["sums"][0] <= 0 <= layer["observed"]["sums"][1]
    _, out, _ = shell("inspect", file, "--json")
    assert json.loads(out)["layers"] == []


def test_page_is_written(shell: Shell) -> None:
    reports = "-o", "page.html", "--report", "page.json"
    code, out, err = shell("inspect", MODEL, "--data", DATA, *reports)
    assert (code, err) == (0, "")
    assert out.endswith("page.html written\npage.json written\n")
    assert len(json.loads(Path("page.json").read_text())["layers"]) == 3
    text = Path("page.html").read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "Proven and observed" in text
    assert "<title>0: 73.9 %</title>" in text
    anybit.inspect(MODEL, DATA).to_html("other.html")
    assert len(Path("other.html").read_text()) == pytest.approx(len(text), abs=200)
    assert not list(Path().glob("*.part"))


def test_unknown_operators_are_listed(shell: Shell) -> None:
    onnx.save(model([node("XnorPopcountMatMul", "x")]), "unknown.onnx")
    code, out, _ = shell("inspect", "unknown.onnx")
    assert code == 0
    assert "qonnx.custom_op.general::XnorPopcountMatMul: this model cannot be run" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input-range", "x=int99"], "a range must be of 1 to 24 bits, got 'int99'"),
        (["--input-range", "y=int8"], "--input-range 'y': the model has no such input; inputs: x"),
        (["--input-range", "x=fast"], "a range must be such as uint8"),
        (["-o", "r.txt"], "not .txt"),
        (["-o", "no/r.html"], "folder that exists"),
        (["--data", "none.npz"], "no such file"),
    ],
)
def test_bad_input_is_refused(shell: Shell, file: str, arguments: list[str], message: str) -> None:
    code, out, err = shell("inspect", file, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_quantize_reports_its_command(shell: Shell) -> None:
    command_ = ["quantize", FLOATS, "-o", "q.onnx", "--data", DATA, "--layer", "y=int4"]
    reports = ["--sensitivity", "--report", "q.html", "--report", "q.json"]
    code, out, err = shell(*command_, *reports)
    assert (code, err) == (0, "")
    record = json.loads(Path("q.json").read_text())
    assert len(record["advice"]) == out.count("\n* ") >= 1
    assert record["quantization"]["verdict"]["passed"]
    assert record["data"]["samples"] == 257
    assert record["quantization"]["verdict"]["samples"] == 65
    assert Path("q.html").read_text().count("<details ") == 3
    command = shlex.split(record["command"])
    assert command[0] == "anybit"
    code, _, err = shell(*command[1:], "--report", "again.json")
    assert (code, err) == (0, "")
    again = json.loads(Path("again.json").read_text())
    for version in (record, again):
        version["data"].pop("seconds")
    assert again == record
    assert "not .pdf" in shell.fails(*command_, "--report", "q.pdf")
