# SPDX-License-Identifier: Apache-2.0
"""ONNX's own checker and shape inference understand models, once the schemas are registered."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx_ir.passes.common import ShapeInferencePass
from places import every_model, needs_models
from small_models import DOMAIN, quantized_input

from anybit.onnx import read, register
from anybit.onnx.passes import Normalize

Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def check(proto: onnx.ModelProto) -> None:
    onnx.checker.check_model(proto, full_check=True, check_custom_domain=True)


def normalized(source: Any) -> onnx.ModelProto:
    result = read(source)
    Normalize()(result)
    return ir.to_proto(result)


@pytest.mark.parametrize("version", [1, 2])
def test_registered_schemas_checker_accepts_a_normalised_model(version: int) -> None:
    for name in ("Quant", "IntQuant"):
        proto = quantized_input()
        proto.graph.node[0].op_type = name
        proto.opset_import[1].version = version
        proto.graph.output[0].CopyFrom(Y)
        check(proto)
        check(normalized(proto))


def test_registered_schemas_checker_refuses_unknown_attributes() -> None:
    proto = quantized_input(bits=3)
    proto.graph.output[0].CopyFrom(Y)
    with pytest.raises(onnx.checker.ValidationError, match="bits"):
        check(proto)


def types_of(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto.Tensor]:
    known_values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: value.type.tensor_type for value in known_values}


@needs_models
@every_model
@pytest.mark.parametrize("data_prop", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_registered_schemas_every_tensor_of_the_models_is_typed(
    path: Any, data_prop: bool, dynamic: bool
) -> None:
    proto = normalized(path)
    del proto.graph.value_info[:]
    if dynamic:
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
    check(proto)
    result = onnx.shape_inference.infer_shapes(
        proto, check_type=True, strict_mode=True, data_prop=data_prop
    )
    actual = types_of(result.graph)
    for node in result.graph.node:
        assert all(actual[name].elem_type for name in node.output), node.name
        if node.domain and node.input[0] in actual:
            assert actual[node.output[0]] == actual[node.input[0]], node.name


@needs_models
@every_model
def test_registered_schemas_shape_inference_of_onnx_ir(path: Any) -> None:
    result = read(path)
    Normalize()(result)
    for node in result.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.type = value.shape = None
    ShapeInferencePass(check_type=True, strict_mode=True)(result)
    assert all(value.dtype is not None for node in result.graph for value in node.outputs)


# Registering


@pytest.fixture
def foreign() -> Iterator[onnx.defs.OpSchema]:
    """Somebody else's schema in the place of one of ours."""
    name, version = "BipolarQuant", 1
    onnx.defs.deregister_schema(name, version, DOMAIN)
    theirs = onnx.defs.OpSchema(name, DOMAIN, version, "theirs", inputs=[], outputs=[])
    onnx.defs.register_schema(theirs)
    yield theirs
    onnx.defs.deregister_schema(name, version, DOMAIN)
    register()
    assert onnx.defs.get_schema(name, version, DOMAIN).doc != "theirs"


def test_registered_schemas_schema_of_somebody_else_stays(foreign: onnx.defs.OpSchema) -> None:
    register()
    assert onnx.defs.get_schema(foreign.name, 1, DOMAIN).doc == "theirs"


def test_registered_schemas_threads() -> None:
    errors = []

    def several() -> None:
        try:
            for _ in range(20):
                register()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=several) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_registered_schemas_old_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anybit.onnx.operators.schemas.OpSchema", object)
    monkeypatch.setattr(onnx, "__version__", "1.18.0")
    with pytest.raises(RuntimeError, match=r"1\.19 or newer, got 1\.18\.0; upgrade"):
        register()


INFER = """
import onnx
proto = onnx.parser.parse_model('''
    <ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
    graph (float[rows, 4] x, float s) => (float[rows, 4] y) {
        y = qonnx.custom_op.general.BipolarQuant(x, s)
    }
''')
onnx.checker.check_model(proto, full_check=True, check_custom_domain=True)
"""
REGISTER = "import anybit.onnx; anybit.onnx.register()"
KEY = ("IntQuant", 1, DOMAIN)
REGISTER_THEIRS = f"""
import atexit, onnx
onnx.defs.register_schema(onnx.defs.OpSchema("IntQuant", {DOMAIN!r}, 1, "theirs"))
atexit.register(lambda: onnx.defs.deregister_schema(*{KEY}))
"""
IN_A_THREAD = f"""
import threading
thread = threading.Thread(target=exec, args=[{REGISTER!r}])
thread.start()
thread.join()
"""
PROGRAMS = {
    "once": [REGISTER],
    "twice": [REGISTER, REGISTER],
    "used": [REGISTER, INFER],
    "reference_before": ["import onnx.reference", REGISTER, INFER],
    "reference_after": [REGISTER, INFER, "import onnx.reference"],
    "onnxscript_before": ["import onnxscript", REGISTER, INFER],
    "onnxscript_after": [REGISTER, INFER, "import onnxscript"],
    "taken_back": [REGISTER, f"import onnx; onnx.defs.deregister_schema(*{KEY})"],
    "theirs": [REGISTER_THEIRS, REGISTER, INFER],
    "in_a_thread": [IN_A_THREAD, INFER],
}


def test_schemas_go_at_exit() -> None:
    look = f"print(onnx.defs.has('IntQuant', 1, {DOMAIN!r}))"
    # What is registered first runs last.
    first = f"import atexit, onnx; atexit.register(lambda: {look})"
    code = "\n".join([first, REGISTER, look])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("steps", PROGRAMS.values(), ids=PROGRAMS)
def test_registered_schemas_interpreter_exits_cleanly(steps: list[str]) -> None:
    """Left to itself, onnx frees Python functions after the interpreter has gone: 1.19 hangs."""
    if any("onnxscript" in step for step in steps):
        pytest.importorskip("onnxscript")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(steps)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
