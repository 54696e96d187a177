# SPDX-License-Identifier: Apache-2.0
"""Speedup of compiled networks by a second thread, and the overhead of a call.

The upper bound of the speedup on this machine is measured, too: the same network called from two
Python threads at a time, on one thread each.

The overhead is the time of `Model.run` minus that of the kernels, which the network times itself.
"""

import threading

import numpy as np
from _layers import build_model, multilayer
from _measure import Call, arguments, best_times, machine, show, versions
from _quantized import NETWORKS, Quantized, quantized_model

import anybit
from anybit.compiler.program.network import Network

NAMES = ("CNV 1W1A", "CNV 2W2A", "MobileNetV1 W4A4")
SIZES = ((8, 8), (64, 64, 10))
CALLS = 5
THREAD_COLUMNS = ("network", "one thread", "two threads", "upper bound", "share of it")
CALL_COLUMNS = ("network", "Model.run", "Network.run", "kernels", "overhead")


def run_concurrently(model: anybit.CompiledModel, x: np.ndarray) -> None:
    """Run the model CALLS times in each of two threads."""

    def run() -> None:
        for _ in range(CALLS):
            model.run(x)

    second = threading.Thread(target=run)
    second.start()
    run()
    second.join()


def with_threads(threads: int, call: Call) -> Call:
    """Return a call that sets the number of threads first."""

    def run() -> None:
        anybit.set_num_threads(threads)
        call()

    return run


def thread_row(name: str, rounds: int) -> tuple[str, ...]:
    """Time a network on one thread, on two, and in two concurrent calls."""
    network, _ = NETWORKS[name]
    compiled = anybit.compile(quantized_model(name, 1))
    x = np.random.default_rng(0).uniform(-1, 1, (1, *network.row)).astype(np.float32)
    times = best_times(
        {
            "one": with_threads(1, lambda: [compiled.run(x) for _ in range(2 * CALLS)]),
            "two": with_threads(2, lambda: [compiled.run(x) for _ in range(2 * CALLS)]),
            "concurrent": with_threads(1, lambda: run_concurrently(compiled, x)),
        },
        rounds,
        0.05,
    )
    speedup, bound = times["one"] / times["two"], times["one"] / times["concurrent"]
    seconds = times["one"] / CALLS / 2
    return (
        *(name, f"{seconds * 1e6:.1f} us", f"{speedup:.2f} x"),
        *(f"{bound:.2f} x", f"{speedup / bound:.0%}"),
    )


def call_row(sizes: tuple[int, ...], rounds: int) -> tuple[str, ...]:
    """Time a small bipolar network and its kernels."""
    network = multilayer("small", *sizes)
    writer = Quantized(1, 1, signed=True, outer_bits=1, input_bits=1)
    compiled = anybit.compile(build_model(network, writer, 1))
    x = np.random.default_rng(0).uniform(-1, 1, (1, *network.row)).astype(np.float32)
    (program,) = compiled.report.programs
    kernels = Network(program)
    stages = [kernels.run_timed([x])[1] for _ in range(20000)]
    seconds = float(np.min(stages, axis=0).sum())
    times = best_times(
        {"run": lambda: compiled.run(x), "network": lambda: kernels.run([x])}, rounds
    )
    figures = (times["run"], times["network"], seconds, times["run"] - seconds)
    return "-".join(map(str, sizes)), *(f"{figure * 1e6:.2f} us" for figure in figures)


def main() -> None:
    options = arguments(__doc__).parse_args()
    print(f"{machine()}; {versions('numpy')}")
    rows = [thread_row(name, options.rounds) for name in NAMES]
    show("Two threads", THREAD_COLUMNS, rows, options.markdown)
    anybit.set_num_threads(1)
    rows = [call_row(sizes, options.rounds) for sizes in SIZES]
    show("One call, one bit", CALL_COLUMNS, rows, options.markdown)


if __name__ == "__main__":
    main()
