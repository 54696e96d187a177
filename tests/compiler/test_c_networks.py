# SPDX-License-Identifier: Apache-2.0
"""Float networks, quantized with their outputs, in C: the bytes of `anybit run`, without floats."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from c_batches import Case, make_case, run_batch
from small_networks import NETWORKS

import anybit
from anybit.errors import ModelError, OptionError

CHECKED = ("gcc", "-std=c99", "-O0", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ROWS = 5


def quantize(name: str, **options: object) -> anybit.QuantizationResult:
    network = NETWORKS[name]
    data, options = network.draw(80, 1), {"outputs": "int8", "effort": "fast", **options}
    return anybit.quantize(network.make(), data, integer_only=True, **options)


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
@pytest.mark.parametrize("scales", ["power-of-two", None])
@pytest.mark.parametrize("name", NETWORKS)
def test_network_in_c_has_the_bytes_of_the_model(
    name: str, scales: str | None, tmp_path: Path
) -> None:
    result = quantize(name, **({"scales": scales} if scales else {}))
    assert result.verdict is not None
    assert result.verdict.sqnr > 20
    assert not result.skipped
    compiled = anybit.compile(result)
    x = NETWORKS[name].draw(ROWS, 2)
    ports = compiled.engine.input_names, compiled.engine.output_names
    assert ports == (list(NETWORKS[name].inputs), list(NETWORKS[name].outputs))
    y = compiled.run(x)
    if scales:
        for port, array in anybit.load(result).run(x).items():
            np.testing.assert_array_equal(y[port], array)
    floats = compiled.to_c(tmp_path, name="floats")
    codes = compiled.to_c(tmp_path, name="codes", io="codes")
    for text in (codes.files["codes.c"], codes.files["codes.h"]):
        assert not re.search("float|double", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
    inputs = [x[port].reshape(ROWS, -1) for port in ports[0]]
    cases = [
        Case(floats, inputs, [y[port].reshape(ROWS, -1) for port in ports[1]]),
        make_case(floats.program, "codes", inputs, codes=True),
    ]
    assert run_batch(cases, (*CHECKED, *SANITIZERS), tmp_path) == []
    assert codes.constant_bytes < 16_000


PORT = re.compile(
    r"put \d \((\w+)\): (\w+)_t.*? 1 x (\d+) x (\d+) \(h.*?_SCALE (\S+)f\n.*?_POINT \((-?\d+)\)",
    re.DOTALL,
)


def order_elements(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return channels x width, or a vector, in the order of codes: width x channels."""
    return (x if x.ndim == 1 or x.shape == shape else x.T).ravel()


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
@pytest.mark.parametrize(
    ("name", "states"), [("gru", "h=state"), ("stream with state", "past=next")]
)
def test_codes_of_a_state_are_the_input_of_the_next_step(
    name: str, states: str, tmp_path: Path
) -> None:
    source, target = states.split("=")
    result = quantize(name, states={source: target})
    compiled = anybit.compile(result)
    header = compiled.to_c(tmp_path, name="cell", io="codes").files["cell.h"]
    command = ("gcc", "-std=c99", "-O2", "-shared", "-fPIC", "cell.c", "-o", "cell.so")
    subprocess.run(command, cwd=tmp_path, check=True)
    run = ctypes.CDLL(str(tmp_path / "cell.so")).cell_run
    grids, codes = {}, {}
    for port, dtype, width, channels, scale, zero in PORT.findall(header):
        grids[port] = np.float32(scale), int(zero)
        codes[port] = np.zeros((int(width), int(channels)), dtype)
    assert grids[source] == grids[target]
    codes[source] += grids[source][1]  # of zeros
    names = compiled.engine.input_names, compiled.engine.output_names
    rows = NETWORKS[name].draw(20, 3)
    state = np.zeros_like(rows[source][:1])
    arena = (ctypes.c_int32 * 1000)()
    for x in rows["x"]:
        scale, zero = grids["x"]
        limits = np.iinfo(codes["x"].dtype)
        indices = np.clip(np.rint(x / scale) + zero, limits.min, limits.max)
        codes["x"].flat = order_elements(indices, codes["x"].shape)
        inputs, outputs = (
            (ctypes.c_void_p * len(ports))(*(codes[port].ctypes.data for port in ports))
            for ports in names
        )
        assert run(inputs, outputs, arena) == 0
        expected = compiled.run({"x": x[None], source: state})
        for port in names[1]:
            scale, zero = grids[port]
            y = (codes[port].ravel().astype(np.float32) - zero) * scale
            row = order_elements(expected[port][0], codes[port].shape)
            np.testing.assert_array_equal(y, row)
        state = expected[target]
        codes[source][:] = codes[target]
    assert len(np.unique(codes[source])) > 3


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_recurrent_operators_are_refused_with_a_remedy(operator: str, tmp_path: Path) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[6, N, 4] x) => (float[6, 1, N, 5] y) {{
          y = {operator}<hidden_size = 5>(x, w, r)
        }}"""
    )
    rng = np.random.default_rng(0)
    for name, size in (("w", 4), ("r", 5)):
        values = rng.normal(0, 0.5, (1, 5 * gates, size)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    samples = [{"x": rng.normal(0, 1, (6, 1, 4)).astype(np.float32)} for _ in range(30)]
    result = anybit.quantize(proto, samples, integer_only=True, outputs="int8", effort="fast")
    with pytest.raises(ModelError, match=f"{operator}.* export one step"):
        anybit.compile(result).to_c(tmp_path)


def test_float_nodes_of_integer_networks_are_left_to_the_caller(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
          s = MatMul(x, w)
          y = Softmax(s)
        }"""
    )
    x = np.random.default_rng(0).normal(0, 1, (40, 3)).astype(np.float32)
    result = anybit.quantize(proto, x, integer_only=True, outputs="int8", effort="fast")
    with pytest.raises(ModelError, match=r"Softmax.* leave them out of the model"):
        anybit.compile(result).to_c(tmp_path)


def test_input_with_two_quantizers_has_no_codes(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 2]>
        net (float[1, 2] x) => (float[1, 2] y)
        <float[2, 2] w = {1, 2, 3, -4}, float one = {1}, float half = {0.5}, float zero = {0},
         float eight = {8}> {
          a = qonnx.custom_op.general.Quant<signed=1, narrow=0, rounding_mode="ROUND">
            (x, one, zero, eight)
          b = qonnx.custom_op.general.Quant<signed=1, narrow=0, rounding_mode="ROUND">
            (x, half, zero, eight)
          v = qonnx.custom_op.general.Quant<signed=1, narrow=0, rounding_mode="ROUND">
            (w, one, zero, eight)
          s = MatMul(a, v)
          t = MatMul(b, v)
          p = qonnx.custom_op.general.Quant<signed=1, narrow=0, rounding_mode="ROUND">
            (s, one, zero, eight)
          q = qonnx.custom_op.general.Quant<signed=1, narrow=0, rounding_mode="ROUND">
            (t, one, zero, eight)
          u = Add(p, q)
          y = qonnx.custom_op.general.Quant<signed=1, narrow=0, rounding_mode="ROUND">
            (u, one, zero, eight)
        }"""
    )
    with pytest.raises(OptionError, match=r"input 0 \(x\) has several quantizers"):
        anybit.compile(proto).to_c(tmp_path, io="codes")
