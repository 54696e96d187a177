# SPDX-License-Identifier: Apache-2.0
"""`evaluate` gives the same figures for any number of threads, and on copies of the models."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import parallel_tasks
import pytest
from pass_checks import random
from small_models import model, node

import anybit
from anybit import ModelError
from anybit.evaluation import driver
from anybit.evaluation.scoring import Scorer

ROWS = random(100, 4)
RIGHT = np.arange(100) % 3


def product(noise: float = 0) -> onnx.ModelProto:
    weights = random(4, 3, seed=1) + np.float32(noise) * random(4, 3, seed=2)
    nodes = [node("MatMul", "x w", domain="")]
    return model(nodes, {"w": weights}, inputs={"x": ("n", 4)})


def figures(**options: Any) -> dict[str, Any]:
    """Evaluate two models, and return all figures but the times."""
    evaluation = anybit.evaluate(product(), product(0.1), **options).to_json()
    for row in evaluation["models"]:
        assert row.pop("seconds") > 0
    return evaluation


def test_evaluate_gives_the_same_figures_for_all_threads_and_forms_of_data(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for index, rows in enumerate(np.split(np.arange(100), [30, 33, 97])):
        np.savez(parts / f"{index}.npz", x=ROWS[rows], y=RIGHT[rows])
    np.savez_compressed(tmp_path / "all.npz", x=ROWS, y=RIGHT)
    with parallel_tasks.num_threads(1):
        expected = figures(data={"x": ROWS, "y": RIGHT}, labels="y")
    assert expected["rows"] == 100
    assert 0 < expected["models"][0]["metric"] < 1
    for threads in (1, 7):
        with parallel_tasks.num_threads(threads):
            assert figures(data=parts, labels="y") == expected
            assert figures(data=tmp_path / "all.npz", labels="y") == expected
            assert figures(data=ROWS, labels=RIGHT) == expected


@pytest.mark.parametrize("engine", ["onnxruntime", "compiled"])
def test_evaluate_gives_the_same_figures_on_pickled_copies(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"data": ROWS, "labels": RIGHT, "engine": engine}
    expected = figures(**options)
    monkeypatch.setattr(driver, "open_executor", parallel_tasks.open_pickling_executor)
    assert figures(**options) == expected


def test_evaluate_runs_few_samples_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    barrier, score = threading.Barrier(2), Scorer.score

    def score_together(scorer: Scorer, sample: Any, labels: Any) -> Any:
        barrier.wait(60)  # passes only if both samples run
        return score(scorer, sample, labels)

    monkeypatch.setattr(Scorer, "score", score_together)
    with parallel_tasks.num_threads(2):
        assert figures(data=ROWS[:2])["samples"] == 2


def test_metric_is_called_by_one_thread_at_a_time() -> None:
    running, most = [], []

    def metric(outputs: dict[str, Any], labels: Any) -> float:
        running.append(None)
        most.append(len(running))
        running.pop()
        return 0.0

    with parallel_tasks.num_threads(4):
        figures(data=ROWS, labels=RIGHT, metric=metric)
    assert set(most) == {1}
    assert len(most) == 200


@pytest.mark.parametrize("threads", [1, 4])
def test_evaluate_raises_the_error_of_a_metric(threads: int) -> None:
    message = r"^metric failing_metric raised ValueError: 1 labels$"
    with parallel_tasks.num_threads(threads), pytest.raises(ModelError, match=message):
        figures(data=ROWS, labels=RIGHT, metric=parallel_tasks.failing_metric)
