# SPDX-License-Identifier: Apache-2.0
"""Weights of the forms `standard` and `portable`: floats, which ONNX Runtime never fuses.

By default the runtime fuses DequantizeLinear and MatMul to MatMulNBits, which rounds the other
input to 8 bits.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import kinds

import anybit
from anybit.onnxruntime import register

CHANNELS = 24
LARGEST = 3e38
DISABLE = "session.disable_quant_qdq"


def make_layer(kind: str, depth: int, opset: int = 20) -> onnx.ModelProto:
    """Return a layer of float weights that reads `depth` channels."""
    random = np.random.default_rng(depth)
    shapes: dict[str, tuple[int, ...]] = {
        "MatMul": (depth, CHANNELS),
        "Gemm": (depth, CHANNELS),
        "Conv": (CHANNELS, depth, 1, 1),
        "ConvTranspose": (depth, CHANNELS, 1, 1),
        "Gather": (CHANNELS, depth),
    }
    weight = random.standard_normal(shapes[kind], dtype=np.float32)
    constants = [numpy_helper.from_array(weight, "w")]
    operands = ["w", "i"] if kind == "Gather" else ["x", "w"]
    if kind == "Gemm":
        bias = random.standard_normal(CHANNELS, dtype=np.float32)
        constants.append(numpy_helper.from_array(bias, "b"))
        operands.append("b")
    nodes = [helper.make_node(kind, operands, ["y"])]
    sizes = ["n", depth, "h", "w_"] if kind.startswith("Conv") else ["n", depth]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)]
    if kind == "Gather":  # an embedding before a product with itself
        inputs = [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])]
        nodes = [
            helper.make_node("Gather", operands, ["e"]),
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["e", "t"], ["y"]),
        ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "layer", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def make_feeds(kind: str, depth: int) -> dict[str, np.ndarray]:
    """Return rows of usual numbers, and one of numbers near the largest."""
    if kind == "Gather":
        return {"i": np.arange(5)}
    x = np.random.default_rng(1).standard_normal((5, depth), dtype=np.float32)
    x[2] = LARGEST
    return {"x": x.reshape(5, depth, 1, 1) if kind.startswith("Conv") else x}


def run_default(
    model: ir.Model | Path, feeds: dict[str, np.ndarray], *, library: bool, **entries: str
) -> np.ndarray:
    """Run a model with ONNX Runtime's default options, and perhaps the operator library."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for key, value in entries.items():
        options.add_session_config_entry(f"session.{key}", value)
    if library:
        register(options)
    file = model.read_bytes() if isinstance(model, Path) else anybit.onnx.serialize(model)[0]
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def quantize_to_file(path: Path, proto: onnx.ModelProto, weights: str, activations: str) -> Path:
    """Write the file that `anybit quantize` writes."""
    anybit.quantize(proto, weights=weights, activations=activations).save(path)
    return path


