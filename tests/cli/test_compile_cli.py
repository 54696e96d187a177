# SPDX-License-Identifier: Apache-2.0
"""`anybit compile`: the table, the file, the comparison with the float graph."""

import json
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array
from shell import Shell
from small_models import DOMAIN

import anybit
from anybit import CompiledModel, Model
from anybit.cli.compile import compile as compile_command
from anybit.compiler import timing
from anybit.compiler.report import Seconds, Speed
from anybit.quant_types.layer_info import Guarantee

QUANT = {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"}


def layer(*, scale=0.25, last="Relu"):
    """x[n, 4], quantized to 4 bits, times 4-bit weights, quantized to 2, then a float node."""
    random = np.random.default_rng(0)
    weights = np.rint(random.uniform(-8, 7, (4, 3))).astype(np.float32) * np.float32(0.5)
    constants = [
        from_array(weights, "w"),
        from_array(np.array(scale, np.float32), "step"),
        from_array(np.array(0.5, np.float32), "half"),
        from_array(np.array(0, np.float32), "none"),
        from_array(np.array(4, np.float32), "four"),
        from_array(np.array(2, np.float32), "two"),
        from_array(np.array(1, np.float32), "one"),
    ]
    nodes = [
        helper.make_node(
            "Quant", ["x", "step", "none", "four"], ["xq"], "in", domain=DOMAIN, **QUANT
        ),
        helper.make_node(
            "Quant", ["w", "half", "none", "four"], ["wq"], "wt", domain=DOMAIN, **QUANT
        ),
        helper.make_node("MatMul", ["xq", "wq"], ["sum"], "product"),
        helper.make_node(
            "Quant", ["sum", "one", "none", "two"], ["yq"], "out", domain=DOMAIN, **QUANT
        ),
        helper.make_node(last, ["yq"], ["y"], "last"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["n", 4])],
        [value("y", TensorProto.FLOAT, ["n", 3])],
        constants,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 2)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def ending_in_floats(last: str) -> onnx.ModelProto:
    """`layer` with a step that makes it bounded, and without the quantizer behind its sum."""
    model = layer(scale=0.1, last=last)
    (out,) = [node for node in model.graph.node if node.name == "out"]
    model.graph.node.remove(out)
    model.graph.node[-1].input[0] = "sum"
    return model


