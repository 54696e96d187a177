# SPDX-License-Identifier: Apache-2.0
"""`anybit compile --to c`: the folder, the table, and what is refused."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from places import ROOT
from shell import Shell

import anybit

DIGITS = str(ROOT / "examples" / "digits_w4a4.onnx")
TO_C = "compile", DIGITS, "--to", "c", "-o"


@pytest.fixture
def shell(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    return Shell(capfd, monkeypatch, tmp_path)


def test_folder_holds_source_with_hash_of_model(shell: Shell) -> None:
    record = json.loads(shell(*TO_C, "kws", "--name", "kws", "--json")[1])["c"]
    assert {path.name for path in Path("kws").iterdir()} == set(record["files"])
    header = Path("kws/kws.h").read_text()
    assert f'"{hashlib.sha256(Path(DIGITS).read_bytes()).hexdigest()}"' in header
    assert f"#define KWS_ARENA_SIZE {record['ram']}\n" in header
    assert sum(layer["flash"] for layer in record["layers"]) == record["flash"]
    assert max(layer["ram"] for layer in record["layers"]) == record["ram"]
    assert [layer["weight_bits"] for layer in record["layers"]] == [0, 4, 4, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--limit", "flash=3KB"), "Largest layer: sum_1, 2."),
        (("--limit", "flash=1MB,ram=100"), "of RAM, limit 100 bytes. Most is in use in sum_1"),
        (("--limit", ""), "write flash=64KB, ram=16KB"),
        (("--limit", "rom=3KB"), "write flash=64KB, ram=16KB"),
        (("--limit", "ram=1KB,ram=2KB"), "write flash=64KB, ram=16KB"),
        (("--name", "int"), "'int' cannot be the name"),
        (("--io", "bytes"), "--io must be floats or codes"),
        (
            ("--io", "codes"),
            "use --io floats, or quantize the float model with --integer-only --outputs int8",
        ),
        (("--layout", "fast"), "--layout must be size or speed"),
        (("--time",), "leave out --to c"),
    ],
)
def test_refusals_write_nothing(options: tuple[str, ...], message: str, shell: Shell) -> None:
    assert message in shell.fails(*TO_C, "net", *options)
    assert not Path("net").exists()


def test_float_nodes_are_named_with_remedy(shell: Shell) -> None:
    model = onnx.load(DIGITS)
    output = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("Softmax", [output], ["p"], "scores"))
    model.graph.output[0].name = "p"
    onnx.save(model, "m.onnx")
    message = shell.fails("compile", "m.onnx", "--to", "c", "-o", "net")
    assert "1 node stays float: scores (Softmax)" in message
    assert "--integer-only" in message
    assert not Path("net").exists()


@pytest.mark.skipif(None in map(shutil.which, ("cc", "cmake")), reason="no C compiler or cmake")
@pytest.mark.parametrize("io", ["floats", "codes"])
def test_self_test_builds_and_passes(io: str, shell: Shell) -> None:
    model = DIGITS
    if io == "codes":
        model = "layer.onnx"
        onnx.save(make_quantized_layer(), model)
    assert shell("compile", model, "--to", "c", "-o", "net", "--io", io)[0] == 0
    header = Path("net/net.h").read_text()
    assert ("float" in header) == (io == "floats")
    assert ("#define NET_OUTPUT_SCALE 1.0f\n" in header) == (io == "codes")
    for command in (["cmake", "-B", "b", "net"], ["cmake", "--build", "b"]):
        subprocess.run(command, check=True, capture_output=True)
    assert subprocess.run(["b/net_test"], capture_output=True, check=True).stdout == b"ok\n"


@pytest.mark.skipif(None in map(shutil.which, ("cc", "cmake")), reason="no C compiler or cmake")
def test_quantized_outputs_give_c_without_floats(shell: Shell) -> None:
    float_model, data = (
        str(ROOT / "examples" / name) for name in ("digits_float.onnx", "digits.npz")
    )
    options = "--integer-only", "--outputs", "int8", "--scales", "power-of-two", "--json"
    record = json.loads(shell("quantize", float_model, "-o", "q.onnx", "--data", data, *options)[1])
    assert record["layers"][-1]["name"] == "y_output"
    assert shell("compile", "q.onnx", "--to", "c", "--io", "codes", "-o", "net")[0] == 0
    for name in ("net.c", "net.h"):
        code = re.sub(r"/\*.*?\*/", "", Path("net", name).read_text(), flags=re.DOTALL)
        assert not re.search("float|double", code)
    header = Path("net/net.h").read_text()
    scales = [float(text) for text in re.findall(r"PUT_SCALE (\S+)f\n", header)]
    zeros = [int(text) for text in re.findall(r"PUT_ZERO_POINT \((\S+)\)\n", header)]
    x = np.load(data)["x"][:20]
    codes = np.clip(np.rint(x / scales[0]) + zeros[0], 0, 255).astype(np.uint8)
    Path("main.c").write_text(RUN_ROWS)
    subprocess.run(["cc", "-Inet", "main.c", "net/net.c", "-o", "rows"], check=True)
    printed = subprocess.run(["./rows"], input=codes.tobytes(), capture_output=True, check=True)
    y = np.frombuffer(printed.stdout, np.int8).reshape(20, 10)
    expected = anybit.load("q.onnx").run(x)["y"]
    np.testing.assert_array_equal((y - zeros[1]) * np.float32(scales[1]), expected)


RUN_ROWS = """
#include <stdio.h>
#include "net.h"
int main(void)
{
    static int32_t arena[(NET_ARENA_SIZE + 3) / 4];
    uint8_t in[NET_INPUT_SIZE];
    int8_t out[NET_OUTPUT_SIZE];
    while (fread(in, 1, sizeof in, stdin) == sizeof in) {
        net_run(in, out, arena);
        fwrite(out, 1, sizeof out, stdout);
    }
    return 0;
}
"""


def make_quantized_layer() -> onnx.ModelProto:
    """Return a product with quantizers of 5 bits at its input and 3 bits at its output."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 2]>
        g (float[1, 3] x) => (float[1, 2] y)
        <float[3, 2] w = {1, -2, 3, 1, -1, 2}, float one = {1}, float half = {0.5},
         float zero = {0}, float three = {3}, float five = {5}> {
          q = qonnx.custom_op.general.Quant<signed=1, narrow=0, rounding_mode="ROUND">
            (x, half, zero, five)
          v = qonnx.custom_op.general.Quant<signed=1, narrow=0, rounding_mode="ROUND">
            (w, one, zero, three)
          s = MatMul(q, v)
          y = qonnx.custom_op.general.Quant<signed=0, narrow=0, rounding_mode="ROUND">
            (s, one, zero, three)
        }"""
    )


@pytest.mark.parametrize("end", ["input", "output"])
def test_codes_without_one_scale_are_refused(end: str, shell: Shell) -> None:
    model = make_quantized_layer()
    node = model.graph.node[0] if end == "input" else model.graph.node[-1]
    factors = np.linspace(1, 2, 3 if end == "input" else 2, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(factors, "factors"))
    if end == "input":
        model.graph.node.insert(0, onnx.helper.make_node("Mul", ["x", "factors"], ["scaled"]))
        node.input[0] = "scaled"
    else:
        node.output[0] = "q_y"
        model.graph.node.append(onnx.helper.make_node("Mul", ["q_y", "factors"], ["y"]))
    onnx.save(model, "m.onnx")
    assert shell("compile", "m.onnx", "--to", "c", "-o", "floats")[0] == 0
    message = shell.fails("compile", "m.onnx", "--to", "c", "-o", "net", "--io", "codes")
    assert f"{end} 0 ({'x' if end == 'input' else 'y'})" in message
    assert "--integer-only --outputs int8" in message
