# SPDX-License-Identifier: Apache-2.0
"""`anybit quantize`: the table, the verdict and the exit status."""

import errno
import json
import os
import re
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from float_models import attention, convolutions, data_for
from rich.console import Console
from shell import Shell
from small_networks import NETWORKS

import anybit
from anybit.cli._quality import show_quality
from anybit.metrics.output_quality import OutputQuality
from anybit.ptq import QualityMetrics
from anybit.ptq.calibration import calibration_stats as stats


@pytest.fixture
def files(shell: Shell) -> Shell:
    onnx.save(convolutions(), "net.onnx")
    np.savez("data.npz", x=np.concatenate([batch["x"] for batch in data_for("convolutions")]))
    return shell


def test_quantize_prints_layers_and_quality(files: Shell) -> None:
    code, out, err = files("quantize", "net.onnx", "-o", "q.onnx", "--data", "data.npz")
    assert (code, err) == (0, "")
    for name in ("first", "depthwise", "pointwise", "up", "head"):
        assert name in out
    assert "q.onnx written, 5 layers" in out
    assert "On 6 held-out samples (few: give hundreds): SQNR " in out
    assert anybit.load("q.onnx").run(np.zeros((2, 3, 8, 8), np.float32))["y"].shape == (2, 10)


def test_quantize_omits_empty_columns(files: Shell) -> None:
    code, out, _ = files("quantize", "net.onnx", "-o", "q.onnx")
    assert code == 0
    assert "weights" in out
    assert not {"SQNR", "smoothed"} & set(out.split())
    anybit.quantize("net.onnx").save("r.onnx")
    assert Path("q.onnx").read_bytes() == Path("r.onnx").read_bytes()


def test_quantize_prints_json(files: Shell) -> None:
    arguments = ["quantize", "net.onnx", "-o", "q.onnx", "--data", "data.npz", "--json"]
    code, out, _ = files(*arguments, "--keep", "head")
    document = json.loads(out)
    assert code == 0
    assert document["verdict"]["passed"] is True
    assert document["skipped"] == {"head": "float was requested"}
    assert [layer["name"] for layer in document["layers"]] == [
        "first",
        "depthwise",
        "pointwise",
        "up",
    ]


def test_quantize_never_replaces_the_float_model(files: Shell) -> None:
    before = Path("net.onnx").read_bytes()
    line = files.fails("quantize", "net.onnx", "-o", "./net.onnx", "--data", "data.npz")
    assert "--output would overwrite an input (MODEL)" in line
    assert Path("net.onnx").read_bytes() == before


def test_layer_option_sets_formats(files: Shell) -> None:
    words = ["--layer", "*wise=int4/uint4", "--layer", "head=float", "--keep", "*elu"]
    arguments = ["quantize", "net.onnx", "-o", "q.onnx", "--data", "data.npz", "--json"]
    code, out, _ = files(*arguments, *words)
    document = json.loads(out)
    assert code == 0
    assert [(layer["weights"], layer["activations"]) for layer in document["layers"]] == [
        *(("int8", "uint8"), ("int4", "uint4"), ("int4", "uint4"), ("int8", "uint8")),
    ]
    assert document["skipped"] == {"head": "float was requested"}


def test_budget_option_searches_mixed_precision(files: Shell) -> None:
    arguments = ["quantize", "net.onnx", "-o", "q.onnx", "--data", "data.npz"]
    code, out, _ = files(*arguments, "--budget", "45dB")
    assert code == 0
    assert "of MACs in more than 8 bits" in out
    assert "outputs" in out
    assert "; uniform int8/uint8: " in out
    assert "predicted SQNR" in " ".join(out.split())


def test_cluster_and_cache_options_are_passed_on(files: Shell, tmp_path: Path) -> None:
    arguments = ["quantize", "net.onnx", "--data", "data.npz", "-o"]
    assert files(*arguments, "a.onnx")[0] == 0
    assert files(*arguments, "b.onnx", "--cache", str(tmp_path / "c"))[0] == 0
    assert list((tmp_path / "c").glob("*.npz"))
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    if not find_spec("ray"):
        failed = files.fails(*arguments, "d.onnx", "--cluster", "auto")
        assert 'pip install "anybit[ray]"' in failed


def test_quantize_weights_without_data(files: Shell) -> None:
    code, out, _ = files("quantize", "net.onnx", "-o", "q.onnx", "--weights", "int4")
    assert code == 0
    assert out.splitlines()[-1] == (
        "Quality not measured: there are no data. Quantize with --data DATA, or compare both "
        "models with `anybit evaluate`."
    )


def test_quantize_without_data_names_evaluate(files: Shell) -> None:
    code, out, _ = files("quantize", "net.onnx", "-o", "q.onnx", "--weights", "mxfp4")
    assert code == 0
    assert "--data" in out.splitlines()[-1]
    assert "anybit evaluate" in out.splitlines()[-1]


