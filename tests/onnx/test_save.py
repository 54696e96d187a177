# SPDX-License-Identifier: Apache-2.0
"""Files appear whole or not at all, in one piece or in two."""

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import small_models
from places import needs_pipes

import anybit
from anybit.errors import ModelError
from anybit.onnx import read, save
from anybit.onnx.files import writer

X = np.linspace(-2, 2, 4, dtype=np.float32)[None]


def model() -> ir.Model:
    """x @ w with w large enough for a file of its own."""
    weight = np.linspace(-2, 2, 4 * 64, dtype=np.float32).reshape(4, 64)
    proto = small_models.model([small_models.node("MatMul", "x w", domain="")], {"w": weight})
    proto.graph.output[0].type.tensor_type.shape.dim.extend(
        onnx.TensorShapeProto.Dimension(dim_value=size) for size in (1, 64)
    )
    return read(proto)


@pytest.fixture
def in_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_LARGEST_SINGLE_FILE", 16)


def test_save_one_file(tmp_path: Path) -> None:
    save(model(), tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    onnx.checker.check_model(str(tmp_path / "m.onnx"))


@needs_pipes
@pytest.mark.usefixtures("in_two_files")
def test_save_pipes_are_written_to(tmp_path: Path) -> None:
    """Keep a special file, even for a model of two files."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    expected = anybit.load(model()).run(X)["y"]
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        save(model(), pipe)
        message = reader.read()
    np.testing.assert_array_equal(anybit.load(message).run(X)["y"], expected)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.usefixtures("in_two_files")
def test_save_large_models_have_their_tensors_beside_them(tmp_path: Path) -> None:
    expected = anybit.load(model()).run(X)["y"]
    save(model(), tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    np.testing.assert_array_equal(anybit.load(tmp_path / "m.onnx").run(X)["y"], expected)


@pytest.mark.usefixtures("in_two_files")
def test_save_model_can_be_written_over_the_file_that_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    expected = anybit.load(model()).run(X)["y"]
    save(model(), path)
    for _ in range(2):
        save(read(path), path)
    np.testing.assert_array_equal(anybit.load(path).run(X)["y"], expected)


def test_save_tensors_in_other_files_come_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = anybit.load(model()).run(X)["y"]
    (tmp_path / "there").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_LARGEST_SINGLE_FILE", 16)
        save(model(), tmp_path / "there" / "m.onnx")
    loaded = read(tmp_path / "there" / "m.onnx")
    save(loaded, tmp_path / "m.onnx")
    kinds = {type(value.const_value) for value in loaded.graph.initializers.values()}
    assert ir.ExternalTensor in kinds, "the model that was written must not change"
    np.testing.assert_array_equal(anybit.load(tmp_path / "m.onnx").run(X)["y"], expected)


@pytest.mark.parametrize("name", ["missing/m.onnx", ".", ""])
def test_save_bad_paths(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="must be a file name in a folder that exists"):
        save(model(), tmp_path / name)


def test_save_failure_leaves_existing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"before")
    monkeypatch.setattr(writer, "_serialize_whole", lambda _: 1 / 0)
    with pytest.raises(ModelError, match=r"m\.onnx cannot be written: division by zero"):
        save(model(), path)
    assert path.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_save_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "link.onnx").symlink_to(tmp_path / "m.onnx")
    save(model(), tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink()
    onnx.checker.check_model(str(tmp_path / "m.onnx"))


def test_save_errors_name_the_file_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "a temporary file")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left") as caught:
        save(model(), tmp_path / "m.onnx")
    assert caught.value.filename == str(tmp_path / "m.onnx")


def test_results_are_saved_and_are_sources(tmp_path: Path) -> None:
    """Save results, and use them as sources without changing them."""
    path = tmp_path / "m.onnx"
    cleaned = anybit.clean(small_models.quantized_input())
    before = ir.to_proto(cleaned.model).SerializeToString()
    converted = anybit.convert(cleaned, to="qdq")
    expected = anybit.load(small_models.quantized_input()).run(X)["y"]
    for result in (cleaned, converted, anybit.clean(converted)):
        result.save(path)
        for source in (result, path):
            np.testing.assert_array_equal(anybit.load(source).run(X)["y"], expected)
            assert anybit.diff(source, small_models.quantized_input(), X)["y"].differing == 0
            assert (
                anybit.inspect(source, layers=False).summary.nodes == result.model.graph.num_nodes()
            )
            assert not any(finding.severity == "error" for finding in anybit.check(source))
    assert ir.to_proto(cleaned.model).SerializeToString() == before


def test_whatever_is_a_model_can_be_saved(tmp_path: Path) -> None:
    proto = small_models.quantized_input()
    for kind in (proto, ir.from_proto(proto), anybit.clean(proto)):
        anybit.save(kind, tmp_path / "m.onnx")
        assert anybit.load(tmp_path / "m.onnx").run(X)["y"].shape == (1, 4)
