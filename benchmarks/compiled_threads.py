# SPDX-License-Identifier: Apache-2.0
"""How much faster do two threads run a compiled network, and what does a call cost?

What two threads can reach on this machine is what two networks reach that run beside each other,
each on one thread: that is the yardstick. All take turns in one run.

The cost of a call is the time of `Model.run` on a small integer network beyond that of its kernels,
which the network times itself.
"""

import threading

import numpy as np
from _layers import multilayer, written
from _measure import Call, arguments, best_times, machine, show, versions
from _quantized import NETWORKS, Quantized, quantized

import anybit
from anybit.compiler.program.network import Network

SCALED = ("CNV 1W1A", "CNV 2W2A", "MobileNetV1 W4A4")
AT_LEAST = 0.9
MOST_OVERHEAD = 0.5e-6
CALLS = 5


def beside(model: anybit.Compiled, x: np.ndarray) -> None:
    """Several calls in each of two threads at the same time."""

    def several() -> None:
        for _ in range(CALLS):
            model.run(x)

    other = threading.Thread(target=several)
    other.start()
    several()
    other.join()


def on(threads: int, call: Call) -> Call:
    def run() -> None:
        anybit.set_num_threads(threads)
        call()

    return run


def scaled(name: str, rounds: int) -> tuple[str, ...]:
    network, _ = NETWORKS[name]
    compiled = anybit.compile(quantized(name, 1))
    x = np.random.default_rng(0).uniform(-1, 1, (1, *network.row)).astype(np.float32)
    times = best_times(
        {
            "one": on(1, lambda: [compiled.run(x) for _ in range(2 * CALLS)]),
            "two": on(2, lambda: [compiled.run(x) for _ in range(2 * CALLS)]),
            "beside": on(1, lambda: beside(compiled, x)),
        },
        rounds,
        0.05,
    )
    speedup, possible = times["one"] / times["two"], times["one"] / times["beside"]
    return (
        name,
        f"{times['one'] / CALLS / 2 * 1e6:.1f} us",
        f"{speedup:.2f} x",
        f"{possible:.2f} x",
        f"{speedup / possible:.0%}",
        "yes" if speedup >= AT_LEAST * possible else "no",
    )


def call(sizes: tuple[int, ...], rounds: int) -> tuple[str, ...]:
    network = multilayer("small", *sizes)
    bits = Quantized(1, 1, signed=True, outer_bits=1, input_bits=1)
    compiled = anybit.compile(written(network, bits, 1))
    x = np.random.default_rng(0).uniform(-1, 1, (1, *network.row)).astype(np.float32)
    (inner,) = compiled.report.programs
    kernels = Network(inner)
    stages = [kernels.run_timed([x])[1] for _ in range(20000)]
    seconds = float(np.min(stages, axis=0).sum())
    times = best_times(
        {"run": lambda: compiled.run(x), "network": lambda: kernels.run([x])}, rounds
    )
    more = times["run"] - seconds
    return (
        "-".join(map(str, sizes)),
        f"{times['run'] * 1e6:.2f} us",
        f"{times['network'] * 1e6:.2f} us",
        f"{seconds * 1e6:.2f} us",
        f"{more * 1e6:.2f} us",
        "yes" if more <= MOST_OVERHEAD else "no",
    )


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    options = parser.parse_args()
    print(f"{machine()}; {versions('onnxruntime', 'numpy')}")
    columns = ("network", "one thread", "two threads", "two beside each other", "share", "90 %")
    found = [scaled(name, options.rounds) for name in SCALED]
    show("Two threads", columns, found, options.markdown)
    anybit.set_num_threads(1)
    columns = ("network", "Model.run", "Network.run", "its kernels", "a call", "at most 0.5 us")
    found = [call(sizes, options.rounds) for sizes in ((8, 8), (64, 64, 10))]
    show("One call, one bit", columns, found, options.markdown)


if __name__ == "__main__":
    main()
