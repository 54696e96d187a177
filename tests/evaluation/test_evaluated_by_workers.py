# SPDX-License-Identifier: Apache-2.0
"""The same figures whoever runs the models."""

from pathlib import Path
from typing import Any

import doomed
import errands
import numpy as np
import onnx
import pytest
from passes import random
from small_models import model, node

import anybit
from anybit import ModelError
from anybit.evaluation import driver

ROWS = random(100, 4)
RIGHT = np.arange(100) % 3


def product(noise: float = 0) -> onnx.ModelProto:
    weights = random(4, 3, seed=1) + np.float32(noise) * random(4, 3, seed=2)
    nodes = [node("MatMul", "x w", domain="")]
    return model(nodes, {"w": weights}, inputs={"x": ("n", 4)})


def figures(**options: Any) -> dict[str, Any]:
    """All but the times."""
    found = anybit.evaluate(product(), product(0.1), **options).to_json()
    for each in found["models"]:
        assert each.pop("seconds") > 0
    return found


def test_two_processes_give_the_same_though_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for index, rows in enumerate(np.split(np.arange(100), [30, 33, 97])):
        np.savez(parts / f"{index}.npz", x=ROWS[rows], y=RIGHT[rows])
    np.savez_compressed(tmp_path / "all.npz", x=ROWS, y=RIGHT)
    wanted = figures(data={"x": ROWS, "y": RIGHT}, labels="y")
    assert wanted["rows"] == 100
    assert 0 < wanted["models"][0]["metric"] < 1
    monkeypatch.setenv(doomed.FOLDER, str(tmp_path))
    monkeypatch.setattr(driver, "scorer", doomed.scorer)
    assert figures(data=parts, labels="y", workers=2) == wanted
    assert (tmp_path / "scorer").exists()
    assert figures(data=tmp_path / "all.npz", labels="y", workers=1) == wanted
    assert figures(data=ROWS, labels=RIGHT, workers=1) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["onnxruntime", "compiled"])
def test_seven_processes_give_the_same(engine: str) -> None:
    options: dict[str, Any] = {"data": ROWS, "labels": RIGHT, "engine": engine}
    assert figures(**options, workers=7) == figures(**options, workers=1)


def test_errors_of_workers_are_those_of_one() -> None:
    for workers in (None, 2):
        with pytest.raises(
            ModelError, match=r"^metric refusing_metric raised ValueError: 1 labels$"
        ):
            figures(data=ROWS, labels=RIGHT, metric=errands.refusing_metric, workers=workers)
    with pytest.raises(ModelError, match=r"^this cannot be sent to processes: .*lambda"):
        figures(data=ROWS, metric=lambda *_: 0, workers=2)