@pytest.fixture
def shell(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    made = Shell(capfd, monkeypatch, tmp_path)
    onnx.save(layer(), "layer.onnx")
    onnx.save(layer(last="Softmax"), "soft.onnx")
    np.save("rows.npy", np.random.default_rng(1).standard_normal((50, 4)).astype(np.float32))
    return made


def test_compile_prints_layers(shell: Shell) -> None:
    code, out, err = shell("compile", "layer.onnx", "-o", "fast.onnx")
    assert (code, err) == (0, "")
    heading, _, row = (line.split() for line in out.splitlines()[1:4])
    assert heading[:5] == ["layer", "operator", "guarantee", "bits", "MACs"]
    assert row[:7] == ["product", "MatMul", "exact", "4", "x", "4", "12"]
    assert "4 codes by thresholds" in out
    assert "1 of 1 layer, 100 % of MACs on integers: 1 exact" in out
    assert "fast.onnx written, 1 integer region" in out


def test_compiled_file_runs(shell: Shell) -> None:
    for name in ("layer", "soft"):
        shell("compile", f"{name}.onnx", "-o", "fast.onnx")
        shell("run", f"{name}.onnx", "--input", "rows.npy", "--output", "y.npz")
        code, out, _ = shell("run", "fast.onnx", "--input", "rows.npy", "--expect", "y.npz")
        assert code == 0
        assert "as expected" in out


def test_compile_writes_a_report(shell: Shell) -> None:
    code, out, _ = shell("compile", "layer.onnx", "-o", "f.onnx", "--json", "--report", "r.json")
    assert code == 0
    record = json.loads(out)
    assert record == json.loads(Path("r.json").read_text())
    assert record["schema"] == 1
    assert record["compilation"]["coverage"] == {"layers": 1, "of": 1, "macs": 1.0}
    (product,) = record["layers"]
    assert product["layer"]["name"] == "product"
    assert (product["compiled"]["guarantee"], product["compiled"]["levels"]) == ("exact", 4)


def test_verify_names_its_option_for_other_arrays(shell: Shell) -> None:
    np.savez("other.npz", image=np.ones((2, 4), np.float32))
    error = shell.fails("compile", "soft.onnx", "-o", "f.onnx", "--verify", "other.npz")
    assert "--verify other.npz holds image; the model's inputs are " in error


def test_verify_passes_on_equal_results(shell: Shell) -> None:
    code, out, _ = shell("compile", "soft.onnx", "-o", "f.onnx", "--verify", "rows.npy")
    assert code == 0
    assert "3 tensors compared: 3 equal, 0 different" in out
    assert "Verified: 2 of 2 tensors of codes compared, all equal; all else is equal." in out


def test_verify_allows_last_bits_after_bounded_layers(shell: Shell) -> None:
    """Accept rounding differences of a float sum and of the layers that follow it."""
    for last, differ in (("Relu", "y differs"), ("Softmax", "sum, y differ")):
        onnx.save(ending_in_floats(last), "floats.onnx")
        code, out, _ = shell("compile", "floats.onnx", "-o", "f.onnx", "--verify", "rows.npy")
        assert code == 0
        codes = "Verified: 1 of 1 tensor of codes compared, all equal"
        assert f"{codes}; {differ} in the last bits, by at most" in out
        assert "This is expected after bounded layers" in out


def test_verify_fails_on_more_than_last_bits(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(ending_in_floats("Relu"), "floats.onnx")
    arguments = ("compile", "floats.onnx", "-o", "f.onnx", "--verify", "rows.npy")
    run = Model.run

    def off(self, inputs, **more):
        results = run(self, inputs, **more)
        results["y"][0, 0] += np.float32(1e-3)
        return results

    monkeypatch.setattr(Model, "run", off)
    code, out, _ = shell(*arguments)
    assert code == 1
    assert "Not verified: 1 of 1 tensor of codes compared, all equal; y differs" in out


def test_verify_fails_on_differing_codes(shell: Shell) -> None:
    onnx.save(layer(scale=0.1), "odd.onnx")
    code, out, _ = shell("compile", "odd.onnx", "-o", "f.onnx", "--verify", "rows.npy")
    assert code == 1
    assert "Not verified: 2 of 2 tensors of codes compared, but yq differs; y differs" in out
    assert "After a bounded layer float32 itself may give other codes, as in yq:" in out


def test_verify_counts_compared_tensors(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Model.run
    monkeypatch.setattr(Model, "run", lambda *arguments: {"y": run(*arguments)["y"]})
    code, out, _ = shell("compile", "layer.onnx", "-o", "f.onnx", "--verify", "rows.npy")
    assert code == 0
    assert "Verified: 0 of 2 tensors of codes compared; all else is equal." in out


def test_verify_reads_data_before_writing(shell: Shell) -> None:
    arguments = ("compile", "layer.onnx", "-o", "f.onnx", "--verify")
    np.save("wide.npy", np.zeros((2, 5), np.float32))
    assert "missing.npz" in shell.fails(*arguments, "missing.npz")
    assert "must have shape [n, 4], got [2, 5]" in shell.fails(*arguments, "wide.npy")
    fixed = layer()
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(fixed, "two.onnx")
    np.save("three.npy", np.zeros((3, 4), np.float32))
    line = shell.fails("compile", "two.onnx", "-o", "f.onnx", "--verify", "three.npy")
    assert "a multiple of 2 rows" in line
    assert not Path("f.onnx").exists()


def test_verify_explains_nan(shell: Shell) -> None:
    np.save("nan.npy", np.full((2, 4), np.nan, np.float32))
    line = shell.fails("compile", "layer.onnx", "-o", "f.onnx", "--verify", "nan.npy")
    assert line.startswith("the model cannot be run: node 'integers_1' (IntegerNetwork): the input")
    assert "has NaN, which the quantizer that reads it keeps; remove NaN before" in line


@pytest.mark.parametrize("kind", ["name", "path", "symbolic", "hard"])
def test_compile_never_replaces_its_input(shell: Shell, kind: str) -> None:
    """Refuse the input as output: a file compared with itself is always equal."""
    output = {"name": "layer.onnx", "path": "./../" + Path.cwd().name + "/layer.onnx"}.get(kind)
    if output is None:
        output = "other.onnx"
        link = os.symlink if kind == "symbolic" else os.link
        link("layer.onnx", output)
    before = Path("layer.onnx").read_bytes()
    arguments = ["--verify", "rows.npy", "--time", "--report", "r.json"]
    line = shell.fails("compile", "layer.onnx", "-o", output, *arguments)
    assert "--output would overwrite an input (MODEL)" in line
    assert "another name" in line
    assert Path("layer.onnx").read_bytes() == before
    assert not Path("r.json").exists()


def test_verify_runs_the_written_file(shell: Shell, monkeypatch) -> None:
    """Verify the file on disk, with the input ranges and the guarantee of the compilation."""
    plain = layer()
    plain.graph.node.pop(0)
    plain.graph.node[1].input[0] = "x"
    onnx.save(plain, "plain.onnx")
    np.save("codes.npy", np.random.default_rng(2).integers(-8, 8, (50, 4)).astype(np.float32) / 4)
    arguments = ["compile", "plain.onnx", "-o", "f.onnx", "--input-range", "x=int8/4", "--verify"]
    code, out, _ = shell(*arguments, "codes.npy")
    assert code == 0
    assert re.search(r"yq .*Quant", out)
    assert "2 tensors compared: 2 equal, 0 different" in out
    # Outside the range the file returns the nearest codes.
    code, out, _ = shell(*arguments, "rows.npy")
    assert code == 1
    assert re.search(r"But input 'x' holds 0\.\d+, outside its range", out)

    def damaged(self, path):
        other = Path("other.onnx")
        save(self, other)
        file = onnx.load(other)
        (words,) = [
            tensor for tensor in file.graph.initializer if tensor.name.endswith("_integers")
        ]
        threshold = np.frombuffer(words.raw_data, np.int32).copy()
        threshold[-1] += 1
        words.raw_data = threshold.tobytes()
        onnx.save(file, path)

    save = CompiledModel.save
    monkeypatch.setattr(CompiledModel, "save", damaged)
    assert "is not what was compiled" in shell.fails(*arguments, "codes.npy")


def test_verify_runs_all_rows_of_a_one_row_model(shell: Shell) -> None:
    for name in ("layer", "soft"):
        model = onnx.load(f"{name}.onnx")
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1
        onnx.save(model, "one.onnx")
        code, out, _ = shell("compile", "one.onnx", "-o", "f.onnx", "--verify", "rows.npy")
        assert code == 0
        assert re.search(r"yq .* 150 ", out)


def test_compile_lists_reasons_of_float_layers(shell: Shell) -> None:
    onnx.save(layer(scale=0.1), "odd.onnx")
    code, out, _ = shell("compile", "odd.onnx", "-o", "f.onnx", "--guarantee", "exact")
    assert code == 0
    assert "0 of 1 layer, 0 % of MACs on integers" in out
    assert "only exact was asked for" in out
    assert "No layer was compiled: f.onnx computes as odd.onnx does." in out


def test_compile_rejects_a_model_without_quantizers(shell: Shell) -> None:
    model = layer()
    nodes = model.graph.node
    kept = [node for node in nodes if node.op_type != "Quant"]
    kept[0].input[:] = ["x", "w"]
    kept[1].input[0] = "sum"
    del nodes[:]
    nodes.extend(kept)
    onnx.save(model, "float.onnx")
    message = shell.fails("compile", "float.onnx", "-o", "f.onnx")
    assert "float.onnx has no quantizers" in message
    assert "anybit quantize" in message
    assert not Path("f.onnx").exists()
    shell("compile", "layer.onnx", "-o", "fast.onnx")
    message = shell.fails("compile", "fast.onnx", "-o", "f.onnx")
    assert "fast.onnx is compiled already" in message
    assert not Path("f.onnx").exists()


def test_compile_rejects_invalid_options(shell: Shell) -> None:
    assert "--output must be a file" in shell.fails("compile", "layer.onnx", "-o", "no/f.onnx")
    assert "'true'" in shell.fails("compile", "layer.onnx", "-o", "f.onnx", "--guarantee", "true")
    assert not Path("f.onnx").exists()


def test_run_with_compiled_engine(shell: Shell) -> None:
    shell("run", "layer.onnx", "--input", "rows.npy", "--output", "y.npz")
    arguments = ["run", "layer.onnx", "--engine", "compiled", "--input", "rows.npy"]
    code, out, _ = shell(*arguments, "--expect", "y.npz")
    assert code == 0
    assert "as expected" in out


def test_input_range_option_enables_integer_layers(shell: Shell) -> None:
    arguments = ["compile", "layer.onnx", "-o", "f.onnx", "--input-range", "x=int8/4"]
    code, out, _ = shell(*arguments)
    assert code == 0
    assert "1 exact" in out
    assert "a range must be such as" in shell.fails(*arguments[:-1], "x=wide")


def test_compile_writes_an_html_report(shell: Shell) -> None:
    evil = layer(scale=0.1)
    evil.graph.node[2].name = "<script>&"
    onnx.save(evil, "evil.onnx")
    code, _, _ = shell("compile", "evil.onnx", "-o", "f.onnx", "--report", "r.html")
    assert code == 0
    text = Path("r.html").read_text()
    assert text.count("<script") == 1
    assert "&lt;script&gt;&amp;" in text
    assert "default-src 'none'" in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(svg)
    assert "1 of 1 layer, 100 % of MACs on integers" in text
    assert "not .txt" in shell.fails("compile", "evil.onnx", "-o", "f.onnx", "--report", "r.txt")


def test_time_option_measures(shell: Shell) -> None:
    code, out, _ = shell("compile", "layer.onnx", "-o", "f.onnx", "--time")
    assert code == 0
    assert re.search(r"s per row on one thread: [\d.]+ x as fast as the float network without", out)
    assert "static int8 (ONNX Runtime)" in out
    assert "name it with --float" in out
    (row,) = re.findall(r"product .*", out)
    assert re.search(r"[0-9] (us|ms|s)", row)
    _, out, _ = shell("compile", "layer.onnx", "-o", "f.onnx", "--time", "--json")
    (row,) = json.loads(out)["layers"]
    product = row["compiled"]
    assert product["seconds"] > 0
    assert product["float_seconds"] > 0
    assert product["place"] == [0, 1]


@pytest.mark.parametrize(("mine", "slower"), [(3e-3, True), (0.9e-3, False)])
def test_compile_warns_about_a_slower_model(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, mine: float, slower: bool
) -> None:
    speed = Speed(
        Seconds(mine, mine), Seconds(2e-3, 2e-3), Seconds(1e-3, 1e-3), None, "float model"
    )
    monkeypatch.setattr(timing, "measure_speed", lambda *_, **__: speed)
    proto = onnx.load("layer.onnx")
    (last,) = proto.graph.output
    proto.graph.node.append(onnx.helper.make_node("Softmax", [last.name], ["likely"]))
    last.name = "likely"
    onnx.save(proto, "mixed.onnx")
    code, out, _ = shell("compile", "mixed.onnx", "-o", "f.onnx")
    assert code == 0
    assert ("slower than the float model: 3 ms per row" in out) == slower
    assert ("run the float model" in out) == slower
    _, out, _ = shell("compile", "layer.onnx", "-o", "f.onnx")
    assert "slower" not in out


@pytest.mark.parametrize("guarantee", Guarantee)
def test_compile_documents_each_guarantee_by_its_meaning(guarantee: Guarantee) -> None:
    for function in (compile_command, anybit.compile):
        assert guarantee.meaning in " ".join(str(function.__doc__).lower().split())
