# SPDX-License-Identifier: Apache-2.0
"""Throughput of the NumPy operators relative to a copy.

Every operator, rounding mode and granularity is timed against np.copyto of the same array. Large
arrays are bound by memory, 64 Ki elements by arithmetic in the second-level cache. The second table
compares two threads with one, and with two threads that copy.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from _measure import Call, arguments, best_times, machine, show, versions

import anybit

MODES = [mode.value for mode in anybit.RoundingMode]
CHANNELS = 64
CACHED = 64 << 10
THROUGHPUT_COLUMNS = (
    "operator",
    "best",
    "slowest per-tensor",
    "slowest",
    "rate",
    "slowest variant",
)
THREAD_COLUMNS = ("operator", "variant", "speed over one thread", "speed over a two-thread copy")


def workloads(elements: int) -> Iterator[tuple[str, str, Call]]:
    """Yield (operator, variant, call) over float32 arrays; outputs are allocated before."""
    random = np.random.default_rng(0)
    x = (random.standard_normal(elements, dtype=np.float32) * 3).reshape(-1, CHANNELS, 64)
    out = np.empty_like(x)
    scales = random.uniform(0.1, 1, CHANNELS).astype(np.float32)
    granularities = {
        "per-tensor": np.float32(0.1),
        "per-channel, axis 1": scales.reshape(-1, 1),
        "per-channel, last axis": scales,
    }
    for granularity, scale in granularities.items():
        yield (
            "bipolar_quant",
            granularity,
            lambda scale=scale: anybit.bipolar_quant(x, scale, out=out),
        )
        for mode in MODES:
            for name, call in _rounding_calls(x, scale, mode, out).items():
                yield name, f"{mode}, {granularity}", call


def _rounding_calls(
    x: np.ndarray, scale: np.ndarray, mode: str, out: np.ndarray
) -> dict[str, Call]:
    e4m3, e2m1 = anybit.formats.float8_e4m3fn, anybit.formats.float4_e2m1fn
    operators: dict[str, tuple[Callable[..., object], tuple[object, ...]]] = {
        "int_quant 4 bit": (anybit.int_quant, (0, 4)),
        "float_quant e4m3": (anybit.float_quant, e4m3),
        "float_quant e2m1": (anybit.float_quant, e2m1),
        "trunc 8 to 4 bit": (anybit.trunc, (0, 8, scale * 16, 4)),
    }
    return {
        name: lambda operator=operator, inputs=inputs: operator(
            x, scale, *inputs, rounding_mode=mode, out=out
        )
        for name, (operator, inputs) in operators.items()
    }


def two_thread_copy(elements: int) -> Call:
    """Return a copy of an array by two threads, one half each."""
    source = np.ones((2, elements // 2), np.float32)
    target = np.empty_like(source)
    pool = ThreadPoolExecutor(2)
    return lambda: list(pool.map(lambda half: np.copyto(target[half], source[half]), (0, 1)))


def throughput_rows(elements: int, rounds: int) -> list[tuple[str, ...]]:
    """Return the fastest and the slowest variant of each operator, relative to a copy."""
    anybit.set_num_threads(1)
    source = np.ones(elements, np.float32)
    target = np.empty_like(source)
    ratios: dict[str, list[tuple[float, float, str]]] = {}
    for name, variant, call in workloads(elements):
        times = best_times({"copy": lambda: np.copyto(target, source), "ours": call}, rounds)
        rate = 8 * elements / times["ours"] / 1e9
        ratios.setdefault(name, []).append((times["ours"] / times["copy"], rate, variant))
    rows = []
    for name, variants in ratios.items():
        fastest = min(ratio for ratio, _, _ in variants)
        per_tensor = max(ratio for ratio, _, variant in variants if variant.endswith("per-tensor"))
        slowest, rate, variant = max(variants)
        figures = (f"{fastest:.2f}", f"{per_tensor:.2f}", f"{slowest:.2f}", f"{rate:.0f} GB/s")
        rows.append((name, *figures, variant))
    return rows


def thread_rows(elements: int, rounds: int) -> list[tuple[str, ...]]:
    """Return the speedup by a second thread, for one rounding mode."""
    copy = two_thread_copy(elements)
    rows = []
    for name, variant, call in workloads(elements):
        if not variant.startswith(("ROUND, per-", "per-")):
            continue

        def run_with(threads: int, call: Call = call) -> Call:
            def run() -> None:
                anybit.set_num_threads(threads)
                call()

            return run

        times = best_times({"one": run_with(1), "two": run_with(2), "copy": copy}, rounds)
        speedup, over_copy = times["one"] / times["two"], times["copy"] / times["two"]
        rows.append((name, variant, f"{speedup:.2f}", f"{over_copy:.2f}"))
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--large", type=int, default=16 << 20, help="elements of the large arrays")
    options = parser.parse_args()
    print(f"{machine()}; {anybit._native.isa()}; {versions('numpy')}")
    for elements in (options.large, CACHED):
        title = f"Time over np.copyto, {elements >> 10} Ki float32, one thread"
        rows = throughput_rows(elements, options.rounds)
        show(title, THROUGHPUT_COLUMNS, rows, options.markdown)
    title = f"Two threads, {options.large >> 10} Ki float32"
    rows = thread_rows(options.large, options.rounds)
    show(title, THREAD_COLUMNS, rows, options.markdown)


if __name__ == "__main__":
    main()
