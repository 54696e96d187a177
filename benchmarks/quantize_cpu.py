# SPDX-License-Identifier: Apache-2.0
"""CPU seconds of `anybit.quantize` over those of ONNX Runtime's `quantize_static`.

    python benchmarks/quantize_cpu.py [--only NAME]

Both tools get the same float network and the same samples, and quantize weights to int8 per channel
and activations to uint8. Each call has a process of its own, in turns; the least time of each tool
counts. CPU seconds are those of all threads. The time of imports is listed apart.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from _layers import CNV, KWS, MOBILENET, RESNET, TFC, Network, build_model
from _measure import arguments, machine, show, versions
from _peers import Float32

COLUMNS = ("network", "samples", "ours", "theirs", "ours / theirs", "imports: ours", "theirs")
# Network and number of samples; images are small, so that the benchmark takes minutes.
NETWORKS = {
    "TFC": (TFC, 500),
    "KWS": (KWS, 500),
    "CNV": (CNV, 100),
    "MobileNetV1, 96 x 96": (replace(MOBILENET, row=(3, 96, 96)), 100),
    "ResNet-18, 64 x 64": (replace(RESNET, row=(3, 64, 64)), 100),
    "ResNet-18, 160 x 160": (replace(RESNET, row=(3, 160, 160)), 50),
}
Tool = Callable[[str, np.ndarray, str], None]


def import_anybit() -> Tool:
    """Import anybit and return its quantization."""
    from anybit.ptq.pipeline import quantize

    return lambda model, x, result: quantize(model, x).save(result)


def import_onnxruntime() -> Tool:
    """Import the quantization of ONNX Runtime and return it."""
    from _calibration_rows import CalibrationRows
    from onnxruntime.quantization import quantize_static

    return lambda model, x, result: quantize_static(
        model, result, CalibrationRows(x), per_channel=True
    )


TOOLS = {"anybit": import_anybit, "onnxruntime": import_onnxruntime}


def run_tool(tool: str, model: str, data: str, result: str) -> None:
    """Quantize a model and print the CPU seconds of imports and of the call as JSON."""
    x = np.load(data)
    start = time.process_time()
    quantize = TOOLS[tool]()
    imported = time.process_time()
    quantize(model, x, result)
    print(json.dumps([imported - start, time.process_time() - imported]))


def measure(tool: str, folder: Path) -> tuple[float, float]:
    """Return the CPU seconds of imports and of the call, in a process of its own."""
    files = [str(folder / name) for name in ("float.onnx", "data.npy", "result.onnx")]
    done = subprocess.run(
        [sys.executable, __file__, "--tool", tool, *files],
        capture_output=True,
        text=True,
        check=True,
    )
    imports, call = json.loads(done.stdout.splitlines()[-1])
    return imports, call


def make_row(name: str, network: Network, samples: int, rounds: int) -> tuple[str, ...]:
    """Measure both tools on a network."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        onnx.save(build_model(network, Float32()), folder / "float.onnx")
        random = np.random.default_rng(0)
        np.save(folder / "data.npy", random.normal(size=(samples, *network.row)).astype(np.float32))
        turns = [{tool: measure(tool, folder) for tool in TOOLS} for _ in range(rounds)]
    imports, calls = (
        {tool: min(turn[tool][index] for turn in turns) for tool in TOOLS} for index in (0, 1)
    )
    return (
        *(name, str(samples), *(f"{seconds:.2f} s" for seconds in calls.values())),
        f"{calls['anybit'] / calls['onnxruntime']:.1f}",
        *(f"{seconds:.2f} s" for seconds in imports.values()),
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=3)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--tool", nargs=4, metavar=("TOOL", "MODEL", "DATA", "RESULT"))
    options = parser.parse_args()
    if options.tool:
        run_tool(*options.tool)
        return
    rows = [
        make_row(name, network, samples, options.rounds)
        for name, (network, samples) in NETWORKS.items()
        if options.only in name
    ]
    title = f"CPU seconds of quantization, {machine()}, {versions('onnxruntime', 'numpy')}"
    show(title, COLUMNS, rows, options.markdown)


if __name__ == "__main__":
    main()
