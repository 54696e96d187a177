# SPDX-License-Identifier: Apache-2.0
"""How much faster does a network run than in QONNX's executor?

    python benchmarks/qonnx_executor.py --qonnx /path/to/python [MODEL.onnx ...]

The argument of `--qonnx` is the Python of an environment of its own, made with

    python -m venv qonnx && qonnx/bin/pip install qonnx==1.0.0 onnx==1.20.1

since QONNX 1.0.0 reads no model with a newer onnx. One row of input is run, as QONNX does. Both
sides take turns, five times; each figure is the shortest time. QONNX's includes no loading
and no clean-up of the model; ours is the whole of `Model.run`. Without models, those in
the folder ANYBIT_TEST_MODELS are taken.
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


def shortest(run: Callable[[], object], seconds: float) -> float:
    """The shortest of the runs that fit into that many seconds; at least five."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def one_row(model: Path, shape: list[int]) -> np.ndarray:
    arrays = model.with_suffix(".npz")
    if arrays.exists():
        with np.load(arrays) as loaded:
            return loaded["x"][:1]
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def time_qonnx(model: Path) -> None:
    """The other side, in QONNX's environment: a line of JSON for every line on stdin."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.util.cleanup import cleanup_model

    wrapper = cleanup_model(ModelWrapper(str(model)))
    name = wrapper.graph.input[0].name
    feeds = {name: one_row(model, wrapper.get_tensor_shape(name))}
    output = wrapper.graph.output[0].name
    for _ in sys.stdin:
        result = execute_onnx(wrapper, feeds)[output]
        seconds = shortest(lambda: execute_onnx(wrapper, feeds), 0.5)
        print(json.dumps({"seconds": seconds, "output": result.tolist()}), flush=True)


def compare(model: Path, python: str) -> tuple[float, float, float]:
    """Seconds of QONNX, seconds of ours, and the largest difference of the outputs."""
    import anybit.model

    network = anybit.model.load(model)
    x = one_row(model, [size for size in network.inputs[0].shape or () if isinstance(size, int)])
    other = subprocess.Popen(
        [python, __file__, "--as-qonnx", str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    theirs, ours, difference = [], [], 0.0
    with other:
        assert other.stdin is not None
        assert other.stdout is not None
        for _ in range(ROUNDS):
            print(file=other.stdin, flush=True)
            answer = json.loads(other.stdout.readline())
            theirs.append(answer["seconds"])
            ours.append(shortest(lambda: network.run(x), 0.5))
            (result, *_) = network.run(x).values()
            difference = float(np.abs(result - np.array(answer["output"])).max())
    return min(theirs), min(ours), difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--qonnx", metavar="PYTHON", help="the Python that has QONNX")
    parser.add_argument("--as-qonnx", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*", type=Path)
    arguments = parser.parse_args()
    if arguments.as_qonnx:
        time_qonnx(arguments.models[0])
        return
    if arguments.qonnx is None:
        parser.error("--qonnx is needed: the Python of an environment with QONNX 1.0.0")
    from _measure import models_folder

    print(f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}\n")
    print("| model | QONNX | Model.run | times faster | largest difference |")
    print("|---|---|---|---|---|")
    for model in arguments.models or sorted(models_folder().glob("*.onnx")):
        theirs, ours, difference = compare(model, arguments.qonnx)
        print(
            f"| {model.stem} | {theirs * 1e3:.1f} ms | {ours * 1e6:.1f} us "
            f"| {theirs / ours:.0f} | {difference:.2g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
