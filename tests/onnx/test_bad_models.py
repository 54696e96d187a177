# SPDX-License-Identifier: Apache-2.0
"""Hostile and broken models: one clear error each, never a crash, a hang or half a file."""

import contextlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from bad_models import BAD_MODELS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import needs_pipes
from shell import Shell
from small_models import model, node, quantized_input, quantized_weight

from anybit.errors import AnybitError, ModelError
from anybit.model import load
from anybit.onnx import read


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(proto, folder / "bad.onnx")
    return folder / "bad.onnx"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\0" * 100, "is not an ONNX model"),
        (b"PK\3\4 not an onnx file at all", "is not an ONNX model"),
        (b"\x08\x08", "holds no graph"),
        (quantized_input().SerializeToString()[:-20], "cut short"),
        (quantized_weight()[0].SerializeToString()[:150], "cut short"),
    ],
)
def test_read_refuses_other_contents(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=rf"bad\.onnx.*{message}"):
        load(tmp_path / "bad.onnx")


@needs_pipes
def test_read_refuses_missing_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, message in (
        ("missing.onnx", "no such file"),
        ("", "is a folder"),
        ("pipe", "not a regular file"),
        ("loop", "symbolic links"),
    ):
        with pytest.raises(ModelError, match=message):
            read(tmp_path / name)


def test_unreadable(tmp_path: Path) -> None:
    path = saved(quantized_input(), tmp_path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ModelError, match="Permission denied"):
        read(path)


@pytest.mark.parametrize(("proto", "message"), BAD_MODELS.values(), ids=BAD_MODELS.keys())
def test_read_bad_models(
    shell: Shell,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    proto: onnx.ModelProto,
    message: str,
) -> None:
    path = saved(proto, tmp_path)
    with pytest.raises(ModelError, match=message):
        load(path)
    assert str(path) in shell.fails("run", str(path), "--output", "out.npz")
    assert not Path("out.npz").exists()
    assert not caplog.records, "libraries below say nothing of their own"


@pytest.mark.parametrize("bitwidth", [0, -1, 2.5, np.nan])
@pytest.mark.parametrize("constant", [True, False], ids=["weight", "activation"])
def test_read_bad_widths(
    shell: Shell,
    tmp_path: Path,
    bitwidth: float,
    constant: bool,
) -> None:
    proto = quantized_weight(bitwidth)[0] if constant else quantized_input(bitwidth=bitwidth)
    message = shell.fails("run", str(saved(proto, tmp_path)), "--output", "out.npz")
    assert "the_Quant" in message
    assert "bitwidth" in message
    assert not Path("out.npz").exists()


def test_read_widths_that_turn_out_bad_at_run_time(shell: Shell, tmp_path: Path) -> None:
    proto = model(
        [node("Quant", "x one zero bits")], {"one": 1, "zero": 0}, inputs={"x": [1, 4], "bits": []}
    )
    path = saved(proto, tmp_path)
    np.savez("in.npz", x=np.ones((1, 4), np.float32), bits=np.float32(2.5))
    message = shell.fails("run", str(path), "--input", "in.npz", "--output", "out.npz")
    assert "bitwidth" in message
    assert "2.5" in message
    assert not Path("out.npz").exists()


def external(folder: Path, **entries: str) -> Path:
    proto, _ = quantized_weight()
    tensor = proto.graph.initializer[0]
    (folder / "inside.data").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return saved(proto, folder)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "outside the model's folder"),
        ({"location": "../secret.data"}, r"'\.\./secret.data', outside the model's folder"),
        ({"location": "/etc/passwd"}, "outside the model's folder"),
        ({"location": "link.data"}, "outside the model's folder"),
        ({"location": "sub/../../secret.data"}, "outside the model's folder"),
        ({"location": "link\0.data"}, "outside the model's folder"),
        ({"location": "x" * 5000}, "missing from .*copy that file beside"),
        ({"location": "missing.data"}, "missing from .*copy that file beside"),
        ({"location": "."}, "missing"),
        ({"location": "inside.data", "offset": "4"}, "needs 48 bytes at offset 4.*cut short"),
        ({"location": "inside.data", "length": "40"}, "gives length 40"),
        ({"location": "inside.data", "offset": "-4"}, "offset -4"),
        ({"location": "inside.data", "offset": "4x"}, "no valid offset"),
    ],
)
def test_read_external_data(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.data").write_bytes(bytes(48))
    (folder / "link.data").symlink_to(tmp_path / "secret.data")
    with pytest.raises(ModelError, match=f"'weight'.*{message}"):
        load(external(folder, **entries))


def test_read_external_data_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load(quantized_weight()[0]).run(np.ones((1, 4)))["y"]
    path = external(tmp_path, location="inside.data")
    np.testing.assert_array_equal(load(path).run(np.ones((1, 4)))["y"], expected)
    monkeypatch.chdir(tmp_path)  # a path without a folder
    np.testing.assert_array_equal(load("bad.onnx").run(np.ones((1, 4)))["y"], expected)
    with pytest.raises(ModelError, match="load the model by its path"):
        load(path.read_bytes())


def test_read_huge_intermediate_results(tmp_path: Path) -> None:
    nodes = [
        node("ConstantOfShape", "shape", "h", domain=""),
        node("Add", "x h", domain=""),
    ]
    proto = model(nodes, {"shape": np.array([2**20, 2**20, 2**18])})
    with pytest.raises(ModelError):
        load(proto).run(np.ones((1, 4)))


GOOD = quantized_weight()[0].SerializeToString()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=4))
def test_read_damaged_files(at: int, damage: bytes) -> None:
    """Overwrite bytes anywhere: the model runs, or there is an AnybitError."""
    data = GOOD[:at] + damage + GOOD[at + len(damage) :]
    with contextlib.suppress(AnybitError):
        load(data).run(np.ones((1, 4), np.float32))
