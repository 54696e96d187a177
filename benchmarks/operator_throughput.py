# SPDX-License-Identifier: Apache-2.0
"""Does quantizing cost more than copying?

Every operator, rounding mode and granularity against np.copyto of the same array, timed in turns.
Large arrays are bound by memory, 64 Ki elements by arithmetic in the second-level cache. With two
threads the same calls run against the single-threaded ones, and against two threads that copy.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from _measure import Call, arguments, best_times, machine, show, versions
from _workloads import workloads

import anybit


def two_thread_copy(elements: int) -> Call:
    source, target = (
        np.ones((2, elements // 2), np.float32),
        np.empty((2, elements // 2), np.float32),
    )
    pool = ThreadPoolExecutor(2)
    return lambda: list(pool.map(lambda half: np.copyto(target[half], source[half]), (0, 1)))


def against_copy(elements: int, rounds: int) -> list[tuple[str, ...]]:
    """The slowest variant of each operator, and its ratio to a copy."""
    anybit.set_num_threads(1)
    source = np.ones(elements, np.float32)
    target = np.empty_like(source)
    ratios: dict[str, list[tuple[float, float, str]]] = {}
    for name, variant, call in workloads(elements):
        times = best_times({"copy": lambda: np.copyto(target, source), "ours": call}, rounds)
        rate = 8 * elements / times["ours"] / 1e9
        ratios.setdefault(name, []).append((times["ours"] / times["copy"], rate, variant))
    rows = []
    for name, found in ratios.items():
        per_tensor = [item for item in found if item[2].endswith("per-tensor")]
        slowest = max(found)
        rows.append(
            (
                name,
                f"{min(found)[0]:.2f}",
                f"{max(per_tensor)[0]:.2f}",
                f"{slowest[0]:.2f}",
                f"{slowest[1]:.0f} GB/s",
                slowest[2],
            )
        )
    return rows


def with_two_threads(elements: int, rounds: int) -> list[tuple[str, ...]]:
    copy = two_thread_copy(elements)
    rows = []
    for name, variant, call in workloads(elements):
        if not variant.startswith(("ROUND, per-", "per-")):
            continue

        def threaded(count: int, call: Call = call) -> Call:
            def run() -> None:
                anybit.set_num_threads(count)
                call()

            return run

        times = best_times({"one": threaded(1), "two": threaded(2), "copy": copy}, rounds)
        speedup, against = times["one"] / times["two"], times["copy"] / times["two"]
        rows.append((name, variant, f"{speedup:.2f}", f"{against:.2f}"))
    return rows


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--large", type=int, default=16 << 20, help="elements of the large arrays")
    options = parser.parse_args()
    print(f"{machine()}; {anybit._native.isa()}; {versions('numpy')}")
    columns = ("operator", "best", "slowest per-tensor", "slowest", "rate", "slowest variant")
    for elements in (options.large, 64 << 10):
        show(
            f"Time over np.copyto, {elements >> 10} Ki float32, one thread",
            columns,
            against_copy(elements, options.rounds),
            options.markdown,
        )
    show(
        f"Two threads, {options.large >> 10} Ki float32",
        ("operator", "variant", "speed over one thread", "speed over a two-thread copy"),
        with_two_threads(options.large, options.rounds),
        options.markdown,
    )


if __name__ == "__main__":
    main()
