# SPDX-License-Identifier: Apache-2.0
"""The float model that a quantized file records, and the network without quantizers."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import anybit
from anybit.onnx import prepare, read
from anybit.onnx.files.origin import HASH_KEY, PATH_KEY, find_origin
from anybit.onnx.passes import InferShapes, RemoveQuantizers
from anybit.onnx.passes.remove_quantizers import has_quantizers
from anybit.onnx.preparation import apply_passes

FLOATS = """
<ir_version: 8, opset_import: ["": 17]>
graph (float[N, 4] x) => (float[N, 3] y)
{
  h = MatMul(x, w)
  r = Relu(h)
  y = MatMul(r, v)
}
"""


def float_model() -> onnx.ModelProto:
    model = parser.parse_model(FLOATS)
    random = np.random.default_rng(0)
    for name, shape in (("w", (4, 4)), ("v", (4, 3))):
        array = random.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


DATA = np.random.default_rng(1).standard_normal((64, 4), dtype=np.float32)


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    """Write a quantized file next to the folder of its float model."""
    for folder in ("floats", "results"):
        (tmp_path / folder).mkdir()
    onnx.save(float_model(), tmp_path / "floats" / "m.onnx")
    floats = tmp_path / "floats" / "m.onnx"
    result = anybit.quantize(floats, DATA, activations="int8", effort="fast")
    result.save(tmp_path / "results" / "q.onnx")
    return tmp_path / "results" / "q.onnx"


def test_origin_quantized_files_record_their_float_model_by_a_relative_path(
    quantized: Path,
) -> None:
    entries = {entry.key: entry.value for entry in onnx.load(quantized).metadata_props}
    assert entries[PATH_KEY] == "../floats/m.onnx"
    assert len(entries[HASH_KEY]) == 64
    path, missing = find_origin(read(quantized))
    assert path is not None
    assert path.samefile(quantized.parents[1] / "floats" / "m.onnx")
    assert missing == ""


def test_origin_survives_conversion_cleaning_and_compilation(quantized: Path) -> None:
    floats = quantized.parents[1] / "floats" / "m.onnx"
    nested = quantized.parent / "nested"
    nested.mkdir()
    results = {
        "qdq": anybit.convert(quantized, to="qdq"),
        "clean": anybit.clean(quantized),
        "compiled": anybit.compile(quantized),
    }
    for name, result in results.items():
        result.save(nested / f"{name}.onnx")
        path, _ = find_origin(read(nested / f"{name}.onnx"))
        assert path is not None, name
        assert path.samefile(floats)


def test_origin_saving_does_not_change_the_model_in_memory(quantized: Path) -> None:
    model = read(quantized)
    before = dict(model.metadata_props)
    anybit.save(model, quantized.parent / "again.onnx")
    assert dict(model.metadata_props) == before
    assert os.path.isabs(before[PATH_KEY])


def test_origin_float_model_that_changed_or_is_gone_is_not_found(quantized: Path) -> None:
    floats = quantized.parents[1] / "floats" / "m.onnx"
    floats.write_bytes(floats.read_bytes() + b" ")
    assert find_origin(read(quantized))[1].endswith("has changed since it was quantized")
    floats.unlink()
    assert find_origin(read(quantized))[1].endswith("is not there")
    floats.mkdir()
    assert find_origin(read(quantized))[0] is None


@pytest.mark.parametrize("path", ["/dev/zero", "\0", "x" * 10_000, "/dev/stdin", "."])
def test_origin_recorded_paths_are_not_trusted(path: str) -> None:
    model = ir.from_proto(float_model())
    model.metadata_props.update({PATH_KEY: path, HASH_KEY: "0" * 64})
    actual, missing = find_origin(model)
    assert actual is None
    assert missing


def test_origin_compile_time_compares_with_the_recorded_float_model(quantized: Path) -> None:
    report = anybit.compile(quantized, time=True).report
    assert report.speed is not None
    assert next(iter(report.speed.peers)) == "float model m.onnx"
    assert report.speed.note == ""


def test_origin_compile_time_takes_another_float_model(quantized: Path) -> None:
    other = quantized.parent / "other.onnx"
    onnx.save(float_model(), other)
    report = anybit.compile(quantized, time=True, float_model=other).report
    assert report.speed is not None
    assert report.speed.float_name == "float model other.onnx"


def test_origin_compile_time_refuses_a_float_model_of_other_inputs(quantized: Path) -> None:
    other = float_model()
    other.graph.input[0].name = other.graph.node[0].input[0] = "z"
    onnx.save(other, quantized.parent / "other.onnx")
    with pytest.raises(anybit.ModelError, match="does not run in ONNX Runtime on the inputs"):
        anybit.compile(quantized, time=True, float_model=quantized.parent / "other.onnx")


@pytest.mark.parametrize("form", ["qonnx", "qdq"])
def test_origin_remove_quantizers_leaves_the_float_network(quantized: Path, form: str) -> None:
    model = prepare(anybit.convert(quantized, to=form))
    apply_passes(model, quantized, InferShapes(), RemoveQuantizers())
    assert not has_quantizers(model)
    x = DATA[:5]
    weights = [value.const_value for value in model.graph.initializers.values()]
    w, v = (weight.numpy() for weight in weights if weight is not None and weight.size > 1)
    expected = np.maximum(x @ w, 0) @ v
    np.testing.assert_allclose(anybit.load(model).run(x)["y"], expected, rtol=1e-5, atol=1e-5)


def test_quantize_keeps_its_result_where_the_float_model_is_deleted_meanwhile(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(float_model(), path)
    entries = {HASH_KEY: hashlib.sha256(path.read_bytes()).hexdigest(), PATH_KEY: str(path)}

    def items() -> Iterator[np.ndarray]:
        path.unlink(missing_ok=True)
        yield from np.split(DATA, 4)

    result = anybit.quantize(path, items(), effort="fast")
    assert {key: result.model.metadata_props[key] for key in entries} == entries
