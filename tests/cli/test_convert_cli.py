# SPDX-License-Identifier: Apache-2.0
"""`anybit convert`."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from forms import FORMS, Form
from shell import Shell, X, Y
from small_models import quantized_input

import anybit


@pytest.mark.parametrize("form", FORMS)
def test_convert_writes_every_form(shell: Shell, form: Form) -> None:
    code, out, err = shell("convert", "model.onnx", "--to", form, "-o", "out.onnx")
    assert (code, err) == (0, "")
    assert "out.onnx written" in out
    np.testing.assert_array_equal(anybit.load("out.onnx").run(X)["y"], Y)


def test_convert_writes_a_report(shell: Shell) -> None:
    onnx.save(quantized_input(zeropt=3), "model.onnx")
    arguments = ["convert", "model.onnx", "--to", "qdq", "-o", "out.onnx", "--report", "steps.json"]
    assert shell(*arguments)[0] == 0
    report = json.loads(Path("steps.json").read_text())
    assert (report["form"], report["exact"]) == ("qdq", True)
    assert report["steps"] == [
        {
            "node": "the_Quant",
            "operator": "IntQuant",
            "action": "standard operators",
            "reason": "zero-point 3 is added before rounding, by QuantizeLinear after it",
            "exact": True,
        }
    ]


def test_convert_lists_approximations(shell: Shell) -> None:
    onnx.save(quantized_input(zeropt=3), "model.onnx")
    arguments = ["convert", "model.onnx", "--to", "qdq", "-o", "out.onnx", "--allow-approximate"]
    code, out, _ = shell(*arguments, "--report", "steps.json")
    assert code == 0
    assert "approximate: the_Quant: differs by one step at ties" in out
    report = json.loads(Path("steps.json").read_text())
    assert (report["exact"], report["steps"][0]["exact"]) == (False, False)


def test_convert_respects_opset_limit(shell: Shell) -> None:
    arguments = ["convert", "model.onnx", "--to", "qdq", "-o", "out.onnx"]
    for limit, opset in (("21", 21), ("20", 13)):
        assert shell(*arguments, "--opset-limit", limit)[0] == 0
        assert onnx.load("out.onnx").opset_import[0].version == opset


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.onnx", "--to", "qdq", "-o", "out.onnx"], "absent.onnx"),
        (["x.npy", "--to", "qdq", "-o", "out.onnx"], "x.npy"),
        (["model.onnx", "--to", "int8", "-o", "out.onnx"], "int8"),
        (["model.onnx", "--to", "qdq", "-o", "absent/out.onnx"], "absent"),
        (["model.onnx", "--to", "qdq", "-o", "out.onnx", "--report", "absent/r.json"], "absent"),
    ],
)
def test_convert_rejects_invalid_options(shell: Shell, arguments: list[str], message: str) -> None:
    assert message in shell.fails("convert", *arguments)
    assert not Path("out.onnx").exists()


def test_for_option_selects_form_and_opset(shell: Shell) -> None:
    convert = ["convert", "model.onnx", "-o", "out.onnx"]
    code, out, err = shell(*convert, "--for", "onnxruntime=1.17", "--report", "steps.json")
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("note: ")]
    assert "needs ONNX Runtime 1.17 or newer; default options keep its values" in line
    report = json.loads(Path("steps.json").read_text())
    assert (report["form"], len(report["remarks"])) == ("qdq", 1)
    assert onnx.load("out.onnx").opset_import[0].version <= 20
    assert shell(*convert, "--for", "web")[0] == 0
    code, _, err = shell(*convert, "--for", "tpu")
    assert code != 0
    assert "is unknown: use onnxruntime" in err
    forms = "qonnx|compact|standard|portable|qdq|qcdq"
    assert f"the form of the result with --to {forms}" in shell.fails(*convert)


def test_convert_reports_a_model_without_quantizers(shell: Shell) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> graph (float[n] x) => (float[n] y) {y = Abs(x)}'
    onnx.save(onnx.parser.parse_model(text), "model.onnx")
    code, out, _ = shell("convert", "model.onnx", "--to", "qdq", "-o", "out.onnx")
    assert code == 0
    assert "note: the model has no quantizers, and convert adds none" in out
    assert "no quantizer in it had to be changed" not in out
