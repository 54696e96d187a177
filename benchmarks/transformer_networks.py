# SPDX-License-Identifier: Apache-2.0
"""Speed of transformers with dynamic activations, relative to ONNX Runtime.

    python benchmarks/transformer_networks.py [NAME ...] [--weights "int4 per-block 32"]

Transformers are exported from PyTorch with random weights (`_torch_transformers.py`), quantized
with `int8 dynamic` activations, and compiled. Sessions have default options and one thread, and
take turns; the shortest processor time of that thread counts. ANYBIT_ISA selects an ISA level.
A ratio above 1 means that the compiled model is faster.
"""

import tempfile
import time
from functools import partial
from pathlib import Path

import onnx
import onnxruntime
import torch
from _measure import arguments, best_times, machine, show, versions
from _sessions import session
from _torch_transformers import TRANSFORMERS, export_transformer

import anybit
import anybit.onnxruntime
from anybit._native import set_num_threads

COLUMNS = ("transformer", "float32", "compiled", "ratio", "layers on integers")


def measure(name: str, folder: Path, rounds: int, weights: str) -> list[tuple[str, ...]]:
    """Return a row of the table per set of sizes."""
    path, compiled_path = folder / f"{name}.onnx", folder / f"{name}_compiled.onnx"
    transformer = export_transformer(name, path)
    compiled = anybit.compile(anybit.quantize(path, weights=weights, activations="int8 dynamic"))
    compiled.save(compiled_path)
    options = onnxruntime.SessionOptions()
    anybit.onnxruntime.register(options)
    sessions = {
        "float32": session(onnx.load(path)),
        "compiled": session(onnx.load(compiled_path), options),
    }
    rows = []
    for title, sizes in transformer.sizes.items():
        feeds = transformer.feeds(sizes)
        times = best_times(
            {key: partial(runner.run, None, feeds) for key, runner in sessions.items()},
            rounds,
            clock=time.thread_time,
        )
        rows.append(
            (
                f"{name}, {title}" if title else name,
                *(f"{times[key] * 1e3:.2f} ms" for key in sessions),
                f"{times['float32'] / times['compiled']:.2f} x",
                compiled.report.coverage,
            )
        )
    return rows


def main() -> None:
    """Measure all transformers, or those that are named."""
    parser = arguments(__doc__)
    parser.add_argument("name", nargs="*", help="transformers (default: all)")
    parser.add_argument("--weights", default="int8", help="format of weights (default: int8)")
    options = parser.parse_args()
    set_num_threads(1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for name in options.name or TRANSFORMERS
            for row in measure(name, Path(folder), options.rounds, options.weights)
        ]
    title = f"{machine()}, {versions('onnxruntime', 'torch')}, one thread"
    show(title, COLUMNS, rows, options.markdown)


if __name__ == "__main__":
    main()
