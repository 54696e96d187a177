# SPDX-License-Identifier: Apache-2.0
"""Accuracy of quantized models of families that anybit was not developed on.

    python benchmarks/ptq/held_out_models.py FOLDER [--only TASK] [--docs]

SQNR is that of the first output on the evaluation split, against the float model. `_held_out.py`
has the models, and held_out.txt their packages. FOLDER keeps exported models and held_out.json,
which accumulates the figures of several runs. `--docs` updates the table of the documentation with
the figures in FOLDER.
"""

import json

import _held_out
from _table import update_table
from _tasks import make_parser
from pretrained_models import PAGE, RUNS, iterate_tasks, load_figures, measure, render
from rich.console import Console

ROWS = (
    "anybit int8 / uint8",
    "anybit int8 / auto",
    "anybit int8 / uint8 dynamic",
    "ONNX Runtime static",
    "ONNX Runtime dynamic",
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--docs", action="store_true", help=f"update the table in {PAGE.name}")
    options = parser.parse_args()
    folder = options.folder
    tasks = {
        "encoder": lambda: _held_out.make_encoder(folder),
        "vit": _held_out.make_vit,
        "vad": _held_out.make_vad,
        "captcha": _held_out.make_captcha,
        "conformer": lambda: _held_out.make_conformer(folder),
    }
    store = folder / "held_out.json"
    figures = load_figures(store, tasks)
    for name, task, expected in iterate_tasks(tasks, options.only):
        for row in ROWS:
            tool, run = RUNS[row]
            figures[name][row] = measure(tool, run, task, expected)
            store.write_text(json.dumps(figures, indent=1))
    Console(width=100).print(render(figures))
    if options.docs:
        cells = {
            name: {row: (sqnr.removesuffix(" dB"),) for row, (sqnr, *_) in rows.items()}
            for name, rows in figures.items()
        }
        PAGE.write_text(update_table(PAGE.read_text(), cells, ROWS, "held-out"))


if __name__ == "__main__":
    main()
