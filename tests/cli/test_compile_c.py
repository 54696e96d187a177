# SPDX-License-Identifier: Apache-2.0
"""`anybit compile --to c`: the folder, the table, and what is refused."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from places import ROOT
from shell import Shell

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
        (("--limit", "flash=3KB"), "Most are of sum_1: 2."),
        (("--limit", "flash=1MB,ram=100"), "limit of 100 bytes. Most is in use in sum_1"),
        (("--limit", "rom=3KB"), "write flash=64KB, ram=16KB"),
        (("--name", "int"), "'int' cannot be the name"),
        (("--io", "bytes"), "--io must be floats or codes"),
        (("--io", "codes"), "use --io floats"),
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
