# SPDX-License-Identifier: Apache-2.0
"""Models on the same data: metrics, similarity to the first, labels in every form, refusals."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from pass_checks import random
from small_models import model, node

import anybit
from anybit import AnybitError, DataError, ModelError

ROWS = random(12, 4)
W = random(4, 6, seed=1)
SCORES = ROWS @ W
RIGHT = SCORES.argmax(axis=1)


def product(w: np.ndarray = W, rows: Any = "n", name: str = "x") -> onnx.ModelProto:
    return model([node("MatMul", f"{name} w", domain="")], {"w": w}, inputs={name: [rows, 4]})


def noisy() -> onnx.ModelProto:
    return product(W + random(4, 6, seed=2) / 20)


def test_evaluate_compares_with_the_first_model() -> None:
    evaluation = anybit.evaluate(product(), noisy(), data=ROWS)
    first, second = evaluation.models
    assert (first.sqnr, first.agreement, first.mse, first.metric) == (None,) * 4
    other = anybit.load(noisy()).run(ROWS)["y"]
    noise = np.square(other.astype(np.float64) - SCORES)
    assert second.mse == pytest.approx(noise.mean(), rel=1e-5)
    signal = np.square(SCORES.astype(np.float64)).sum()
    assert second.sqnr == pytest.approx(10 * np.log10(signal / noise.sum()), abs=1e-3)
    assert second.agreement == np.mean(other.argmax(axis=1) == RIGHT)
    assert (evaluation.samples, evaluation.rows, evaluation.metric) == (12, 12, None)
    assert second.seconds > 0
    assert (first.name, second.name, second.bytes) == ("model 1", "model 2", None)
    assert evaluation.to_json()["models"][1]["mse"] == second.mse


def test_top1_and_top5_count_rows() -> None:
    labels = RIGHT.copy()
    labels[:3] = SCORES[:3].argmin(axis=1)
    labels[3:5] = np.argsort(-SCORES[3:5], axis=1)[:, 4]
    for metric, right in ((None, 7), ("top1", 7), ("top5", 9)):
        evaluation = anybit.evaluate(product(), data=ROWS, labels=labels, metric=metric)
        assert evaluation.models[0].metric == right / 12
        assert evaluation.metric == (metric or "top1")


def test_top1_takes_integer_outputs_as_classes() -> None:
    graph = [
        node("MatMul", "x w", "s", domain=""),
        node("ArgMax", "s", "y", domain="", axis=1, keepdims=0),
    ]
    network = model(graph, {"w": W}, inputs={"x": ["n", 4]})
    network.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    assert anybit.evaluate(network, data=ROWS, labels=RIGHT).models[0].metric == 1


def largest_or_sum(outputs: dict[str, np.ndarray], labels: np.ndarray | None) -> Any:
    """Return the largest output per row, or the sum of the labels."""
    assert set(outputs) == {"y"}
    return outputs["y"].max(axis=1) if labels is None else float(labels.sum())


def test_metric_is_a_function_or_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_metrics.py").write_text(
        "def largest(outputs, labels):\n    return outputs['y'].max(axis=1)\n"
        "def broken(outputs, labels):\n    raise KeyError('z')\n"
        "def nothing(outputs, labels):\n    return float('nan')\n"
    )
    (tmp_path / "my_broken.py").write_text("import there_is_no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    expected = pytest.approx(SCORES.max(axis=1).mean())
    for metric in (largest_or_sum, "my_metrics:largest"):
        assert anybit.evaluate(product(), data=ROWS, metric=metric).models[0].metric == expected
    summed = anybit.evaluate(product(), data=ROWS, labels=RIGHT, metric=largest_or_sum).models[0]
    assert summed.metric == pytest.approx(RIGHT.mean())
    for metric, message in (
        ("my_metrics:smallest", "my_metrics has no function smallest"),
        ("my_metrics:broken", "raised KeyError: 'z'"),
        ("my_metrics:nothing", "must return finite numbers"),
        ("my_broken:f", "cannot be imported: ModuleNotFoundError: .*there_is_no_such_module"),
        ("no_such_module_at_all:f", "cannot be imported"),
        ("accuracy", "metric must be one of top1, top5"),
        ("os.path:", "metric must be"),
    ):
        with pytest.raises(AnybitError, match=message):
            anybit.evaluate(product(), data=ROWS, metric=metric)


def test_mse_compares_the_first_output_with_labels() -> None:
    evaluation = anybit.evaluate(
        product(), noisy(), data={"x": ROWS, "t": SCORES}, labels="t", metric="mse"
    )
    first, second = evaluation.models
    assert first.metric == pytest.approx(0, abs=1e-10)
    assert second.metric == pytest.approx(second.mse, rel=1e-4)


def items() -> Iterator[dict[str, np.ndarray]]:
    yield from ({"x": ROWS[at : at + 3], "label": RIGHT[at : at + 3]} for at in range(0, 12, 3))


def test_evaluate_takes_labels_in_every_form(tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", x=ROWS, label=RIGHT)
    np.savez(tmp_path / "alone.npz", ROWS, label=RIGHT)
    np.save(tmp_path / "x.npy", ROWS)
    np.save(tmp_path / "y.npy", RIGHT)
    folder = tmp_path / "folder"
    folder.mkdir()
    for at, item in enumerate(items()):
        np.savez(folder / f"{at}.npz", **item)
    forms: list[tuple[Any, Any]] = [
        ({"x": ROWS, "label": RIGHT}, "label"),
        ({"x": ROWS, "label": RIGHT[:, None]}, "label"),
        (items(), "label"),
        (list(items()), "label"),
        (folder, "label"),
        (tmp_path / "both.npz", "label"),
        (tmp_path / "alone.npz", "label"),
        (tmp_path / "x.npy", tmp_path / "y.npy"),
        (tmp_path / "x.npy", str(tmp_path / "y.npy")),
        (ROWS, RIGHT),
        ([ROWS[:5], ROWS[5:]], RIGHT.tolist()),
    ]
    for data, labels in forms:
        for rows in ("n", 2, 6):
            if rows == "n" or isinstance(data, dict):
                evaluation = anybit.evaluate(product(rows=rows), data=data, labels=labels)
                assert evaluation.models[0].metric == 1


def test_evaluate_keeps_labels_of_dependent_rows() -> None:
    graph = [
        node("ReduceMean", "x", "mean", domain="", axes=[0]),
        node("Sub", "x mean", "c", domain=""),
        node("MatMul", "c w", domain=""),
    ]
    network = model(graph, {"w": W}, inputs={"x": ["n", 4]})
    parts = [ROWS[:5], ROWS[5:]]
    right = np.concatenate([((row - row.mean(axis=0)) @ W).argmax(axis=1) for row in parts])
    evaluation = anybit.evaluate(network, data=parts, labels=right)
    assert (evaluation.samples, evaluation.rows, evaluation.models[0].metric) == (2, 12, 1)
    named = [{"x": ROWS[:5], "l": right[:5]}, {"x": ROWS[5:], "l": right[5:]}]
    assert anybit.evaluate(network, data=named, labels="l").models[0].metric == 1


def test_evaluate_joins_models_with_other_numbers_of_rows() -> None:
    models = product(rows=2), product(rows=3), product()
    evaluation = anybit.evaluate(*models, data=ROWS, labels=RIGHT)
    assert [row.metric for row in evaluation.models] == [1, 1, 1]
    assert (evaluation.samples, evaluation.rows) == (2, 12)
    assert all(row.sqnr > 100 for row in evaluation.models[1:])


def test_evaluate_matches_outputs_by_position() -> None:
    other = model(
        [node("MatMul", "x w", "scores", domain="")],
        {"w": W},
        inputs={"x": ["n", 4]},
        outputs=["scores"],
    )
    assert anybit.evaluate(product(), other, data=ROWS).models[1].agreement == 1


def test_evaluate_runs_either_engine() -> None:
    quantized = anybit.quantize(product(), ROWS, weights="int8 power-of-two", activations="int8")
    results = [
        anybit.evaluate(product(), quantized, data=ROWS, engine=engine).models[1].mse
        for engine in ("onnxruntime", "compiled")
    ]
    # Floats are added in another order.
    assert results[0] == pytest.approx(results[1], rel=1e-5)


@pytest.mark.parametrize(
    ("others", "arguments", "message"),
    [
        ([], {}, "one model has no reference: add a second model, or labels="),
        ([], {"metric": "sqnr"}, "metric='sqnr' compares models"),
        ([], {"metric": "top5"}, "metric='top5' needs labels: add labels="),
        ([product()], {"engine": "fast"}, "engine must be one of onnxruntime, compiled"),
        (
            [product(name="z")],
            {},
            r"model 1 takes x: float32\[n, 4\], and model 2 z: float32\[n, 4\]",
        ),
        ([], {"labels": RIGHT[:7]}, "7 labels, fewer than rows in the data; give one"),
        ([], {"labels": [*RIGHT, 1, 1]}, "14 labels for 12 rows of data; give one"),
        ([], {"labels": np.int64(3)}, "one per row or sample"),
        ([], {"labels": RIGHT / 2}, r"labels must be class indices \(integers\), got float64"),
        ([], {"labels": RIGHT + 6}, "labels range from .* and the model has 6 classes"),
        (
            [],
            {"labels": "truth"},
            "it holds one array without a name, and no labels called 'truth'",
        ),
        ([], {"labels": "truth.npy"}, "truth.npy"),
        ([], {"labels": ""}, "it holds one array without a name"),
        ([], {"labels": "x"}, "labels are called 'x', and so is an input"),
        ([], {"labels": [[1], [2, 3]]}, "labels are not an array"),
        ([], {"labels": RIGHT, "metric": "mse"}, "and output 'y' has shape"),
    ],
)
def test_evaluate_refuses(others: list[Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((AnybitError, OSError), match=message):
        anybit.evaluate(product(), *others, data=ROWS, **arguments)


def test_evaluate_refuses_no_model_and_other_sizes() -> None:
    with pytest.raises(ModelError, match="there is no model"):
        anybit.evaluate(data=ROWS)
    wide = model([node("MatMul", "x w", domain="")], {"w": random(5, 6)}, inputs={"x": ["n", 5]})
    with pytest.raises(ModelError, match=r"float32\[n, 4\], and model 2 x: float32\[n, 5\]"):
        anybit.evaluate(product(), wide, data=ROWS)
    with pytest.raises(DataError, match=r"labels of shape \[5\] for 12 samples"):
        anybit.evaluate(product(), data={"x": ROWS, "l": RIGHT[:5]}, labels="l")


def test_evaluate_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    wide = 100_000
    w = np.zeros((wide, 2), np.float32)
    network = model([node("MatMul", "x w", domain="")], {"w": w}, inputs={"x": ["n", wide]})
    rows = np.repeat(np.arange(200, dtype=np.float32)[:, None], wide, axis=1)
    np.save(tmp_path / "x.npy", rows)
    tracemalloc.start()
    anybit.evaluate(network, data=tmp_path / "x.npy", labels=np.zeros(200, np.int64))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows.nbytes / 4


def test_evaluate_progress_ends_at_one() -> None:
    seen: list[float] = []
    anybit.evaluate(product(), noisy(), data=ROWS, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1
