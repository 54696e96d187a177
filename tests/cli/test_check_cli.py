# SPDX-License-Identifier: Apache-2.0
"""Tests of `anybit check`, with hostile files, and of the codes on its page."""

import ast
import contextlib
import json
import re
from pathlib import Path

import onnx
import pytest
from bad_models import BAD_MODELS
from faulty_models import product, quantizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import ROOT
from shell import Shell

from anybit.errors import ModelError
from anybit.onnx.checks.checking import TARGETS, check


def test_check_prints_findings(shell: Shell) -> None:
    onnx.save(quantizer(), "good.onnx")
    assert shell("check", "good.onnx") == (0, "no problems found\n", "")
    onnx.save(quantizer(bitwidth=1), "warned.onnx")
    code, out, err = shell("check", "warned.onnx")
    assert (code, err) == (0, "")
    first, last = out.splitlines()
    assert first.startswith("warning: the_IntQuant (IntQuant): one signed bit gives")
    assert first.endswith("[one-signed-bit]")
    assert last == "0 errors, 1 warning"
    assert shell("check", "warned.onnx", "--strict")[0] == 1
    onnx.save(quantizer(scale=0), "bad.onnx")
    code, out, err = shell("check", "bad.onnx")
    assert (code, err) == (1, "")
    assert out.startswith("error: the_IntQuant (IntQuant): scale must be > 0, got 0")


def test_check_prints_json(shell: Shell) -> None:
    onnx.save(quantizer(scale=0), "bad.onnx")
    code, out, err = shell("check", "bad.onnx", "--target", "finn", "--json")
    assert (code, err) == (1, "")
    findings = json.loads(out)
    assert set(findings[0]) == {
        *("severity", "node", "operator", "problem", "remedy", "code", "nodes")
    }
    assert {"scale-not-positive", "name"} <= {finding["code"] for finding in findings}
    onnx.save(quantizer(), "good.onnx")
    assert json.loads(shell("check", "good.onnx", "--json")[1]) == []


def test_check_reports_unreadable_files(shell: Shell) -> None:
    Path("no.onnx").write_bytes(b"not a model")
    assert "not an ONNX model" in shell.fails("check", "no.onnx")
    assert "no such file" in shell.fails("check", "missing.onnx")
    assert "got 'tpu'" in shell.fails("check", "model.onnx", "--target", "tpu")


def test_check_escapes_names(shell: Shell) -> None:
    onnx.save(quantizer(scale=0, name="[red]\x1b[2J\nname" + "x" * 200), "bad.onnx")
    code, out, _ = shell("check", "bad.onnx")
    assert code == 1
    assert "\x1b" not in out
    assert f"error: [red]\\x1b[2J name{'x' * 200} (IntQuant): scale" in out.splitlines()[0]


@pytest.mark.parametrize(
    "proto", [bad_model[0] for bad_model in BAD_MODELS.values()], ids=BAD_MODELS.keys()
)
def test_check_reports_bad_models(proto: onnx.ModelProto) -> None:
    for target in (None, *TARGETS):
        with contextlib.suppress(ModelError):
            assert any(finding.severity == "error" for finding in check(proto, target)), target


GOOD = product(bias=1.0).SerializeToString()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=4), st.sampled_from(list(TARGETS))
)
def test_check_reports_damaged_files(at: int, damage: bytes, target: str) -> None:
    """Overwrite bytes anywhere: check returns findings or raises ModelError."""
    with contextlib.suppress(ModelError):
        check(GOOD[:at] + damage + GOOD[at + len(damage) :], target)


def test_check_page_lists_every_code() -> None:
    listed = re.findall(r"`([a-z-]+)`", (ROOT / "docs" / "check.md").read_text(encoding="utf-8"))
    package = ROOT / "src" / "anybit"
    used = {
        constant.value
        for path in (package / "onnx" / "checks").rglob("*.py")
        for constant in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(constant, ast.Constant)
        and isinstance(constant.value, str)
        and re.fullmatch(r"[a-z]+(-[a-z]+)+", constant.value)
    }
    used |= {
        call.args[0].value
        for path in (package / "ops").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", "") == "Remark"
        and isinstance(call.args[0], ast.Constant)
    }
    assert len(used) > 30
    assert used <= set(listed), used - set(listed)
