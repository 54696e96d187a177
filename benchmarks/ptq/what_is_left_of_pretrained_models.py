# SPDX-License-Identifier: Apache-2.0
"""What is left of pretrained models when they are quantized, by ours and by ONNX Runtime's tool?

    python benchmarks/ptq/what_is_left_of_pretrained_models.py FOLDER

Models come from Python packages (see `_tasks.py`), what is made of them goes to FOLDER. SQNR is
that of all outputs on the evaluation, against the float model; the score is the task's own.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import _direction
import _magika
import _sentences
import numpy as np
import onnxruntime
from _tasks import Array, Feeds, Task
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic
from onnxruntime.quantization import quantize_static as static
from onnxruntime.quantization.shape_inference import quant_pre_process
from rich.console import Console
from rich.table import Table

import anybit


def outputs(model: str, task: Task) -> Array:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, dict(each))[0] for each in task.evaluation])


def ours(task: Task, **words: str) -> Array:
    found = anybit.quantize(task.model, task.calibration, **words)  # type: ignore[arg-type]
    model = anybit.load(found.model)
    return np.concatenate([next(iter(model.run(each).values())) for each in task.evaluation])


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: list[Feeds]) -> None:
        self._feeds: Iterator[Feeds] = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._feeds, None)


def by_static(task: Task) -> Array:
    """As its documentation recommends: prepared, per channel, minima and maxima."""
    with tempfile.TemporaryDirectory() as folder:
        prepared, result = f"{folder}/prepared.onnx", f"{folder}/result.onnx"
        quant_pre_process(str(task.model), prepared, skip_symbolic_shape=True)
        static(prepared, result, Reader(task.calibration), per_channel=True)
        return outputs(result, task)


def by_dynamic(task: Task) -> Array:
    with tempfile.TemporaryDirectory() as folder:
        result = f"{folder}/result.onnx"
        quantize_dynamic(str(task.model), result, weight_type=QuantType.QInt8)
        return outputs(result, task)


RUNS = {
    "anybit int8 / uint8": ours,
    "anybit int4 / uint8": lambda task: ours(task, weights="int4"),
    "ONNX Runtime static": by_static,
    "ONNX Runtime dynamic": by_dynamic,
}


def decibels(wanted: Array, found: Array) -> float:
    x, y = wanted.astype(np.float64), found.astype(np.float64)
    return float(10 * np.log10(np.square(x).sum() / np.square(x - y).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="tasks whose name contains this")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    made = {
        "magika": _magika.task,
        "direction": _direction.task,
        "sentences": lambda: _sentences.task(options.folder),
    }
    table = Table("task", "by", "SQNR", "score", "seconds, evaluation included")
    for name, make in made.items():
        if options.only not in name:
            continue
        task = make()
        wanted = outputs(str(task.model), task)
        table.add_row(name, "float", "", f"{task.score(wanted):.1%}", "")
        for by, run in RUNS.items():
            start = time.perf_counter()
            try:
                found = run(task)
            except Exception as error:  # peers raise whatever they meet
                table.add_row("", by, type(error).__name__, "", "")
                continue
            seconds = f"{time.perf_counter() - start:.1f}"
            shown = f"{decibels(wanted, found):.1f} dB"
            table.add_row("", by, shown, f"{task.score(found):.1%}", seconds)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