WEIGHTS = ("int8 per-tensor", "int8 per-channel", "int4 per-block 32")


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", ["standard", "portable"])
@pytest.mark.parametrize("activations", ["int8 dynamic", "float"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("depth", [64, 96, 256, 512])
@pytest.mark.parametrize("kind", ["MatMul", "Gemm"])
def test_float_weights_keep_products_with_default_options(
    kind: str, depth: int, weights: str, activations: str, form: str, tmp_path: Path
) -> None:
    file = quantize_to_file(tmp_path / "q.onnx", make_layer(kind, depth), weights, activations)
    feeds = make_feeds(kind, depth)
    expected = anybit.load(file).run(feeds)["y"]
    converted = anybit.convert(file, to=form)
    assert "DequantizeLinear" not in kinds(converted.model)
    assert not anybit.check(converted.model, target="onnxruntime")
    for library in (False, True)[: 1 + (form == "portable")]:
        actual = run_default(converted.model, feeds, library=library)
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("form", ["standard", "portable"])
@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gather", "MatMul"])
def test_float_weights_of_other_layers_and_opsets(
    kind: str, opset: int, form: str, tmp_path: Path
) -> None:
    proto = make_layer(kind, 64, opset)
    file = quantize_to_file(tmp_path / "q.onnx", proto, "int8 per-tensor", "float")
    feeds = {name: array[:2] for name, array in make_feeds(kind, 64).items()}
    converted = anybit.convert(file, to=form)
    assert "DequantizeLinear" not in kinds(converted.model)
    expected = anybit.load(file).run(feeds)["y"]
    actual = run_default(converted.model, feeds, library=False)
    # Optimized convolutions add in another order.
    order = 1e-6 * np.abs(expected).max() if kind.startswith("Conv") else 0
    np.testing.assert_allclose(actual, expected, rtol=0, atol=order)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_compact_files_need_the_option_that_check_reports(weights: str, tmp_path: Path) -> None:
    proto = make_layer("MatMul", 64)
    file = quantize_to_file(tmp_path / "q.onnx", proto, weights, "int8 dynamic")
    (finding,) = anybit.check(file, target="onnxruntime")
    assert finding.code == "integer-operator"
    assert f"{DISABLE} = 1" in finding.remedy
    feeds = make_feeds("MatMul", 64)
    expected = anybit.load(file).run(feeds)["y"]
    actual = run_default(file, feeds, library=True, disable_quant_qdq="1")
    np.testing.assert_array_equal(actual, expected)


def make_product(
    dtype: int, codes: int, scale: float, domain: str = "", **attributes: Any
) -> onnx.ModelProto:
    """Return x @ DequantizeLinear(codes), as other tools write it."""
    values = np.random.default_rng(0).integers(-8, 8, (64, CHANNELS))
    block = attributes.get("block_size")
    shape = (64 // block, CHANNELS) if block else (CHANNELS,)
    scales = np.full(shape, scale, helper.tensor_dtype_to_np_dtype(dtype))
    constants = [
        helper.make_tensor("w", codes, values.shape, values.ravel().tolist()),
        numpy_helper.from_array(scales, "s"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], domain=domain, **attributes),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, dtype, ["n", size])
        for name, size in (("x", 64), ("y", CHANNELS))
    )
    graph = helper.make_graph(nodes, "product", [x], [y], constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("form", ["standard", "portable"])
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("scale", [0.02, -0.02])
@pytest.mark.parametrize(("codes", "block"), [("INT8", 0), ("INT4", 0), ("INT4", 32)])
@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16"])
def test_float_weights_of_other_tools(
    dtype: str, codes: str, block: int, scale: float, domain: str, form: str
) -> None:
    layout = {"axis": 0, "block_size": block} if block else {"axis": 1}
    types = getattr(TensorProto, dtype), getattr(TensorProto, codes)
    proto = make_product(*types, scale, domain, **layout)
    x = make_feeds("MatMul", 64)["x"][:2].astype(helper.tensor_dtype_to_np_dtype(types[0]))
    expected = anybit.load(proto).run(x)["y"]
    findings = anybit.check(proto, target="onnxruntime")
    remedies = {f.remedy for f in findings if f.code == "integer-operator"}
    fenced = "qdq" if dtype == "FLOAT" and scale > 0 else "standard"
    option = f"give the session {DISABLE} = 1"
    assert remedies == {f"{option}, or convert it with anybit convert --to {fenced}"}
    converted = anybit.convert(proto, to=form)
    assert kinds(converted.model) == ["MatMul"]
    (step,) = converted.steps
    assert (step.operator, step.action) == ("DequantizeLinear", "constant")
    np.testing.assert_array_equal(run_default(converted.model, {"x": x}, library=False), expected)


PAIRS = """<ir_version: 8, opset_import: ["": 17]>
graph (float[n, 4] x) => (float[n, 4] y) <float s = {0.5}, float t = {0.3}, uint8 z = {0},
    float[4] b = {0.1, 0.2, 0.3, 0.7}, float[4] v = {1, 1, 1, 1},
    int8[4, 4] w = {1, -1, 1, 0, 0, 1, -1, 1, 1, 0, 1, 1, -1, 1, 0, 1}> {
    q = QuantizeLinear(x, s, z)
    a = DequantizeLinear(q, s, z)
    d = DequantizeLinear(w, s)
    %s
    p = QuantizeLinear(m, t, z)
    y = DequantizeLinear(p, t, z)
}"""


LAYERS = {
    "Gemm": "m = Gemm(a, d)",
    "Gemm with bias": "m = Gemm(a, d, b)",
    "MatMul and Add": "n = MatMul(a, d) m = Add(n, b)",
    "Add and Relu": "n = MatMul(a, d) k = Add(b, n) m = Relu(k)",
    "BatchNormalization": "n = MatMul(a, d) m = BatchNormalization(n, b, b, b, v)",
}


@pytest.mark.parametrize("form", ["standard", "portable"])
@pytest.mark.parametrize("layer", LAYERS)
def test_pairs_of_activations_are_fenced(layer: str, form: str) -> None:
    """Fence a Gemm between pairs, whose float weight and bias the runtime quantizes."""
    proto = onnx.parser.parse_model(PAIRS % LAYERS[layer])
    x = np.random.default_rng(0).standard_normal((99, 4), dtype=np.float32)
    x = np.float32(np.rint(x * 8) / 8)
    converted = anybit.convert(proto, to=form)
    assert kinds(converted.model).count("DequantizeLinear") == 2
    assert any("default options keep its values" in remark for remark in converted.remarks)
    assert "1 node without a fence" in "".join(
        anybit.convert(proto, to=form, runtime="any").remarks
    )
    expected = anybit.load(proto).run(x)["y"]
    np.testing.assert_array_equal(run_default(converted.model, {"x": x}, library=False), expected)
