# SPDX-License-Identifier: Apache-2.0
"""How much faster are two workers than one?

    python benchmarks/how_much_faster_are_two_workers.py MODEL.onnx DATA.npz --markdown

A model is quantized with data, and evaluated against the result, by one worker, by two threads and
by two processes, in turns; the shortest time of each counts, start of processes included. All of
them must give the same bytes and figures.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
from _measure import arguments, machine, show, versions

import anybit

WAYS: dict[str, dict[str, Any]] = {
    "one worker": {"workers": 1},
    "threads": {},
    "two processes": {"workers": 2},
}


def quantized(model: Path, data: Path, **options: Any) -> tuple[bytes, Any]:
    """The bytes and figures of the quantized model."""
    found = anybit.quantize(model, data, **options)
    return ir.to_proto(found.model).SerializeToString(), found.to_json()


def evaluated(model: Path, other: ir.Model, data: Path, workers: int) -> Any:
    """All figures but the times."""
    found = anybit.evaluate(model, other, data=data, workers=workers).to_json()
    return [each | {"seconds": 0, "name": ""} for each in found["models"]]


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The shortest time of each in seconds."""
    best, results = dict.fromkeys(calls, float("inf")), []
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            results.append(call())
            best[name] = min(best[name], time.perf_counter() - start)
    if any(each != results[0] for each in results):
        raise SystemExit("they do not give the same")
    return best


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.set_defaults(rounds=3)
    options = parser.parse_args()
    given = options.model, options.data
    steps: dict[str, dict[str, Any]] = {
        "uint8 / int8": {},
        "uint8 / int4, GPTQ": {"weights": "int4"},
        "with sensitivity": {"sensitivity": True},
    }
    rows = []
    for step, words in steps.items():
        calls = {
            name: lambda way=way, words=words: quantized(*given, **words, **way)
            for name, way in WAYS.items()
        }
        rows.append((step, in_turns(calls, options.rounds)))
    other = anybit.quantize(*given).model
    counts = {"one worker": 1, "two processes": 2}
    calls = {
        name: lambda count=count: evaluated(options.model, other, options.data, count)
        for name, count in counts.items()
    }
    rows.append(("evaluate", in_turns(calls, options.rounds)))
    table = []
    for step, best in rows:
        one = best["one worker"]
        cells = [f"{best[n]:.1f} s ({one / best[n]:.2f} x)" if n in best else "" for n in WAYS]
        table.append((step, *cells))
    cores = len(os.sched_getaffinity(0))
    title = f"{options.model.stem}; {machine()}, {cores} cores; {versions('onnxruntime', 'numpy')}"
    show(title, ("", *WAYS), table, options.markdown)


if __name__ == "__main__":
    main()
