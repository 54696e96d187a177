# SPDX-License-Identifier: Apache-2.0
"""Accuracy of quantized pretrained models, by anybit and by other tools.

    python benchmarks/ptq/pretrained_models.py FOLDER

Models come from Python packages (see `_tasks.py`). FOLDER keeps exported models and figures.json,
which accumulates the figures of several runs. SQNR is that of all outputs on the evaluation split,
against the float model; the score is the accuracy of the task. Seconds are those of quantization
alone. `--docs` updates the table of the documentation with the figures in FOLDER.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir
from functools import partial
from pathlib import Path

import _direction
import _magika
import _sentences
import numpy as np
import onnxruntime
from _peers import TOOLS, Tool
from _table import update_table
from _tasks import Array, Task, make_parser
from rich.console import Console
from rich.table import Table

import anybit

Run = Callable[[Path, Task], Array]
# SQNR, score and seconds by task and tool.
Figures = dict[str, dict[str, tuple[str, ...]]]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other_tools.md"
FLOAT = "float"


def run_onnxruntime(model: Path, task: Task) -> Array:
    """Return the outputs of a model on the evaluation split, by ONNX Runtime."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, dict(batch))[0] for batch in task.evaluation])


def run_anybit(model: Path, task: Task) -> Array:
    """Return the outputs of a model on the evaluation split, by anybit."""
    loaded = anybit.load(model)
    return np.concatenate([next(iter(loaded.run(batch).values())) for batch in task.evaluation])


# Format specs of weights and activations by row.
SPECS: dict[str, dict[str, str | None]] = {
    "int8 / uint8": {},
    "int4 per-block 32 / uint8": {"weights": "int4 per-block 32"},
    "int8 / auto": {"activations": "auto"},
    "int8 / int8 dynamic": {"activations": "int8 dynamic"},
    "int8 / uint8 dynamic": {"activations": "uint8 dynamic"},
    "int4 per-block 32 / int8 dynamic": {
        "weights": "int4 per-block 32",
        "activations": "int8 dynamic",
    },
    "int4 / float": {"weights": "int4", "activations": "float"},
    "nvfp4 / float": {"weights": "nvfp4", "activations": "float"},
}


def quantize(specs: Mapping[str, str | None], task: Task, result: Path) -> None:
    """Quantize the model of a task by anybit."""
    anybit.quantize(task.model, task.calibration, **specs).save(result)


def quantize_without_data(task: Task, result: Path) -> None:
    """Quantize the model of a task by anybit, one of text with random tokens."""
    data = "random-tokens" if task.transformer else None
    anybit.quantize(task.model, data, activations="uint8 dynamic").save(result)


RUNS: dict[str, tuple[Tool, Run]] = {
    **{f"anybit {name}": (partial(quantize, specs), run_anybit) for name, specs in SPECS.items()},
    "anybit int8 / uint8 dynamic, no data": (quantize_without_data, run_anybit),
    **{name: (tool, run_onnxruntime) for name, tool in TOOLS.items()},
}


def sqnr(expected: Array, actual: Array) -> float:
    """Return the signal-to-quantization-noise ratio in dB."""
    x, y = expected.astype(np.float64), actual.astype(np.float64)
    return float(10 * np.log10(np.square(x).sum() / np.square(x - y).sum()))


def measure(tool: Tool, run: Run, task: Task, expected: Array) -> tuple[str, ...]:
    """Return SQNR, score and seconds of a tool, or the class of its exception."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.onnx")
        start = time.perf_counter()
        try:
            with chdir(folder):  # some tools leave files behind
                tool(task, result)
            seconds = f"{time.perf_counter() - start:.1f}"
            actual = run(result, task)
        except Exception as error:  # third-party code raises any class
            return f"raises {type(error).__name__}", "", ""
    score = task.score(actual)
    accuracy = "" if np.isnan(score) else f"{100 * score:.1f} %"
    return f"{sqnr(expected, actual):.1f} dB", accuracy, seconds


def render(figures: Figures) -> Table:
    """Return the table for the terminal."""
    table = Table("task", "tool", "SQNR", "score", "seconds")
    for task, tools in figures.items():
        for index, (tool, cells) in enumerate(tools.items()):
            table.add_row("" if index else task, tool, *cells)
    return table


def load_figures(store: Path, tasks: Iterable[str]) -> Figures:
    """Return the figures of earlier runs, by task."""
    stored = json.loads(store.read_text()) if store.exists() else {}
    return {name: stored.get(name, {}) for name in tasks}


def iterate_tasks(
    tasks: Mapping[str, Callable[[], Task]], only: str
) -> Iterator[tuple[str, Task, Array]]:
    """Yield the tasks whose name contains `only`, and the outputs of their float models."""
    for name, make_task in tasks.items():
        if only in name:
            task = make_task()
            yield name, task, run_onnxruntime(task.model, task)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--tool", default="", help="tools whose name contains this")
    parser.add_argument("--docs", action="store_true", help=f"update the table in {PAGE.name}")
    options = parser.parse_args()
    folder = options.folder
    tasks = {
        "magika": _magika.task,
        "direction": _direction.task,
        "sentences": lambda: _sentences.task(folder),
    }
    store = folder / "figures.json"
    figures = load_figures(store, tasks)
    for name, task, expected in iterate_tasks(tasks, options.only):
        figures[name][FLOAT] = "", f"{100 * task.score(expected):.1f} %", ""
        for row, (tool, run) in RUNS.items():
            if options.tool in row:
                figures[name][row] = measure(tool, run, task, expected)
                store.write_text(json.dumps(figures, indent=1))
    Console(width=100).print(render(figures))
    if options.docs:
        PAGE.write_text(update_table(PAGE.read_text(), figures, (FLOAT, *RUNS)))


if __name__ == "__main__":
    main()
