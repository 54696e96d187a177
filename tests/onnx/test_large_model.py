# SPDX-License-Identifier: Apache-2.0
"""A model beyond the 2 GiB of one message is converted in less than 1.5 times its size in memory.

The measure is VmHWM of the process that converts: its largest resident memory, including pages of
mapped files. The ru_maxrss of a child process would include the memory of its parent at the start.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import DOMAIN, node

import anybit
from anybit.onnx import read

pytestmark = pytest.mark.slow

SIDE, LAYERS, ROWS = 8192, 10, 512
SIZE = 4 * SIDE * SIDE * LAYERS
NEEDED = 8 * 2**30
BITS = 4

CONVERSION = """
import sys
import anybit

_, path, form, result = sys.argv
anybit.convert(path, to=form).save(result)
with open("/proc/self/status") as file:
    print(*[line.split()[1] for line in file if line.startswith("VmHWM:")])
"""


def scales() -> np.ndarray:
    return np.linspace(0.01, 0.02, SIDE, dtype=np.float32)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """x @ IntQuant(weight) @ ..., with weights of 2.5 GiB in a file that is written in blocks."""
    folder = tmp_path_factory.mktemp("large")
    if shutil.disk_usage(folder).free < NEEDED:
        pytest.skip(f"less than {NEEDED >> 30} GiB are free in {folder}")
    random = np.random.default_rng(0)
    block = random.normal(0, 0.05, (ROWS, SIDE)).astype(np.float32)
    initializers = [
        numpy_helper.from_array(np.asarray(array, np.float32), name)
        for name, array in (("scale", scales()), ("zeropt", 0), ("bitwidth", BITS))
    ]
    nodes = []
    with (folder / "weights.data").open("wb") as file:
        for layer in range(LAYERS):
            tensor = TensorProto(
                name=f"w{layer}",
                dims=[SIDE, SIDE],
                data_type=TensorProto.FLOAT,
                data_location=TensorProto.EXTERNAL,
            )
            entries = {"location": "weights.data", "offset": file.tell(), "length": 4 * SIDE**2}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
            initializers.append(tensor)
            for part in range(SIDE // ROWS):
                file.write((block + np.float32(0.001 * (layer + part))).tobytes())
            x, y = (f"h{layer}" if layer else "x"), (f"h{layer + 1}" if layer < LAYERS - 1 else "y")
            inputs = f"w{layer} scale zeropt bitwidth"
            nodes.append(node("IntQuant", inputs, f"q{layer}", name=f"quant{layer}"))
            nodes.append(node("MatMul", f"{x} q{layer}", y, domain="", name=f"matmul{layer}"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIDE]) for name in "xy"]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], initializers)
    imports = [helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    (folder / "large.onnx").write_bytes(model.SerializeToString())
    yield folder / "large.onnx"
    shutil.rmtree(folder)


def weight(path: Path, layer: int) -> np.ndarray:
    """Read one weight of the source from its file."""
    offset = 4 * SIDE**2 * layer
    data = np.fromfile(path.with_name("weights.data"), np.float32, SIDE**2, offset=offset)
    return data.reshape(SIDE, SIDE)


def factor(model: ir.Model, layer: int) -> ir.Value:
    """Return the weight of a layer's product."""
    product = next(item for item in model.graph if item.name == f"matmul{layer}")
    value = product.inputs[1]
    assert value is not None
    return value


@pytest.mark.parametrize("form", ["qdq", "qonnx", "standard"])
def test_large_models_conversion(large: Path, tmp_path: Path, form: str) -> None:
    assert SIZE > 2.5e9
    result = tmp_path / "result.onnx"
    command = [sys.executable, "-c", CONVERSION, str(large), form, str(result)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    resident = 1024 * int(process.stdout) / SIZE
    print(f"{form}: {resident:.2f} x the size of the weights")
    assert resident <= 1.5
    assert (tmp_path / "result.onnx.data").exists()
    assert result.stat().st_size < 2**20
    check(read(result), large, form)
    shutil.rmtree(tmp_path)


def check(converted: ir.Model, source: Path, form: str) -> None:
    """Return one layer: the codes, the original weights, or the quantized values."""
    layer = LAYERS // 2
    value, original = factor(converted, layer), weight(source, layer)
    expected = anybit.int_quant(original, scales(), 0, BITS)
    producer = value.producer()
    if form == "standard":
        assert value.const_value is not None
        np.testing.assert_array_equal(value.const_value.numpy(), expected)
        return
    assert producer is not None
    if producer.op_type == "Min":  # a fence
        fenced = producer.inputs[0]
        producer = None if fenced is None else fenced.producer()
    assert producer is not None
    stored = producer.inputs[0]
    assert stored is not None
    assert stored.const_value is not None
    if form == "qonnx":
        assert producer.op_type == "IntQuant"
        np.testing.assert_array_equal(stored.const_value.numpy(), original)
    else:
        assert producer.op_type == "DequantizeLinear"
        assert stored.const_value.dtype == ir.DataType.INT4
        np.testing.assert_array_equal(stored.const_value.numpy() * scales(), expected)


def test_large_models_converted_model_runs(large: Path, tmp_path: Path) -> None:
    anybit.convert(large, to="qdq").save(tmp_path / "result.onnx")
    x = np.ones((1, SIDE), np.float32)
    outputs = anybit.load(tmp_path / "result.onnx").run(x)
    assert np.isfinite(outputs["y"]).all()
    shutil.rmtree(tmp_path)
