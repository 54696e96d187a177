# SPDX-License-Identifier: Apache-2.0
"""Quantized random networks keep their values in plain ONNX Runtime, at every level."""

from pathlib import Path

import pytest
from places import ROOT
from scripts import load_module

PROGRAM = load_module(ROOT / "tests" / "programs" / "qdq_random.py")


@pytest.mark.parametrize(
    ("first", "count"), [(0, 20), pytest.param(1000, 400, marks=pytest.mark.slow)]
)
def test_qdq_random_networks_keep_values_in_plain_onnxruntime(
    tmp_path: Path, first: int, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(first, first + count):
        PROGRAM.make(tmp_path, seed)
    assert PROGRAM.judge(tmp_path) == 0, capsys.readouterr().out
    assert f"{count} networks" in capsys.readouterr().out


def test_qdq_random_networks_differ_without_fences(tmp_path: Path) -> None:
    """Allow deviations on every CPU: MatMulNBits, or a second rounding."""
    for seed in range(12):
        PROGRAM.make(tmp_path, seed, fenced=False)
    assert PROGRAM.judge(tmp_path) == 1
