# SPDX-License-Identifier: Apache-2.0
"""What quantize and evaluate take at most: in processes of their own, over what importing takes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux says it in a file")

# The peak in bytes that a call adds to what is there after the import. Not by getrusage, which
# remembers the process that this one was forked from.
_PROGRAM = """
import anybit
import onnxruntime

def peak():
    with open("/proc/self/status") as file:
        (line,) = (each for each in file if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

before = peak()
{call}
print(peak() - before)
"""


def _peak(call: str) -> int:
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(call=call)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(found.stdout)


def _saved(path: Path, size: int, layers: int) -> int:
    """A chain of square matrices, and how many bytes they have."""
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
def test_a_model_is_not_copied_again_and_again(tmp_path: Path) -> None:
    """Beside it there is one session of it at a time, and what that leaves behind is given back."""
    nbytes = _saved(tmp_path / "model.onnx", 2048, 12)
    rows = np.random.default_rng(2).standard_normal((24, 2048)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    taken = _peak(
        "import os\n"  # each thread takes as much again for the layer that it is about
        "os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\n"
        f"anybit.quantize({str(tmp_path / 'model.onnx')!r}, {str(tmp_path / 'rows.npy')!r})"
    )
    assert taken < 2 * nbytes + 750 * 10**6


@pytest.mark.slow
def test_large_images_are_not_all_held(tmp_path: Path) -> None:
    """Each of them takes 12 MB, and what the first layer makes of it 8 MB."""
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
    assert _peak(f"anybit.quantize({str(path)!r}, {str(folder)!r})") < 10**9