def test_cache_on_a_full_disk_names_the_file(files: Shell, monkeypatch) -> None:
    """Part of a file is written when the disk is full; the system does not say to which file."""

    def write_half(path: Path, arrays: dict[str, np.ndarray]) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(stats, "write_members", write_half)
    arguments = ["quantize", "net.onnx", "-o", "q.onnx", "--data", "data.npz", "--cache", "cache"]
    line = files.fails(*arguments)
    assert re.search(r"cache/[0-9a-f]+\.npz", line)
    assert "No space left on device" in line
    assert list(Path("cache").rglob("*")) == []
    assert not Path("q.onnx").exists()


def test_to_option_converts_the_result(files: Shell) -> None:
    arguments = ["quantize", "net.onnx", "-o", "q.onnx", "--weights", "int8", "--to", "qdq"]
    code, out, _ = files(*arguments)
    assert code == 0
    assert "note: needs ONNX Runtime" in out
    domains = {node.domain for node in onnx.load("q.onnx").graph.node}
    assert domains == {""}
    code, out, _ = files(*arguments, "--json")
    conversion = json.loads(out)["conversion"]
    assert (code, conversion["form"], conversion["exact"]) == (0, "qdq", True)
    assert conversion["remarks"][0].startswith("needs ONNX Runtime")
    assert "is not one of" in files.fails(*arguments[:-1], "qlinear")
    result = anybit.quantize("net.onnx", weights="int8", activations="float")
    anybit.convert(result, to="qdq").save("c.onnx")
    assert Path("c.onnx").read_bytes() == Path("q.onnx").read_bytes()


def test_to_option_notes_quantizers_that_expand(files: Shell) -> None:
    np.save("shifted.npy", np.load("data.npz")["x"] + 1)
    arguments = ["quantize", "net.onnx", "-o", "q.onnx", "--data", "shifted.npy", "--to", "qdq"]
    _, out, _ = files(*arguments)
    assert "quantizers became standard operators, which give the same values" in out
    assert "--activations int8 has no zero-points" in out
    _, out, _ = files(*arguments, "--activations", "int8")
    assert "standard operators" not in out


def test_quality_check_fails_below_the_threshold(shell: Shell) -> None:
    onnx.save(attention(), "net.onnx")
    np.save("data.npy", np.concatenate([batch["x"] for batch in data_for("attention")]))
    words = ["--weights", "bipolar", "--activations", "bipolar"]
    code, out, _ = shell("quantize", "net.onnx", "-o", "q.onnx", "--data", "data.npy", *words)
    assert code == 1
    assert "quality check failed: SQNR " in out
    assert "dB is below 10 dB; use wider formats, or set the limit with --fail-below" in out
    assert Path("q.onnx").exists()


def test_fail_below_sets_thresholds(files: Shell) -> None:
    arguments = ["quantize", "net.onnx", "-o", "q.onnx", "--data", "data.npz", "--effort", "fast"]
    code, out, _ = files(*arguments, "--fail-below", "150dB")
    assert code == 1
    assert "dB is below 150 dB; use wider formats, or set the limit with --fail-below" in out
    code, out, _ = files(*arguments, "--weights", "bipolar", "--fail-below", "none")
    assert code == 0
    assert "quality check failed" not in out
    code, out, _ = files(*arguments, "--fail-below", "10dB, 50%", "--json")
    assert code == 0
    assert json.loads(out)["verdict"]["thresholds"] == {
        "sqnr": 10,
        "agreement": 0.5,
        "named": True,
    }
    code, out, _ = files(*arguments, "--fail-below", "150dB", "--json")
    assert code == 1
    assert "is below 150 dB" in json.loads(out)["verdict"]["failures"][0]


