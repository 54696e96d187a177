# SPDX-License-Identifier: Apache-2.0
"""`anybit compile --verify` of codes after functions whose last bits ONNX leaves open."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from shell import Shell
from text_models import parse

from anybit import Model

ARGUMENTS = ("compile", "m.onnx", "-o", "f.onnx", "--verify", "x.npy")
STEP = 1 / 32


@pytest.fixture
def shell(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    made = Shell(capfd, monkeypatch, tmp_path)
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(0, 2, (2, 4, 5, 5)).astype(np.float32))
    constants = {
        "w": np.float32(rng.integers(-7, 8, (40, 4, 1, 1)) / 8),
        "v": np.float32(rng.integers(-7, 8, (4, 40, 1, 1)) / 8),
        "step": np.float32(STEP),
        "none": np.float32(0),
        "bits": np.float32(8),
    }
    model = parse(
        """g (float[2, 4, 5, 5] x) => (float[2, 4, 1, 1] y) {
            a = Quant <signed: int = 1> (x, step, none, bits)
            c = Conv (a, w)
            m = GlobalAveragePool (c)
            f = Quant <signed: int = 1> (m, step, none, bits)
            y = Conv (f, v)
        }""",
        constants,
    )
    onnx.save(model, "m.onnx")
    return made


def change(monkeypatch: pytest.MonkeyPatch, name: str, shift: Callable[[int], float]) -> None:
    """Let the written file compute other values of a tensor: shift(i) more for element i."""
    run = Model.run

    def run_changed(self, inputs, **more):
        results = dict(run(self, inputs, **more))
        if name in results:
            x = results[name]
            shifts = np.array([shift(i) for i in range(x.size)], np.float32)
            results[name] = x + shifts.reshape(x.shape)
        return results

    monkeypatch.setattr(Model, "run", run_changed)


def test_verify_allows_codes_next_to_each_other(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, "f", lambda i: STEP * (i == 3))
    code, out, _ = shell(*ARGUMENTS)
    assert code == 0
    assert "Verified: 2 of 2 tensors of codes compared, but f differs" in out
    assert "A code may differ by a step after functions" in out


@pytest.mark.parametrize(
    ("name", "shift"),
    [
        ("f", lambda i: 4 * STEP * (i == 3)),
        ("f", lambda i: STEP * (i % 2)),
        ("a", lambda i: STEP * (i == 3)),
    ],
)
def test_verify_refuses_other_codes(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, name: str, shift: Callable[[int], float]
) -> None:
    change(monkeypatch, name, shift)
    code, out, _ = shell(*ARGUMENTS)
    assert code == 1
    assert f"but {name} differs" in out
