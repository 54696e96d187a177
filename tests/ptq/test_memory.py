# SPDX-License-Identifier: Apache-2.0
"""Peak memory of quantize, measured in a new process and without that of the import."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/status")

# The peak in bytes that a call adds to the memory after the import. getrusage would include the
# peak of the parent process.
_PROGRAM = """
import anybit
import onnxruntime

def peak():
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

before = peak()
{call}
print(peak() - before)
"""


def _measure_peak(call: str) -> int:
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(call=call)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(result.stdout)


def _save_chain(path: Path, size: int, layers: int) -> int:
    """Save a chain of square matrices and return their size in bytes."""
    rng = np.random.default_rng(1)
    nodes, weights, x = [], [], "x"
    for at in range(layers):
        array = (rng.standard_normal((size, size)) * (2 / size) ** 0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{at}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{at}"], [f"m{at}"], f"layer{at}"))
        nodes.append(helper.make_node("Relu", [f"m{at}"], [x := f"x{at}"]))
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])] for name in ("x", x)
    ]
    graph = helper.make_graph(nodes, "graph", *ends, weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return layers * size * size * 4


@pytest.mark.slow
def test_quantize_holds_few_copies_of_a_large_model(tmp_path: Path) -> None:
    """Check that one session exists at a time and that its memory is freed."""
    nbytes = _save_chain(tmp_path / "model.onnx", 2048, 12)
    rows = np.random.default_rng(2).standard_normal((24, 2048)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    taken = _measure_peak(
        "import os\n"  # each thread needs memory for its layer
        "os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\n"
        f"anybit.quantize({str(tmp_path / 'model.onnx')!r}, {str(tmp_path / 'rows.npy')!r})"
    )
    assert taken < 2 * nbytes + 750 * 10**6


@pytest.mark.slow
def test_quantize_does_not_hold_all_large_images(tmp_path: Path) -> None:
    """Quantize with images of 12 MB, for which the first layer outputs 8 MB."""
    rng = np.random.default_rng(3)
    folder = tmp_path / "images"
    folder.mkdir()
    for at in range(28):
        np.save(folder / f"{at}.npy", rng.standard_normal((1, 3, 1024, 1024)).astype(np.float32))
    weights = {"w": (8, 3, 3, 3), "v": (16, 8, 3, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], "second", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", float32, ["n", 3, 1024, 1024])],
        [helper.make_tensor_value_info("y", float32, ["n", 16, 1, 1])],
        [
            numpy_helper.from_array((0.1 * rng.standard_normal(shape)).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    assert _measure_peak(f"anybit.quantize({str(path)!r}, {str(folder)!r})") < 10**9
