# SPDX-License-Identifier: Apache-2.0
"""The folders that backend_tests.py writes: complete, valid, and right in ONNX Runtime."""

import ctypes
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import backend_tests
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from cases import OPERATORS, Case, assert_same_bits, every_case
from onnx import TensorProto, numpy_helper

import anybit.onnx
import anybit.onnxruntime

ANSWERED = [(name, case) for name, case in every_case() if case.raises is None]
# A step that meets every operator, type and shape in a few seconds.
SOME = ANSWERED[::13]


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backend") / "cases"
    folder.mkdir()
    assert backend_tests.write(folder, SOME) == len(SOME)
    return folder


def tensors(folder: Path, case: str) -> list[np.ndarray]:
    """input_0.pb, input_1.pb, ... of a folder as arrays."""
    data = folder / "test_data_set_0"
    paths = [data / f"{case}_{place}.pb" for place in range(len(list(data.glob(f"{case}_*.pb"))))]
    return [
        np.array(numpy_helper.to_array(TensorProto.FromString(path.read_bytes()))) for path in paths
    ]


def ort_value(array: np.ndarray) -> onnxruntime.OrtValue:
    if array.dtype != ml_dtypes.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    # ONNX Runtime's NumPy has no bfloat16.
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        array.view(np.uint16), TensorProto.BFLOAT16
    )


def as_array(value: onnxruntime.OrtValue) -> np.ndarray:
    if value.element_type() != TensorProto.BFLOAT16:
        return value.numpy()
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(content, ml_dtypes.bfloat16).reshape(value.shape())


def check(folder: Path) -> None:
    """Run one folder as any user of it would."""
    proto = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(proto, full_check=True, check_custom_domain=True)
    session = anybit.onnxruntime.session(folder / "model.onnx")
    inputs, (expected,) = tensors(folder, "input"), tensors(folder, "output")
    feeds = {
        declared.name: ort_value(array)
        for declared, array in zip(session.get_inputs(), inputs, strict=True)
    }
    (result,) = session.run_with_ort_values(None, feeds)
    assert_same_bits(as_array(result), expected, Case(folder.name, (inputs[0],)))


def check_all(folder: Path) -> None:
    anybit.onnx.register()
    for entry in index(folder):
        check(folder / entry["folder"])


def index(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "index.json").read_text(encoding="utf-8"))


def test_backend_tests_some_in_onnxruntime(some: Path) -> None:
    check_all(some)


@pytest.mark.slow
def test_backend_tests_all_in_onnxruntime(tmp_path: Path) -> None:
    assert backend_tests.write(tmp_path, every_case()) == len(ANSWERED)
    check_all(tmp_path)


def test_backend_tests_onnx_finds_them(some: Path) -> None:
    from onnx.backend.test.loader import load_model_tests

    actual = load_model_tests(str(some.parent), some.name)
    assert {case.name for case in actual} == {entry["folder"] for entry in index(some)}
    assert all((case.rtol, case.atol) == (0, 0) for case in actual)


def test_backend_tests_index_tells_which_is_which(some: Path) -> None:
    for (name, case), entry in zip(SOME, index(some), strict=True):
        assert (entry["operator"], entry["case"]) == (name, case.name)
        proto = onnx.load(some / entry["folder"] / "model.onnx")
        (node,) = proto.graph.node
        assert entry["node"] == f"{node.domain}.{node.op_type}"
        assert {opset.domain: opset.version for opset in proto.opset_import}[node.domain] == entry[
            "version"
        ]
        assert entry["inputs"] == [value.name for value in proto.graph.input]
        assert entry["initializers"] == [tensor.name for tensor in proto.graph.initializer]
        assert entry["attributes"].keys() == {attribute.name for attribute in node.attribute}


def test_backend_tests_selection_has_every_operator_and_type(some: Path) -> None:
    assert {entry["operator"] for entry in index(some)} == set(OPERATORS)
    kinds = Counter(
        str(tensors(some / entry["folder"], "output")[0].dtype) for entry in index(some)
    )
    assert kinds.keys() == {"float32", "float64", "float16", "bfloat16", "int8", "uint8"}


def test_backend_tests_inputs_and_constants(some: Path) -> None:
    """Parameters are constants, except scales that are computed at run time."""
    for entry in index(some):
        at_run_time = entry["operator"] in backend_tests.AT_RUN_TIME
        parameters = backend_tests.ort_backend.BY_NAME[entry["operator"]].inputs[1:]
        if not all(parameter.optional for parameter in parameters):
            assert bool(entry["initializers"]) != at_run_time
        assert (len(entry["inputs"]) > 1) == at_run_time


def test_backend_tests_numbers_have_the_type_of_the_computation() -> None:
    value, declared = 0.1, backend_tests.ort_backend.BY_NAME["int_quant"].inputs[1]
    for dtype, expected in (("float16", "float32"), ("float32", "float32"), ("float64", "float64")):
        x = np.zeros(2, dtype)
        assert backend_tests._parameter(value, declared, x).dtype == expected
        assert backend_tests._parameter(8, declared, x).dtype == expected
        assert backend_tests._parameter(np.int8(8), declared, x).dtype == "int8"
    x = np.zeros(2, np.float32)
    assert backend_tests._parameter(2**24 + 1, declared, x) == 2**24 + 1
    assert backend_tests._parameter(1e300, declared, x) == np.inf


def test_backend_tests_names_that_differ_in_case_only(tmp_path: Path) -> None:
    x = (np.float32([1.5]), 1.0)
    cases = [("bipolar_quant", Case(name, x)) for name in ("up", "UP", "Up")]
    backend_tests.write(tmp_path, cases)
    names = [entry["folder"] for entry in index(tmp_path)]
    assert names == [f"test_bipolar_quant_{name}" for name in ("up", "UP_2", "Up_3")]


def test_backend_tests_refused_cases_are_left_out(tmp_path: Path) -> None:
    refused = [(name, case) for name, case in every_case() if case.raises is not None]
    assert refused
    assert backend_tests.write(tmp_path, refused) == 0
    assert index(tmp_path) == []


def test_backend_tests_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    monkeypatch.setattr(sys, "argv", ["backend_tests.py", str(out), "--operator", "bipolar_quant"])
    backend_tests.main()
    assert {entry["operator"] for entry in index(out)} == {"bipolar_quant"}
    assert capsys.readouterr().out == f"{len(index(out))} cases in {out}\n"
    assert (out / "README.txt").read_text(encoding="utf-8") == backend_tests.README
