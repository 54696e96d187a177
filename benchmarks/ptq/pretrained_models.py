# SPDX-License-Identifier: Apache-2.0
"""What is left of pretrained models when they are quantized, by ours and by other tools?

    python benchmarks/ptq/pretrained_models.py FOLDER

Models come from Python packages (see `_tasks.py`), what is made of them goes to FOLDER, and so do
the figures, so that a run for one task leaves those of the others. SQNR is that of all outputs on
the evaluation, against the float model; the score is the task's own. The seconds are those of
quantizing alone; they mean nothing on a busy machine. `--docs` writes the table of the
documentation: what it says of figures that are not in FOLDER stays.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import chdir
from functools import partial
from pathlib import Path

import _direction
import _magika
import _sentences
import numpy as np
import onnxruntime
from _peers import TOOLS, Tool
from _table import with_figures
from _tasks import Array, Task
from rich.console import Console
from rich.table import Table

import anybit

Run = Callable[[Path, Task], Array]
# By task and tool: SQNR, score and seconds.
Figures = dict[str, dict[str, tuple[str, ...]]]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other_tools.md"
FLOAT = "float"


def by_runtime(model: Path, task: Task) -> Array:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, dict(each))[0] for each in task.evaluation])


def by_us(model: Path, task: Task) -> Array:
    loaded = anybit.load(model)
    return np.concatenate([next(iter(loaded.run(each).values())) for each in task.evaluation])


OURS: dict[str, dict[str, str | None]] = {
    "int8 / uint8": {},
    "int4 / uint8": {"weights": "int4"},
    "int4 per-block 32 / uint8": {"weights": "int4 per-block 32"},
    "int8 / float": {"activations": None},
    "int4 / float": {"weights": "int4", "activations": None},
    "int4 per-block 32 / float": {"weights": "int4 per-block 32", "activations": None},
    "mxfp4 / float": {"weights": "mxfp4", "activations": None},
    "nvfp4 / float": {"weights": "nvfp4", "activations": None},
}
"""Words for weights and activations."""


def ours(words: Mapping[str, str | None], task: Task, result: Path) -> None:
    anybit.quantize(task.model, task.calibration, **words).save(result)


RUNS: dict[str, tuple[Tool, Run]] = {
    **{f"anybit {name}": (partial(ours, words), by_us) for name, words in OURS.items()},
    **{name: (tool, by_runtime) for name, tool in TOOLS.items()},
}


def decibels(wanted: Array, found: Array) -> float:
    x, y = wanted.astype(np.float64), found.astype(np.float64)
    return float(10 * np.log10(np.square(x).sum() / np.square(x - y).sum()))


def tried(tool: Tool, run: Run, task: Task, wanted: Array) -> tuple[str, ...]:
    """SQNR, score and seconds, or what the tool raised."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.onnx")
        start = time.perf_counter()
        try:
            with chdir(folder):  # where some leave files behind
                tool(task, result)
            seconds = f"{time.perf_counter() - start:.1f}"
            found = run(result, task)
        except Exception as error:  # tools raise whatever they meet
            return f"raises {type(error).__name__}", "", ""
    return f"{decibels(wanted, found):.1f} dB", f"{100 * task.score(found):.1f} %", seconds


def shown(figures: Figures) -> Table:
    table = Table("task", "by", "SQNR", "score", "seconds")
    for name, tools in figures.items():
        for at, (by, cells) in enumerate(tools.items()):
            table.add_row("" if at else name, by, *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="tasks whose name contains this")
    parser.add_argument("--by", default="", help="rows whose name contains this")
    parser.add_argument("--docs", action="store_true", help=f"write the table in {PAGE.name}")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "magika": _magika.task,
        "direction": _direction.task,
        "sentences": lambda: _sentences.task(folder),
    }
    kept = folder / "figures.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    figures: Figures = {name: known.get(name, {}) for name in made}
    for name, make in made.items():
        if options.only not in name:
            continue
        task = make()
        wanted = by_runtime(task.model, task)
        figures[name][FLOAT] = "", f"{100 * task.score(wanted):.1f} %", ""
        for by, (tool, run) in RUNS.items():
            if options.by in by:
                figures[name][by] = tried(tool, run, task, wanted)
                kept.write_text(json.dumps(figures, indent=1))
    Console(width=100).print(shown(figures))
    if options.docs:
        PAGE.write_text(with_figures(PAGE.read_text(), figures, (FLOAT, *RUNS)))


if __name__ == "__main__":
    main()
