# SPDX-License-Identifier: Apache-2.0
"""Speed of `Model.run` relative to QONNX's executor.

    python benchmarks/qonnx_executor.py --qonnx /path/to/python [MODEL.onnx ...]

`--qonnx` names the Python of a separate environment, because QONNX 1.0.0 needs an older onnx:

    python -m venv qonnx && qonnx/bin/pip install qonnx==1.0.0 onnx==1.20.1

One row of input is run, as QONNX does. Both sides take turns, five times; the shortest time counts.
QONNX's excludes loading and clean-up of the model. The default models are those in the folder
ANYBIT_TEST_MODELS.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROUNDS = 5


def shortest_time(run: Callable[[], object], seconds: float) -> float:
    """Return the shortest of at least five runs that take at least `seconds` in total."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def one_row(model: Path, shape: list[int]) -> np.ndarray:
    """Return one row of the model's recorded inputs, or of random ones."""
    record = model.with_suffix(".npz")
    if record.exists():
        with np.load(record) as arrays:
            return arrays["x"][:1]
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def time_qonnx(model: Path) -> None:
    """Time QONNX, in its environment: print one line of JSON per line on stdin."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.util.cleanup import cleanup_model

    wrapper = cleanup_model(ModelWrapper(str(model)))
    name = wrapper.graph.input[0].name
    feeds = {name: one_row(model, wrapper.get_tensor_shape(name))}
    output = wrapper.graph.output[0].name
    for _ in sys.stdin:
        result = execute_onnx(wrapper, feeds)[output]
        seconds = shortest_time(lambda: execute_onnx(wrapper, feeds), 0.5)
        print(json.dumps({"seconds": seconds, "output": result.tolist()}), flush=True)


def compare(model: Path, python: str) -> tuple[float, float, float]:
    """Return QONNX's seconds, ours, and the largest difference of the outputs."""
    import anybit.model

    network = anybit.model.load(model)
    shape = network.inputs[0].shape or ()
    x = one_row(model, [size if isinstance(size, int) else 1 for size in shape])
    peer = subprocess.Popen(
        [python, __file__, "--as-qonnx", str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    peer_times, our_times, difference = [], [], 0.0
    with peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        for _ in range(ROUNDS):
            print(file=peer.stdin, flush=True)
            answer = json.loads(peer.stdout.readline())
            peer_times.append(answer["seconds"])
            our_times.append(shortest_time(lambda: network.run(x), 0.5))
            (y, *_) = network.run(x).values()
            difference = float(np.abs(y - np.array(answer["output"])).max())
    return min(peer_times), min(our_times), difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--qonnx", metavar="PYTHON", help="Python of QONNX's environment")
    parser.add_argument("--as-qonnx", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*", type=Path)
    options = parser.parse_args()
    if options.as_qonnx:
        time_qonnx(options.models[0])
        return
    if options.qonnx is None:
        parser.error("--qonnx is missing: name the Python of an environment with QONNX 1.0.0")
    from _measure import models_folder

    print(f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}\n")
    print("| model | QONNX | Model.run | times faster | largest difference |")
    print("|---|---|---|---|---|")
    for model in options.models or sorted(models_folder().glob("*.onnx")):
        peer, ours, difference = compare(model, options.qonnx)
        print(
            f"| {model.stem} | {peer * 1e3:.1f} ms | {ours * 1e6:.1f} us "
            f"| {peer / ours:.0f} | {difference:.2g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
