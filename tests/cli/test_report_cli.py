# SPDX-License-Identifier: Apache-2.0
"""`anybit report` and `anybit quantize --report`."""

import json
import shlex
from pathlib import Path

from places import ROOT
from shell import Shell

FLOATS, DATA = str(ROOT / "examples/digits_float.onnx"), str(ROOT / "examples/digits.npz")
MODEL = str(ROOT / "examples/digits_w4a4.onnx")


def test_report_of_a_file(shell: Shell) -> None:
    code, out, err = shell("report", MODEL, "--data", DATA, "-o", "page.html")
    assert (code, err) == (0, "")
    for words in ("bits of weights, mean: 32 -> 4", "sum_1", "3 of 3 layers multiply few bits"):
        assert words in out
    assert "page.html written" in out
    text = Path("page.html").read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "Activations were seen on" in text
    code, out, _ = shell("report", MODEL, "--json")
    assert code == 0
    found = json.loads(out)
    assert [each["name"] for each in found["layers"]] == ["sum_1", "sum_2", "y"]
    assert found["ran"] is None
    assert not list(Path().glob("*.part"))


def test_report_of_what_was_quantized(shell: Shell) -> None:
    given = [
        "quantize",
        FLOATS,
        "-o",
        "q.onnx",
        "--data",
        DATA,
        "--layer",
        "y=int4",
        "--sensitivity",
    ]
    code, out, err = shell(*given, "--report", "q.html", "--report", "q.json")
    assert (code, err) == (0, "")
    found = json.loads(Path("q.json").read_text())
    assert len(found["findings"]) == out.count("\n* ") >= 1
    assert found["verdict"]["passed"]
    assert (found["ran"]["samples"], found["verdict"]["samples"]) == (257, 65)
    assert Path("q.html").read_text().count("<details>") == 3
    command = shlex.split(found["command"])
    assert command[0] == "anybit"
    code, _, err = shell(*command[1:], "--report", "again.json")
    assert (code, err) == (0, "")
    again = json.loads(Path("again.json").read_text())
    for each in (found, again):
        each["ran"].pop("seconds")
    assert again == found


def test_where_reports_cannot_go(shell: Shell) -> None:
    given = ["quantize", FLOATS, "-o", "q.onnx", "--data", DATA]
    assert "not .pdf" in shell.fails(*given, "--report", "q.pdf")
    assert shell.fails("report", "q.onnx", "-o", "page.json") == (
        "page.json: --output is a page, FILE.html; --json prints JSON"
    )
    assert "folder that exists" in shell.fails(*given, "--report", "no/q.html")
    assert "folder that exists" in shell.fails("report", MODEL, "-o", "no/q.html")
    assert "no such file" in shell.fails("report", "none.onnx")
    assert not Path("q.onnx").exists()
