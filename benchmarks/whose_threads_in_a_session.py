# SPDX-License-Identifier: Apache-2.0
"""Does a compiled network gain as much by the threads of its session as by our own?

Inside ONNX Runtime a region runs on the threads of the session, which are started anew for every
stage; outside of it on a crew of ours, which stays awake between them. The same network is run both
ways, on one thread and on two, all by turns. A session gets its input bound, so that nothing but
the region and the call differ.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from _measure import Call, arguments, best_times, machine, show, versions
from _quantized import NETWORKS, quantized

import anybit
import anybit.onnxruntime

NAMES = ("CNV 1W1A", "CNV 2W2A", "MobileNetV1 W4A4")
CALLS = 4


def in_a_session(path: Path, x: np.ndarray, threads: int) -> Call:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    anybit.onnxruntime.register(options)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input(session.get_inputs()[0].name, x)
    binding.bind_output(session.get_outputs()[0].name)

    def run() -> None:
        for _ in range(CALLS):
            session.run_with_iobinding(binding)

    return run


def outside(compiled: anybit.Compiled, x: np.ndarray, threads: int) -> Call:
    def run() -> None:
        anybit.set_num_threads(threads)
        for _ in range(CALLS):
            compiled.run(x)

    return run


def compared(name: str, rounds: int, folder: Path) -> tuple[str, ...]:
    network, _ = NETWORKS[name]
    compiled = anybit.compile(quantized(name, 1))
    path = folder / "network.onnx"
    compiled.save(path)
    x = np.random.default_rng(0).uniform(-1, 1, (1, *network.row)).astype(np.float32)
    times = best_times(
        {
            "session 1": in_a_session(path, x, 1),
            "session 2": in_a_session(path, x, 2),
            "crew 1": outside(compiled, x, 1),
            "crew 2": outside(compiled, x, 2),
        },
        rounds,
        1e-3,
    )
    return (
        name,
        f"{times['session 1'] / CALLS * 1e6:.1f} us",
        f"{times['session 1'] / times['session 2']:.2f} x",
        f"{times['crew 1'] / times['crew 2']:.2f} x",
        f"{times['session 2'] / times['crew 2']:.2f} x",
    )


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    print(f"{machine()}; {versions('onnxruntime', 'numpy')}")
    columns = ("network", "one thread", "two of the session", "two of ours", "session over ours")
    with tempfile.TemporaryDirectory() as folder:
        found = [compared(name, options.rounds, Path(folder)) for name in NAMES]
    show("Two threads inside and outside of a session", columns, found, options.markdown)


if __name__ == "__main__":
    main()