def test_quality_lists_parts_of_outputs(files: Shell) -> None:
    proto = onnx.load("net.onnx")
    proto.graph.node.append(onnx.helper.make_node("Sigmoid", ["y"], ["chances"], name="sigmoid"))
    joined = onnx.helper.make_node("Concat", ["y", "chances"], ["scores_and_probabilities"], axis=1)
    proto.graph.node.append(joined)
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info(joined.output[0], onnx.TensorProto.FLOAT, ["n", 20])
    )
    onnx.save(proto, "two.onnx")
    arguments = ["quantize", "two.onnx", "-o", "q.onnx", "--data", "data.npz", "--effort", "fast"]
    code, out, err = files(*arguments, "--weights", "int2", "--fail-below", "40dB")
    assert code == 1, err
    words = " ".join(out.split())
    assert "scores_and_probabilities[:, 0:10]" in words
    assert "scores_and_probabilities[:, 10:20]" in words
    assert "of scores_and_probabilities[:, 0:10] is below 40 dB; use wider formats" in words
    code, out, _ = files("evaluate", "two.onnx", "q.onnx", "--data", "data.npz")
    assert code == 0
    words = " ".join(out.split())
    assert "q.onnx: the worst of 2 outputs and parts is scores_and_probabilities[:, 0:10]" in words


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("count", [1, 2, 64])
def test_quality_fits_the_terminal(columns: int, count: int) -> None:
    kinds = ("float", "distribution", "logits", "exact")
    outputs = tuple(
        OutputQuality(f"scores_and_boxes[..., {at}:{at + 1}]", kinds[at % 4], -at, 0.5, 0.25)
        for at in range(count)
    )
    quality = QualityMetrics(
        *(-63.0, 0.25, 1234, False), correlation=0.5, logits_agreement=0.25, outputs=outputs
    )
    console = Console(width=columns, file=StringIO(), highlight=False)
    show_quality(quality, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= columns
    rows = [line.split()[1] for line in lines if line.startswith(" scores_and_boxes")]
    shown = range(max(count - 12, 0), count) if count > 1 else ()
    assert rows == [f"{at}:{at + 1}]" for at in shown]
    assert any("the 12 worst of 64" in line for line in lines) == (count == 64)
    words = " ".join(" ".join(lines).split())
    assert "On 1234 held-out samples: SQNR -63.0 dB, correlation 0.5000, agreement" in words
    assert "is below 10 dB" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--activations", "uint8"], "add --data 'FILE.npz'"),
        (["--weights", "int4 perchannel"], 'did you mean "per-channel"'),
        (["--weights", "int4", "per-channel"], 'such as --weights "int4 per-channel"'),
        (["--data", "none.npz"], "none.npz: no such file"),
        (["--data", "data.npz", "--keep", "tail"], "--keep 'tail': no layer matches"),
        (["--data", "data.npz", "--budget", "3 dBm"], "--budget '3 dBm': give a size (\"4MB\""),
        (["--data", "data.npz", "--budget", "1B"], "--budget '1B': the least possible is"),
        (["--data", "data.npz", "--budget", "200dB"], "an SQNR must be at most 150dB"),
        (["--data", "data.npz", "--budget", "2000%bops"], "a share must be at most 1000%"),
        (["--outputs", "int8"], "--outputs 'int8' needs calibration data: add --data"),
        (["--weights", "fp8"], "--weights 'fp8': unknown format"),
        (["--budget", "30dB"], "--budget '30dB' needs data"),
        (["--layer", "head"], "--layer 'head': use NAME=SPEC"),
        (["--data", "data.npz", "--fail-below", "10"], "--fail-below '10': give an SQNR"),
        (["--fail-below", "10dB"], "--fail-below '10dB': the check needs data"),
        (["--layer", "head=int4", "--layer", "head=int8"], "--layer: 'head' is given twice"),
        (["--layer", "heat=int4"], "--layer 'heat': no layer matches; there are head"),
    ],
)
def test_quantize_rejects_invalid_options(files: Shell, arguments: list[str], message: str) -> None:
    assert message in files.fails("quantize", "net.onnx", "-o", "q.onnx", *arguments)
    assert not Path("q.onnx").exists()


def test_report_holds_the_command_with_effort(files: Shell) -> None:
    arguments = ("quantize", "net.onnx", "-o", "q.onnx", "--data", "data.npz", "--effort")
    code, _, _ = files(*arguments, "fast", "--report", "r.json")
    assert code == 0
    assert "--effort fast" in json.loads(Path("r.json").read_text())["command"]
    code, _, err = files(*arguments, "slow")
    assert code == 2
    assert "--effort 'slow': unknown value \"slow\"; known: fast, default" in err


def test_quantize_ties_states_and_rejects_other_options(shell: Shell) -> None:
    network = NETWORKS["gru"]
    onnx.save(network.make(), "gru.onnx")
    np.savez("data.npz", **network.draw(80, 1))
    common = "quantize", "gru.onnx", "-o", "q.onnx", "--data", "data.npz", "--effort", "fast"
    integers = *common, "--integer-only", "--outputs", "int8"
    assert shell(*integers, "--state", "h=state")[0] == 0
    compile_options = "--to", "c", "--io", "codes", "-o", "net"
    assert shell("compile", "q.onnx", *compile_options)[0] == 0
    header = Path("net/net.h").read_text()
    assert "Input 1 (h)" in header
    assert "Output 1 (state)" in header
    for number in ("SCALE", "ZERO_POINT"):
        assert len(set(re.findall(rf"PUT1_{number} (\S+)\n", header))) == 1
    assert "use INPUT=OUTPUT" in shell.fails(*integers, "--state", "h")
    assert "'h' is given twice" in shell.fails(*integers, "--state", "h=y", "--state", "h=state")
    assert "--state 'h': unknown output \"z\"" in shell.fails(*integers, "--state", "h=z")
    assert "add --outputs 'int8'" in shell.fails(*common, "--state", "h=state")
