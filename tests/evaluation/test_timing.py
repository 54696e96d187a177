# SPDX-License-Identifier: Apache-2.0
"""The sessions that `evaluate` measures, without asking a clock."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import parallel_tasks
import pytest
from pass_checks import random
from small_models import model, node, quantized_weight

import anybit
from anybit.evaluation import timing
from anybit.evaluation.timing import _warm_model, measure_seconds_per_row
from anybit.model import Model
from anybit.onnx.graph.constants import Array

ROWS = random(4, 4)
ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
NONE = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def product() -> onnx.ModelProto:
    return model([node("MatMul", "x w", domain="")], {"w": random(4, 6)}, inputs={"x": ["n", 4]})


class Clock:
    """A clock that advances by the given seconds when the model runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Iterator[float]) -> None:
        self.now, self.runs, self._seconds = 0.0, 0, seconds
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing, "_warm_model", lambda source, model, sample: self)

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        self.now += next(self._seconds)
        self.runs += 1
        return {}


@pytest.mark.parametrize(
    ("seconds", "runs", "least"),
    [
        ([5.0, 4.0, 6.0], 3, 4.0),
        ([0.03, 0.02, 0.03, 0.04, 0.05], 4, 0.02),
        ([2.0**-20] * 2000, 1000, 2.0**-20),
    ],
)
def test_seconds_per_row_is_the_minimum_of_several_runs(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], runs: int, least: float
) -> None:
    """Slow models run three times, fast ones for a tenth of a second or a thousand times."""
    clock = Clock(monkeypatch, iter(seconds))
    result = measure_seconds_per_row(product(), anybit.load(product()), {"x": ROWS}, 4)
    assert clock.runs == runs
    assert result == pytest.approx(least / 4)


def session_of(source: Any) -> onnxruntime.InferenceSession:
    timed = _warm_model(source, anybit.load(source), {"x": ROWS[:1]})
    assert isinstance(timed, Model)
    engine: Any = timed.engine
    return getattr(engine, "session", None) or engine._session


def test_timing_runs_standard_files_with_default_options(tmp_path: Path) -> None:
    onnx.save(product(), tmp_path / "net.onnx")
    for source in (product(), tmp_path / "net.onnx", str(tmp_path / "net.onnx")):
        options = session_of(source).get_session_options()
        assert options.graph_optimization_level == ALL
        assert options.intra_op_num_threads == anybit.num_threads()
        with pytest.raises(RuntimeError):
            options.get_session_config_entry("session.disable_quant_qdq")


def test_timing_runs_files_with_our_operators_exactly() -> None:
    source, _ = quantized_weight()
    options = session_of(source).get_session_options()
    assert options.graph_optimization_level == NONE
    assert options.intra_op_num_threads == anybit.num_threads()
    assert options.get_session_config_entry("session.disable_quant_qdq") == "1"


def test_timing_uses_num_threads() -> None:
    with parallel_tasks.num_threads(3):
        for source in (product(), quantized_weight()[0]):
            assert session_of(source).get_session_options().intra_op_num_threads == 3


def test_timing_runs_compiled_models_as_they_are() -> None:
    quantized = anybit.quantize(product(), ROWS, effort="fast", fail_below="none")
    compiled = anybit.compile(quantized.model)
    assert _warm_model(quantized.model, compiled, {"x": ROWS[:1]}) is compiled


def test_timing_falls_back_to_an_exact_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: object) -> None:
        raise anybit.ModelError("optimized to death")

    monkeypatch.setattr(timing, "_make_default_session", fail)
    assert session_of(product()).get_session_options().graph_optimization_level == NONE


def test_evaluate_takes_values_from_the_exact_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the optimized session for the time alone."""
    taken = []

    class Noted(timing._OptimizedEngine):
        def run(self, feeds: Any) -> dict[str, Array]:
            taken.append(feeds["x"])
            return {name: np.full_like(array, 7) for name, array in super().run(feeds).items()}

    monkeypatch.setattr(timing, "_OptimizedEngine", Noted)
    result = anybit.evaluate(product(), product(), data=ROWS)
    assert result.models[1].sqnr == np.inf
    assert {array.tobytes() for array in taken} == {ROWS[:1].tobytes()}
    assert len(taken) >= 8
